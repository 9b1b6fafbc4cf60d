//! What settings do to a training.

use crate::sandbox::{Sandbox, TINY, TINY_RUN, has_gpu, json_lines};
use rustyflow::testing::assert_close;

#[test]
fn epochs_are_passes_over_the_training_text() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY.replace("max_steps = 6", "epochs = 1.5"));
    let run = sandbox.train(&["--json", "--set", "model.n_embd=8"]).succeeds();
    let lines = json_lines(&run.stdout);
    let (start, end) = (&lines[0], lines.last().unwrap());
    // Windows of 16 tokens, 4 a step.
    let expected = start["train_tokens"].as_f64().unwrap() * 1.5 / 64.0;
    let steps = start["total_steps"].as_f64().unwrap();
    assert!((steps - expected).abs() < 2.0, "{steps} steps, expected about {expected}");
    assert_eq!(end["steps"], start["total_steps"]);
}

#[test]
fn a_run_of_few_epochs_ends_at_the_minimum_learning_rate() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--epochs", "2"]).succeeds();
    let rates: Vec<f64> = sandbox.metrics(TINY_RUN).iter().filter_map(|line| line["learning_rate"].as_f64()).collect();
    // The default warm-up of 100 steps would be all of the run.
    let (steps, warmup) = (rates.len(), rates.len() / 10);
    assert!((80..110).contains(&steps), "{steps} steps");
    assert_eq!(rates[warmup], 1e-3, "the peak follows the warm-up");
    // The minimum is reached one step after the last: cosine is within (pi / 2 / steps)^2 of its way down.
    let last = rates[steps - 1];
    assert!((1e-4..1.005e-4).contains(&last), "the last of {steps} steps has a learning rate of {last}");
    run.prints(&[&format!(" epochs, {warmup} steps of warm-up\n")]);
    let config = sandbox.read(format!("{TINY_RUN}/config.toml"));
    let line = config.lines().find(|line| line.starts_with("warmup_steps = ")).unwrap();
    assert!(line.starts_with(&format!("warmup_steps = {warmup} ")), "{line}");
    assert!(line.ends_with("# default: a tenth of the steps of epochs"), "{line}");
}

#[test]
fn a_warm_up_longer_than_its_epochs_is_refused() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--epochs", "1", "--set", "train.warmup_steps=1000"]);
    run.fails_with(&[
        "train.warmup_steps is 1000 (--set)",
        "train.epochs is 1 (--epochs), which makes ",
        "make warmup_steps ",
    ]);
    assert_eq!(sandbox.runs(), [""; 0], "no run was begun");
}

#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let sandbox = Sandbox::trained();
    sandbox.train(&["--set", "train.batch_size=2", "--set", "train.grad_accum_steps=2"]).succeeds();
    let [whole, halves] = [TINY_RUN.to_string(), format!("{TINY_RUN}-2")].map(|run| sandbox.losses(&run, "train"));
    assert_eq!(whole.len(), 6);
    // Sums in another order: a few roundings of numbers near 3.
    assert_close("losses", &halves, &whole, 1e-5, 0.0);
}

#[test]
fn every_optimizer_lowers_the_loss() {
    let sandbox = Sandbox::new();
    let kinds = [("adamw", "1e-2"), ("adam", "1e-2"), ("sgd", "1e-1"), ("nag", "1e-1"), ("rmsprop", "3e-3")];
    for (kind, learning_rate) in kinds {
        let settings = [
            &format!("optimizer.kind={kind}"),
            &format!("train.learning_rate={learning_rate}"),
            &format!("run.name={kind}"),
            "train.max_steps=30",
        ];
        sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
        let losses = sandbox.losses(&format!("runs/{kind}"), "train");
        assert!(losses[29] < losses[0] - 0.3, "{kind}: {losses:?}");
    }
}

#[test]
fn every_schedule_shapes_the_learning_rate() {
    let sandbox = Sandbox::new();
    let mut third_rates = vec![];
    for schedule in ["constant", "linear", "cosine", "wsd"] {
        let settings = [
            &format!("train.schedule={schedule}"),
            &format!("run.name={schedule}"),
            "train.learning_rate=0.01",
            "train.min_learning_rate=0.001",
            "train.warmup_steps=1",
        ];
        sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
        let lines = sandbox.metrics(&format!("runs/{schedule}"));
        let rates: Vec<f64> = lines.iter().filter_map(|l| l["learning_rate"].as_f64()).collect();
        assert!((rates[0] - 0.005).abs() < 1e-12, "{schedule}: half-way through the warm-up: {rates:?}");
        assert!((rates[1] - 0.01).abs() < 1e-12, "{schedule}: the peak: {rates:?}");
        assert_eq!(rates[5] < 0.009, schedule != "constant", "{schedule}: {rates:?}");
        third_rates.push(rates[2]);
    }
    // Cosine falls slowly at first.
    assert!(third_rates[0] > third_rates[2] && third_rates[2] > third_rates[1], "{third_rates:?}");
    assert_eq!(third_rates[3], third_rates[0], "the stable part");
}

#[test]
fn every_shape_of_model_trains() {
    let sandbox = Sandbox::new();
    let shapes =
        ["model.dropout=0.2", "model.bias=false", "model.tie_embeddings=false", "model.n_head=1", "model.n_layer=3"];
    for shape in shapes {
        let settings = [shape, &format!("run.name={shape}"), "train.max_steps=30", "train.learning_rate=0.01"];
        sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
        let losses = sandbox.losses(&format!("runs/{shape}"), "train");
        assert!(losses[29] < losses[0] - 0.3, "{shape}: {losses:?}");
    }
}

#[test]
fn only_the_newest_and_the_best_checkpoints_stay() {
    let sandbox = Sandbox::new();
    // A learning rate at which the loss soon rises again.
    let settings = "checkpoint.every=1 checkpoint.keep_last=2 train.eval_every=1 train.learning_rate=10 \
                    train.warmup_steps=4 train.schedule=constant";
    let settings: Vec<&str> = settings.split_whitespace().flat_map(|s| ["--set", s]).collect();
    sandbox.train(&settings).succeeds();
    let kept = sandbox.names_in(format!("{TINY_RUN}/checkpoints"));
    let best = sandbox.read(format!("{TINY_RUN}/best"));
    let evaluations = sandbox.losses(TINY_RUN, "eval");
    let lowest = (0..6).min_by(|&a, &b| evaluations[a].total_cmp(&evaluations[b])).unwrap();
    assert!(lowest < 4, "the best should be an old one: {evaluations:?}");
    assert_eq!(best.trim(), format!("step-{:06}", lowest + 1));
    assert_eq!(kept, [best.trim(), "step-000005", "step-000006"], "evaluations: {evaluations:?}");
}

#[test]
fn every_tokenizer_trains_and_generates() {
    let sandbox = Sandbox::trained();
    std::fs::copy(
        sandbox.path(format!("{TINY_RUN}/checkpoints/step-000006/tokenizer.json")),
        sandbox.path("saved.json"),
    )
    .unwrap();
    for (tokenizer, size) in [("char", 26), ("word", 21), ("bpe", 300), ("saved.json", 26)] {
        let run_name = tokenizer.trim_end_matches(".json");
        let settings = [&format!("data.tokenizer={tokenizer}"), &format!("run.name={run_name}"), "data.vocab_size=300"];
        let run = sandbox.train(&[&["--json"][..], &settings.map(|s| ["--set", s]).concat()].concat()).succeeds();
        let vocab_size = json_lines(&run.stdout)[0]["model"]["vocab_size"].as_u64().unwrap();
        assert!(vocab_size.abs_diff(size) <= 4, "{tokenizer}: {vocab_size} tokens, expected about {size}");
        let model = format!("runs/{run_name}");
        let generated =
            sandbox.run(&["generate", "--device", "cpu", "--model", &model, "--prompt", "the fox", "-n", "3"]);
        generated.succeeds().prints(&["the fox"]);
    }
}

#[test]
fn mixed_precision_is_for_gpus() {
    let run = Sandbox::new().train(&["--precision", "mixed"]);
    run.fails_with(&["--precision", "device.precision", "this run is on the CPU", "use \"f32\""]);
}

#[test]
fn a_run_in_mixed_precision_says_so_and_logs_the_scale_of_the_loss() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.train_on_gpu(&["--precision", "mixed"]).succeeds().prints(&["precision  mixed: "]);
    let [run] = &sandbox.runs()[..] else { panic!("one run") };
    let metrics = sandbox.metrics(&format!("runs/{run}"));
    let steps: Vec<_> = metrics.iter().filter(|line| line["kind"] == "train").collect();
    assert!(!steps.is_empty());
    assert!(steps.iter().all(|line| line["loss_scale"] == 65_536.0 && line["overflows"] == 0), "{steps:?}");
    assert!(sandbox.read("training_log.txt").contains("\nprecision         mixed: "));
    let refused = sandbox.run(&["train", "--resume", &format!("runs/{run}"), "--precision", "f32"]);
    refused.fails_with(&["device.precision", "must not change on resume"]);
}
