//! A GPU that is lost in the middle of a run.

#[path = "../crates/tensor/tests/common/mod.rs"]
mod common;

use rustyflow::Device;
use rustyflow::config::Layers;
use rustyflow::train::{Event, TrainOptions, train};
use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

#[test]
fn a_lost_device_is_opened_again_once_and_the_run_goes_on_from_the_last_checkpoint() {
    let Some(Device::Gpu(gpu)) = common::gpu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let train_losing = |name: &str, losses: usize| {
        let text = format!(
            "[run]\ndir = {:?}\nname = \"{name}\"\n[data]\ntokenizer = \"char\"\n[model]\nn_layer = 1\nn_head = 1\n\
             n_embd = 16\nblock_size = 16\n[train]\nbatch_size = 2\nmax_steps = 12\neval_batches = 1\n[checkpoint]\n\
             every = 4\n[log]\nevery = 1\n[generate]\nmax_new_tokens = 1\n",
            dir.path()
        );
        let resolved = Layers::new().toml_str("test.toml", &text).and_then(Layers::build).unwrap();
        let first = common::gpu().expect("it was there before");
        // That which is in use, to be lost.
        let current = RefCell::new(first.clone());
        let reopen = || {
            current.replace(common::gpu().expect("it was there before"));
            Ok(current.borrow().clone())
        };
        let (mut lost, mut notes) = (0, Vec::new());
        let result = train(
            &resolved,
            TrainOptions {
                device: first,
                others: &[],
                launch: None,
                started: Instant::now(),
                reopen: Some(&reopen),
                data_dir: Path::new("data"),
                cache_dir: None,
                resume: None,
                stop: &AtomicBool::new(false),
                training_log: None,
                trace: None,
                on_event: &mut |event| match event {
                    Event::Note(text) => notes.push(text.clone()),
                    Event::Progress { step: 10 } if lost < losses => {
                        lost += 1;
                        let Device::Gpu(gpu) = &*current.borrow() else { unreachable!("a GPU was opened") };
                        gpu.lose_for_tests();
                    }
                    _ => {}
                },
            },
        );
        (result, notes)
    };
    drop(gpu);
    let (whole, _) = train_losing("whole", 0);
    let (resumed, notes) = train_losing("lost", 1);
    assert!(notes.iter().any(|note| note.contains("the GPU was lost") && note.contains("reopening it")), "{notes:?}");
    assert_eq!(whole.unwrap().train_loss, resumed.unwrap().train_loss);
    let weights =
        |name: &str| std::fs::read(dir.path().join(name).join("checkpoints/step-000012/model.safetensors")).unwrap();
    assert!(weights("whole") == weights("lost"), "the weights differ");
    let (twice, _) = train_losing("twice", 2);
    assert!(twice.unwrap_err().to_string().contains("the GPU was lost"));
}
