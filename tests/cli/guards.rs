//! What keeps a run safe from a second process and from a disk that is full or may not be written to.

use crate::sandbox::{Run, Sandbox, TINY_RUN, has_gpu};
use rustyflow::testing::assert_close;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn a_second_process_is_told_of_the_first() {
    let sandbox = Sandbox::new();
    let args = ["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1"];
    let endless = "train.max_steps=100000000 train.warmup_steps=0 checkpoint.every=1";
    let endless: Vec<&str> = endless.split(' ').flat_map(|s| ["--set", s]).collect();
    let mut command = sandbox.command(&[&args[..], &endless].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("validation loss")).unwrap().unwrap();
    let process = format!("is in use by process {}, a running training", child.id());
    for run in [TINY_RUN, "auto"] {
        sandbox.run(&["train", "--resume", run]).fails_with(&[TINY_RUN, &process]);
    }
    // Reading is free.
    sandbox.run(&["generate", "--device", "cpu", "--model", TINY_RUN, "-n", "1"]).succeeds();
    child.kill().unwrap();
    child.wait().unwrap();
    // The file is still there; the process is not.
    assert_eq!(sandbox.read(format!("{TINY_RUN}/.lock")), format!("{}\n", child.id()));
    let step: usize = sandbox.read(format!("{TINY_RUN}/last")).trim().trim_start_matches("step-").parse().unwrap();
    let steps = format!("train.max_steps={}", step + 2);
    sandbox.run(&["train", "--resume", "auto", "--set", &steps]).succeeds();
}

/// The command in a shell that lets no file grow beyond so many KiB, as on a disk that is full.
fn run_on_a_small_disk(sandbox: &Sandbox, kib: usize, args: &[&str]) -> Run {
    let whole = sandbox.command(args);
    let mut command = Command::new("bash");
    // Ignored, the signal becomes an error of the write.
    command.arg("-c").arg(format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"")).arg("bash");
    command.arg(whole.get_program()).args(whole.get_args()).current_dir(sandbox.path("."));
    for (name, value) in whole.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Run::new(command.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn on_a_full_disk_the_checkpoints_from_before_stay_as_they_were() {
    let sandbox = Sandbox::trained();
    let checkpoints = format!("{TINY_RUN}/checkpoints");
    let before = sandbox.names_in(&checkpoints);
    // The weights fit, the moments do not.
    let args = ["train", "--resume", TINY_RUN, "--set", "train.max_steps=9", "--set", "train.eval_every=0"];
    run_on_a_small_disk(&sandbox, 24, &args).fails_with(&[
        "the checkpoint of step 9 could not be saved",
        ".step-000009.unfinished/optimizer.safetensors",
        "the checkpoint of step 6 is untouched",
        &format!("`rustyflow train --resume {TINY_RUN}`"),
    ]);
    assert_eq!(sandbox.names_in(&checkpoints), before, "what could not be finished is removed");
    let run = sandbox.run(&["train", "--resume", TINY_RUN]).succeeds();
    run.prints(&["resumed    after step 6\n", " after 9 steps, "]);
}

#[test]
fn a_run_that_may_not_be_written_to_is_refused_and_stays_as_it_was() {
    let sandbox = Sandbox::trained();
    let folder = sandbox.path(TINY_RUN);
    let metrics = sandbox.read(format!("{TINY_RUN}/metrics.jsonl"));
    for path in [folder.join(".lock"), folder.clone()] {
        let mode = if path.is_dir() { 0o555 } else { 0o444 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let may_write = fs::write(folder.join("probe"), "").is_ok();
    if may_write {
        eprintln!("SKIPPED, this user may write everywhere");
    } else {
        let resume = ["train", "--resume", TINY_RUN, "--set", "train.max_steps=9"];
        sandbox.run(&resume).fails_with(&["cannot open", ".lock", "ermission denied"]);
        assert_eq!(sandbox.read(format!("{TINY_RUN}/metrics.jsonl")), metrics);
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn on_a_gpu_with_too_little_memory_batches_are_halved_and_the_losses_stay() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let settings = "train.batch_size=64 model.block_size=64 train.eval_batches=1 generate.max_new_tokens=1";
    let settings: Vec<&str> = settings.split(' ').flat_map(|s| ["--set", s]).collect();
    let args = ["train", "--config", "tiny.toml", "--device", "gpu", "--allow-software-gpu", "--set", "run.name=a"];
    let args = [&args[..], &settings].concat();
    sandbox.run(&args).succeeds();
    // Half of what it takes.
    let run = sandbox.run_with(&args, &[("RUSTYFLOW_GPU_MEMORY", "3")]).succeeds();
    for part in ["is out of memory: cannot", "continuing with micro-batches of 32, accumulated over 2 passes"] {
        assert!(run.stderr.contains(part), "{part:?} is missing in: {}", run.stderr);
    }
    for kind in ["train", "eval"] {
        let (whole, halved) = (sandbox.losses("runs/a", kind), sandbox.losses("runs/a-2", kind));
        // The same sums in another order.
        assert_close(kind, &halved, &whole, 1e-5, 0.0);
    }
    let wide = [&args[..], &["--set", "model.n_embd=256"]].concat();
    let run = sandbox.run_with(&wide, &[("RUSTYFLOW_GPU_MEMORY", "1")]);
    run.fails_with(&["training does not fit the memory", "has 1.00 MiB available", "use a smaller model.n_embd"]);
    let run = sandbox.run_with(&args, &[("RUSTYFLOW_GPU_MEMORY", "all")]);
    run.fails_with(&["RUSTYFLOW_GPU_MEMORY=all", "MiB"]);
}

/// Weights, gradients and moments of 76 MiB each, in buffers of at most 64 MiB.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn in_smaller_buffers_a_run_has_the_same_bits() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::new();
    let settings = "model.n_layer=6 model.n_embd=512 model.n_head=8 train.max_steps=2 train.batch_size=1 \
                    train.warmup_steps=1 train.eval_batches=1 generate.max_new_tokens=1 log.samples=false";
    let settings: Vec<&str> = settings.split_whitespace().flat_map(|s| ["--set", s]).collect();
    let train = |name: &str, further: &[&str], variables: &[(&str, &str)]| {
        let args = ["train", "--config", "tiny.toml", "--device", "gpu", "--allow-software-gpu", "--name", name];
        sandbox.run_with(&[&args[..], &settings, further].concat(), variables)
    };
    let small = [("RUSTYFLOW_GPU_BUFFER", "64")];
    for (kind, further) in [("plain", &[][..]), ("int8", &["--set", "optimizer.state_dtype=int8"])] {
        let (whole, parts) = (format!("{kind}-whole"), format!("{kind}-parts"));
        train(&whole, further, &[]).succeeds();
        train(&parts, further, &small).succeeds();
        let numbers = |name: &str| ["train", "eval"].map(|kind| sandbox.losses(&format!("runs/{name}"), kind));
        assert_eq!(numbers(&whole), numbers(&parts), "{kind}");
        let file = |name: &str, file: &str| {
            std::fs::read(sandbox.path(format!("runs/{name}/checkpoints/step-000002/{file}"))).unwrap()
        };
        for name in ["model.safetensors", "optimizer.safetensors"] {
            assert!(file(&whole, name) == file(&parts, name), "{kind}: {name} differs");
        }
    }
    // A table of 304 x 65,536 numbers has 76 MiB: some rows lie in another buffer, and the gradient of what is
    // multiplied by both is a sum in another order.
    let wide = ["--set", "model.vocab_multiple=65536", "--set", "model.n_embd=304", "--set", "model.n_head=4"];
    train("wide-whole", &wide, &[]).succeeds();
    train("wide-parts", &wide, &small).succeeds();
    for kind in ["train", "eval"] {
        let [whole, parts] = ["wide-whole", "wide-parts"].map(|name| sandbox.losses(&format!("runs/{name}"), kind));
        assert_close(kind, &parts, &whole, 1e-5, 0.0);
    }
    train("wrong", &[], &[("RUSTYFLOW_GPU_BUFFER", "many")]).fails_with(&["RUSTYFLOW_GPU_BUFFER=many", "MiB"]);
}
