//! `train --device` with several devices.

use crate::sandbox::{Sandbox, TINY_RUN, json_lines};

const CPUS: [&str; 3] = ["--config", "tiny.toml", "--threads=1"];

#[test]
fn several_devices_train_one_run_and_tell_what_their_time_went_into() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--name", "one"]).succeeds();
    let two = [&["train", "--device", "cpu,cpu"], &CPUS[..], &["--json"]].concat();
    let run = sandbox.run(&two).succeeds();
    let lines = json_lines(&run.stdout);
    let end = lines.iter().find(|line| line["kind"] == "end").unwrap();
    assert_eq!(end["ranks"].as_array().unwrap().len(), 2, "{end}");
    assert_eq!(end["ranks"][1]["sequences"], 2, "{end}");
    assert!(lines[0]["device"].as_str().unwrap().starts_with("2 x cpu"), "{}", lines[0]);
    let (one, two) = (sandbox.losses("runs/one", "train"), sandbox.losses(TINY_RUN, "train"));
    assert_eq!(one.len(), two.len());
    assert!(one.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-5), "{one:?} {two:?}");
    assert!(sandbox.read(format!("{TINY_RUN}/profile.txt")).contains("rank  device"));
    assert!(sandbox.read(format!("{TINY_RUN}/config.toml")).contains("kind = \"cpu,cpu\""));
    sandbox.run(&["generate", "--model", TINY_RUN]).succeeds();
    // Three of four sequences on one of them.
    let uneven =
        [&["train", "--device", "cpu,cpu", "--set", "train.device_batch=1,3", "--name", "b"], &CPUS[..]].concat();
    sandbox.run(&uneven).succeeds();
    let uneven = sandbox.losses("runs/b", "train");
    assert!(one.iter().zip(&uneven).all(|(a, b)| (a - b).abs() < 1e-5), "{one:?} {uneven:?}");
    assert!(sandbox.read("runs/b/profile.txt").contains("          3 "));
}

#[test]
fn how_devices_share_a_step_can_be_measured_and_stays() {
    let sandbox = Sandbox::new();
    let auto = ["train", "--device", "cpu,cpu", "--set", "train.device_batch=auto", "--name", "a"];
    sandbox.run(&[&auto[..], &CPUS[..]].concat()).succeeds();
    let line = |text: String| text.lines().find(|line| line.starts_with("device_batch")).unwrap().to_string();
    let first = line(sandbox.read("runs/a/config.toml"));
    let parts = first.split(['[', ']']).nth(1).unwrap().split(',').map(|part| part.trim().parse::<usize>().unwrap());
    let parts: Vec<usize> = parts.collect();
    assert!(parts.len() == 2 && parts.iter().sum::<usize>() == 4 && !parts.contains(&0), "{first}");
    assert!(first.contains("measured at the start"), "{first}");
    // A run that goes on shares a step as it began, also where `auto` is asked for again.
    let on = ["--resume", "runs/a", "--set", "train.max_steps=9"];
    sandbox.run(&[&auto[..], &CPUS[..], &on[..]].concat()).succeeds();
    let again = line(sandbox.read("runs/a/config.toml"));
    assert_eq!(again.split('#').next().unwrap().trim(), first.split('#').next().unwrap().trim());
    assert!(again.contains("as the run began"), "{again}");
    // There have to be as many sequences as devices.
    let few = sandbox.run(&[&auto[..5], &CPUS[..], &["--name", "b", "--batch-size", "1"]].concat());
    few.fails_with(&["1 x 1 = 1 sequences", "2 ranks"]);
}

#[test]
fn devices_that_cannot_work_together_are_refused() {
    let sandbox = Sandbox::new();
    let train = |device: &str| sandbox.run(&[&["train", "--device", device], &CPUS[..]].concat());
    train("cpu,cpu,cpu").fails_with(&["4 x 1 = 4 sequences a step", "among 3 ranks", "a multiple of 3"]);
    let uneven = |parts: &str, devices: &str| {
        let set = format!("train.device_batch={parts}");
        sandbox.run(&[&["train", "--device", devices, "--set", &set], &CPUS[..]].concat())
    };
    uneven("[3, 2]", "cpu,cpu").fails_with(&["[3, 2]", "a multiple of 5"]);
    uneven("3", "cpu,cpu").fails_with(&["has 1 numbers", "2 rank(s)"]);
    uneven("some", "cpu,cpu").fails_with(&["train.device_batch", "a list of integers"]);
    uneven("0,1", "cpu,cpu").fails_with(&["train.device_batch", "above 0"]);
    train("cpu,gpu:77").fails_with(&["77"]);
    assert!(!sandbox.exists("runs"));
    let generate = sandbox.run(&["generate", "--device", "cpu,cpu", "--model", "x"]);
    generate.fails_with(&["cpu,cpu", "only `train`"]);
}

#[test]
fn what_does_not_go_with_training_apart_is_refused() {
    let sandbox = Sandbox::new();
    let apart = |settings: &[&str]| {
        let settings = ["train.sync_every=2", "train.eval_every=2", "checkpoint.every=2"].iter().chain(settings);
        let settings = settings.flat_map(|setting| ["--set", setting]).collect::<Vec<_>>();
        sandbox.run(&[&["train", "--device", "cpu,cpu"], &CPUS[..], &settings].concat())
    };
    apart(&["train.eval_every=3"]).fails_with(&["train.eval_every is 3", "train.sync_every is 2", "a multiple of it"]);
    apart(&["checkpoint.every=5"]).fails_with(&["checkpoint.every is 5", "train.sync_every is 2"]);
    apart(&["train.shard_optimizer=true"]).fails_with(&["train.shard_optimizer", "its own moments"]);
    apart(&["train.ema_decay=0.5"]).fails_with(&["train.ema_decay", "between two synchronizations"]);
    assert!(!sandbox.exists("runs"));
    apart(&[]).succeeds();
    assert!(sandbox.read(format!("{TINY_RUN}/config.toml")).contains("sync_every = 2"));
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_launcher_of_several_processes_needs_mpi() {
    let sandbox = Sandbox::new();
    let variables = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let train = [&["train", "--device", "cpu"], &CPUS[..]].concat();
    sandbox.run_with(&train, &variables).fails_with(&["2 processes", "--features mpi"]);
}

#[test]
fn a_resumed_run_on_several_devices_is_the_same_to_the_bit() {
    let sandbox = Sandbox::new();
    let args = ["verify-resume", "--config", "tiny.toml", "--device", "cpu,cpu", "--threads", "1", "--steps", "3"];
    sandbox.run(&args).succeeds().prints(&["identical to the bit", "cpu (1 threads), cpu (1 threads)"]);
}
