//! The scripts that train on one kind of device.

use crate::sandbox::{Run, Sandbox, TINY_RUN};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A script of this repository in a sandbox, with the program that the tests run.
fn script(sandbox: &Sandbox, name: &str, args: &[&str]) -> Run {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name);
    let mut command: Command = sandbox.command::<&str>(&[]);
    let program = command.get_program().to_owned();
    command = Command::new(path);
    command.args(args).current_dir(sandbox.path("")).env("RUSTYFLOW_BIN", program);
    command.envs([("VK_DRIVER_FILES", "/nonexistent"), ("VK_ICD_FILENAMES", "/nonexistent")]);
    Run::new(command.output().expect("the script starts"))
}

#[test]
fn train_cpu_takes_a_configuration_and_further_arguments() {
    let sandbox = Sandbox::new();
    let run = script(&sandbox, "train_cpu.sh", &["tiny.toml", "--threads", "1", "--seed", "2"]).succeeds();
    run.prints(&["device     cpu (1 threads)", &format!("next    rustyflow generate --model {TINY_RUN} ")]);
    let log = sandbox.path("training_log.txt").canonicalize().unwrap();
    let run = script(&sandbox, "train_cpu.sh", &["tiny.toml"]).succeeds();
    assert!(run.stdout.ends_with(&format!("log     {}\n", log.display())), "{}", run.stdout);
    assert!(sandbox.read(format!("{TINY_RUN}/config.toml")).contains("# from --seed"));
}

#[test]
fn train_gpu_falls_back_to_the_cpu_with_a_warning() {
    let sandbox = Sandbox::new();
    let run = script(&sandbox, "train_gpu.sh", &["tiny.toml"]).succeeds();
    assert!(run.stderr.contains("warning: computing on the CPU instead of gpu"), "{run:?}");
    run.prints(&["device     cpu", "next    ", "log     "]);
}

#[test]
fn a_script_fails_as_the_command_does() {
    let sandbox = Sandbox::new();
    let run = script(&sandbox, "train_cpu.sh", &["none.toml"]).fails_with(&["cannot read none.toml"]);
    assert!(!run.stdout.contains("log "), "{run:?}");
}

#[test]
fn a_script_builds_the_release_unless_told_otherwise() {
    let sandbox = Sandbox::new();
    // In place of cargo, a program that says what it was asked for.
    sandbox.write("bin/cargo", "#!/bin/sh\necho \"cargo $*\"\n");
    std::fs::set_permissions(sandbox.path("bin/cargo"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", sandbox.path("bin").display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/train_gpu.sh");
    let mut command = Command::new(script);
    command.args(["--seed", "3"]).current_dir(sandbox.path("")).env("PATH", path).env_remove("RUSTYFLOW_BIN");
    let run = Run::new(command.output().unwrap()).succeeds();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap().join("Cargo.toml");
    run.prints(&[
        "cargo run --quiet --release --bin rustyflow --manifest-path ",
        &format!("{} -- train --device gpu --allow-fallback --seed 3\n", manifest.display()),
    ]);
}
