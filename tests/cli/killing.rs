//! A run that is killed again and again, at any instant, ends as one that nobody disturbed: half of the kills come at
//! random, half while a checkpoint is being written.
//!
//! `RUSTYFLOW_KILLS=200` kills that often instead of a few times. Slow: with `--include-ignored`.

use crate::sandbox::{Sandbox, TINY_RUN, has_gpu};
use rustyflow::ops::random::splitmix64;
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// All that has a state, and checkpoints at many steps.
const SETTINGS: &str = "train.eval_every=10 checkpoint.every=3 model.dropout=0.1 train.learning_rate=0.01 log.every=2";

/// Files of the last checkpoint, and the run's metrics without times.
#[derive(PartialEq)]
struct Outcome {
    files: Vec<Vec<u8>>,
    texts: Vec<String>,
    metrics: Vec<Value>,
}

impl Outcome {
    fn of(sandbox: &Sandbox, run: &str) -> Outcome {
        let last = sandbox.read(format!("{run}/last"));
        let read = |name: &str| fs::read(sandbox.path(format!("{run}/checkpoints/{}/{name}", last.trim()))).unwrap();
        Outcome {
            files: ["model.safetensors", "optimizer.safetensors"].map(read).into(),
            texts: ["last", "best", "samples.txt", "samples.jsonl"]
                .map(|name| sandbox.read(format!("{run}/{name}")))
                .into(),
            metrics: sandbox.timeless_metrics(run),
        }
    }
}

/// Kills a run `kills` times, at random instants of the time that it takes undisturbed, or in the checkpoint after
/// them.
fn survives(kills: usize, steps: usize, device: &[&str], run: &str) {
    let kills = std::env::var("RUSTYFLOW_KILLS").map_or(kills, |text| text.parse().expect("a count"));
    let max_steps = format!("train.max_steps={steps}");
    let settings = SETTINGS.split(' ').chain([&*max_steps]).flat_map(|s| ["--set", s]);
    let begin: Vec<&str> = ["train", "--config", "tiny.toml"].into_iter().chain(device.iter().copied()).collect();
    let begin: Vec<&str> = begin.into_iter().chain(settings).collect();
    let (expected, duration) = undisturbed(&begin, run);
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    eprintln!("{kills} kills of a run of {duration:?}, seed {seed}");
    let (mut done, mut resumptions, mut inside) = (0, 0, 0);
    while done < kills {
        let sandbox = Sandbox::new();
        let mut instants = Vec::new();
        // Until it has come to its end, even if it was killed often enough.
        while !sandbox.exists(format!("{run}/finished")) {
            // Until its configuration is there, a run has not begun.
            let begun = sandbox.exists(format!("{run}/config.toml"));
            if !begun {
                let _ = fs::remove_dir_all(sandbox.path("runs"));
            }
            let resume = ["train", "--resume", "auto"];
            let args = if begun { &resume[..] } else { &begin };
            resumptions += usize::from(begun);
            if done == kills {
                sandbox.run(args).succeeds();
                continue;
            }
            let left_before = is_writing_a_checkpoint(&sandbox, run);
            let mut child = sandbox.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            instants.push(wait_for_the_kill(&mut child, &sandbox, run, duration, &mut seed));
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            match output.status.code() {
                // It had come to its end before.
                Some(0) => {}
                Some(_) => panic!("after {instants:?}: {}", String::from_utf8_lossy(&output.stderr)),
                None => {
                    done += 1;
                    inside += usize::from(!left_before && is_writing_a_checkpoint(&sandbox, run));
                }
            }
        }
        let outcome = Outcome::of(&sandbox, run);
        assert_eq!(outcome.metrics, expected.metrics, "after {instants:?}");
        assert_eq!(outcome.texts, expected.texts, "after {instants:?}");
        assert!(outcome == expected, "the weights or moments differ after {instants:?}");
    }
    eprintln!("{resumptions} resumptions; {inside} kills left a checkpoint half written");
    assert!(resumptions > 0, "no kill left anything to resume");
}

/// What a run leaves that nothing interrupts, and the time it takes.
fn undisturbed(begin: &[&str], run: &str) -> (Outcome, Duration) {
    let sandbox = Sandbox::new();
    // Once before, for what only a first run does.
    sandbox.run(begin).succeeds();
    fs::remove_dir_all(sandbox.path("runs")).unwrap();
    let started = Instant::now();
    sandbox.run(begin).succeeds();
    (Outcome::of(&sandbox, run), started.elapsed())
}

/// Sleeps until a random instant of the run's `duration`, which it returns, and every other time until a checkpoint is
/// under way: most of a process's life is its beginning.
fn wait_for_the_kill(child: &mut Child, sandbox: &Sandbox, run: &str, duration: Duration, seed: &mut u64) -> Duration {
    let instant = Duration::from_nanos(splitmix64(seed) % duration.as_nanos() as u64);
    std::thread::sleep(instant);
    if splitmix64(seed).is_multiple_of(2) {
        // First until what the kill before has left is put in order.
        for written in [false, true] {
            while is_writing_a_checkpoint(sandbox, run) != written && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        std::thread::sleep(Duration::from_micros(splitmix64(seed) % 3000));
    }
    instant
}

/// Whether a killed process has left a part of a checkpoint.
fn is_writing_a_checkpoint(sandbox: &Sandbox, run: &str) -> bool {
    let names = sandbox.names_in(format!("{run}/checkpoints"));
    names.iter().any(|name| name.ends_with(".unfinished") || name.ends_with(".replaced"))
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_that_is_killed_again_and_again_ends_as_if_undisturbed() {
    survives(20, 150, &["--device", "cpu", "--threads", "1"], TINY_RUN);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_on_a_gpu_that_is_killed_again_and_again_ends_as_if_undisturbed() {
    if has_gpu() {
        survives(6, 20, &["--device", "gpu", "--allow-software-gpu"], "runs/corpus-L1-H2-E16-gpu");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_run_in_mixed_precision_that_is_killed_again_and_again_ends_as_if_undisturbed() {
    if has_gpu() {
        let device = ["--device", "gpu", "--allow-software-gpu", "--set", "device.precision=mixed"];
        survives(3, 20, &device, "runs/corpus-L1-H2-E16-gpu");
    }
}
