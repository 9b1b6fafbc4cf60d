//! The seam to models: a family that only `models::testing` knows is trained, evaluated, saved, resumed, loaded and
//! continues a prompt by the code that GPT-2 goes through.

use crate::config::{Layers, Resolved};
use crate::data::{Coverage, Tokens};
use crate::generate::{Sampling, generate};
use crate::train::{Event, Summary, TrainOptions, Windows, evaluate, find_checkpoint, train};
use crate::{Device, Error, models};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Sixty steps on a text in which every character says which comes next.
fn configuration(dir: &Path, kind: &str, precision: &str) -> Resolved {
    let text = format!(
        "[run]\ndir = {dir:?}\nname = \"a\"\n[device]\nprecision = \"{precision}\"\n[data]\ncorpus = {:?}\n\
         tokenizer = \"char\"\n[model]\nkind = \"{kind}\"\nn_layer = 1\nn_head = 1\nn_embd = 16\n\
         block_size = 8\n[train]\nbatch_size = 4\nmax_steps = 60\neval_every = 10\nlearning_rate = 0.03\n\
         warmup_steps = 2\n[generate]\nmax_new_tokens = 1\n",
        dir.join("text.txt")
    );
    fs::write(dir.join("text.txt"), "abcdefgh".repeat(100)).unwrap();
    Layers::new().toml_str("test.toml", &text).unwrap().build().unwrap()
}

/// Trains until a step, or to the end; what the run came to and its events.
fn run(
    resolved: &Resolved,
    device: &Device,
    resume: Option<&Path>,
    until: usize,
) -> crate::Result<(Summary, Vec<Event>)> {
    let (stop, mut events) = (AtomicBool::new(false), Vec::new());
    let mut on_event = |event: &Event| {
        if matches!(event, Event::Progress { step } if *step == until) {
            stop.store(true, Ordering::Relaxed);
        }
        events.push(event.clone());
    };
    let (data_dir, training_log, device) = (Path::new("data"), None, device.clone());
    let options = TrainOptions {
        device,
        others: &[],
        launch: None,
        started: Instant::now(),
        reopen: None,
        data_dir,
        cache_dir: None,
        resume,
        stop: &stop,
        training_log,
        trace: None,
        on_event: &mut on_event,
    };
    let summary = train(resolved, options)?;
    Ok((summary, events))
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_family_that_no_other_code_knows_is_trained_evaluated_resumed_loaded_and_generates() {
    check_family("mlp", "mlp-for-tests");
}

#[test]
fn a_llama_is_trained_evaluated_resumed_loaded_and_generates() {
    check_family("llama", "LlamaForCausalLM");
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_qwen3_is_trained_evaluated_resumed_loaded_and_generates() {
    check_family("qwen3", "Qwen3ForCausalLM");
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn recurrent_models_are_trained_evaluated_resumed_loaded_and_generate() {
    for kind in ["lstm", "gru", "rnn"] {
        check_family(kind, &format!("\"model_type\": \"{kind}\""));
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_recurrent_model_that_is_resumed_knows_what_it_has_read() {
    for device in Device::for_tests() {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), "lstm", "f32");
        let folder = dir.path().join("a");
        let weights = || fs::read(find_checkpoint(&folder).unwrap().folder.join("model.safetensors")).unwrap();
        run(&resolved, &device, None, usize::MAX).unwrap();
        let whole = weights();
        fs::remove_dir_all(&folder).unwrap();
        run(&resolved, &device, None, 13).unwrap();
        run(&resolved, &device, Some(&folder), 29).unwrap();
        run(&resolved, &device, Some(&folder), usize::MAX).unwrap();
        assert!(whole == weights(), "{device}: other weights");

        // Without that file it is an error, and not a new beginning.
        fs::remove_dir_all(&folder).unwrap();
        run(&resolved, &device, None, 13).unwrap();
        for checkpoint in fs::read_dir(folder.join("checkpoints")).unwrap() {
            fs::remove_file(checkpoint.unwrap().path().join("recurrent_state.safetensors")).unwrap();
        }
        let Err(error) = run(&resolved, &device, Some(&folder), usize::MAX) else { panic!("no error") };
        assert!(error.to_string().contains("recurrent_state.safetensors"), "{error}");
    }
}

/// `named` is in its `config.json`.
fn check_family(kind: &str, named: &str) {
    let mixed = crate::gpu::gpu_for_tests().map(|gpu| (Device::Gpu(gpu), "mixed"));
    for (device, precision) in Device::for_tests().into_iter().map(|device| (device, "f32")).chain(mixed) {
        let dir = tempfile::tempdir().unwrap();
        let resolved = configuration(dir.path(), kind, precision);
        let folder = dir.path().join("a");
        let (half, _) = run(&resolved, &device, None, 7).unwrap();
        assert_eq!((half.steps, half.interrupted), (7, true), "{device}");
        let (summary, events) = run(&resolved, &device, Some(&folder), usize::MAX).unwrap();
        assert_eq!((summary.steps, summary.interrupted, summary.model.kind.as_str()), (60, false, kind));
        assert!(events.iter().any(|event| matches!(event, Event::Started(start) if start.first_step == 7)));

        let checkpoint = find_checkpoint(&folder).unwrap().folder;
        let config = fs::read_to_string(checkpoint.join("config.json")).unwrap();
        assert!(config.contains(named), "{config}");
        let mut model = models::load(&checkpoint).unwrap();
        let elements: usize = model.parameters().iter().map(|(_, tensor)| tensor.len()).sum();
        assert_eq!((model.config(), summary.parameters), (&summary.model, elements), "{device}");
        model.visit_buffers("", &mut |name, _| panic!("{name}: checkpoints of language models have no buffers"));
        model.visit_counts("", &mut |name, _| panic!("{name}: nor counts"));
        model.to_device(&device).unwrap();

        let ids: Vec<u32> = (0..64).map(|i| i % 8).collect();
        let windows = Windows { context: 8, stride: 8, batch_size: 2, max_batches: 0 };
        let coverage = Coverage { decodable_bytes: 64, unknown_share: 0.0, lossless: true };
        let ids = Tokens::from(ids);
        let evaluation = evaluate(&*model, &ids, &coverage, windows, &AtomicBool::new(false)).unwrap().unwrap();
        // ln 8 = 2.08 is what guessing costs.
        assert!(evaluation.loss < 1.0, "{device} {precision}: {}", evaluation.loss);

        // To the end of the context and no further: rows begin with the first letter in training, and a row that
        // begins elsewhere is what no family has learned.
        let mut written = vec![0, 1, 2, 3];
        let greedy = Sampling::greedy(8);
        generate(&*model, &[0, 1, 2, 3], 4, &greedy, &mut |id| {
            written.push(id);
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        let alphabet: Vec<u32> = (0..8).collect();
        assert_eq!(written, alphabet, "{device} {precision}");
    }
}

#[test]
fn an_unknown_family_is_refused_with_the_known_ones_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let Err(error) = run(&configuration(dir.path(), "gpt3", "f32"), &Device::Cpu, None, 0) else { panic!("no error") };
    let message = error.to_string();
    assert_eq!(
        message,
        "test.toml:10: model.kind: expected one of gpt2, llama, qwen3, lstm, gru, rnn, mlp, got \"gpt3\""
    );
    assert!(matches!(error, Error::Config { .. }) && !dir.path().join("a").exists());
}

#[test]
fn the_family_that_is_trained_unasked_is_known() {
    let config = crate::config::Config::default();
    assert_eq!(config.model.kind.parse(), Ok(models::ModelKind::GPT2));
}
