//! Runs of several processes, which `mpirun` starts.

#[path = "../common/sandbox.rs"]
mod sandbox;

use sandbox::{Run, Sandbox, TINY_RUN};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Sixteen sequences a step, with dropout and clipping.
const SETTINGS: [&str; 14] = [
    "--set",
    "train.batch_size=4",
    "--set",
    "train.grad_accum_steps=4",
    "--set",
    "train.max_steps=50",
    "--set",
    "model.dropout=0.1",
    "--set",
    "checkpoint.every=10",
    "--set",
    "train.eval_every=20",
    "--set",
    "checkpoint.keep_last=100",
];

fn train(device: &str, settings: &[&str]) -> Vec<String> {
    let args = ["train", "--config", "tiny.toml", "--device", device, "--threads", "1"];
    args.iter().chain(&SETTINGS).chain(settings).map(|arg| arg.to_string()).collect()
}

/// The command under `mpirun`, with so many processes.
fn mpirun(sandbox: &Sandbox, processes: usize, args: &[String]) -> Command {
    let alone = sandbox.command(args);
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &processes.to_string()]);
    command.arg(alone.get_program()).args(alone.get_args()).current_dir(sandbox.path("")).stdin(Stdio::null());
    for (name, value) in alone.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn run(sandbox: &Sandbox, processes: usize, args: &[String]) -> Run {
    Run::new(mpirun(sandbox, processes, args).output().expect("mpirun starts"))
}

/// Weights and moments of the last checkpoint.
fn outcome(sandbox: &Sandbox, run: &str) -> [Vec<u8>; 2] {
    let last = sandbox.read(format!("{run}/last"));
    ["model.safetensors", "optimizer.safetensors"]
        .map(|name| fs::read(sandbox.path(format!("{run}/checkpoints/{}/{name}", last.trim()))).unwrap())
}

fn close(a: &[f64], b: &[f64], within: f64) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < within), "{a:?}\n{b:?}");
}

#[test]
fn processes_have_the_bits_of_threads_and_the_losses_of_one() {
    let sandbox = Sandbox::new();
    sandbox.run(&train("cpu", &["--name", "one"])).succeeds();
    for (processes, threads) in [(2, "cpu,cpu"), (4, "cpu,cpu,cpu,cpu")] {
        let (a, b) = (format!("threads{processes}"), format!("processes{processes}"));
        sandbox.run(&train(threads, &["--name", &a])).succeeds();
        run(&sandbox, processes, &train("cpu", &["--name", &b, "--profile"]))
            .succeeds()
            .prints(&["rank  device", "loss    train"]);
        let [of_threads, of_processes] = [&a, &b].map(|name| outcome(&sandbox, &format!("runs/{name}")));
        assert!(of_threads == of_processes, "{processes}");
        let losses = |name: &str| sandbox.losses(&format!("runs/{name}"), "train");
        assert_eq!(losses(&a), losses(&b));
        close(&losses("one"), &losses(&b), 1e-5);
        let evaluated = |name: &str| sandbox.losses(&format!("runs/{name}"), "eval");
        assert_eq!(evaluated(&a), evaluated(&b));
        close(&evaluated("one"), &evaluated(&b), 1e-5);
    }
}

/// Each process carries the states of its rows, and rank 0 saves those of all.
#[test]
fn processes_of_a_recurrent_model_have_the_bits_of_threads_and_the_losses_of_one() {
    let sandbox = Sandbox::new();
    let settings = |name| ["--set", "model.kind=lstm", "--name", name];
    sandbox.run(&train("cpu", &settings("one"))).succeeds();
    sandbox.run(&train("cpu,cpu", &settings("threads"))).succeeds();
    run(&sandbox, 2, &train("cpu", &settings("processes"))).succeeds();
    let states = |name: &str| {
        let last = sandbox.read(format!("runs/{name}/last"));
        fs::read(sandbox.path(format!("runs/{name}/checkpoints/{}/recurrent_state.safetensors", last.trim()))).unwrap()
    };
    assert!(outcome(&sandbox, "runs/threads") == outcome(&sandbox, "runs/processes"));
    assert!(states("threads") == states("processes"));
    for kind in ["train", "eval"] {
        let [one, threads, processes] =
            ["one", "threads", "processes"].map(|name| sandbox.losses(&format!("runs/{name}"), kind));
        assert!(!one.is_empty() && threads == processes, "{kind}");
        close(&one, &processes, 1e-5);
    }
}

/// With what the optimizer remembers divided, and training apart: also what other processes remember is saved.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn processes_that_divide_moments_or_train_apart_have_the_bits_of_threads() {
    let sandbox = Sandbox::new();
    for (i, setting) in ["train.shard_optimizer=true", "train.sync_every=5"].into_iter().enumerate() {
        let settings = |name| ["--set", setting, "--set", "train.device_batch=[2,1,1]", "--name", name];
        let [a, b] = [format!("threads{i}"), format!("processes{i}")];
        sandbox.run(&train("cpu,cpu,cpu", &settings(&a))).succeeds();
        run(&sandbox, 3, &train("cpu", &settings(&b))).succeeds();
        assert!(outcome(&sandbox, &format!("runs/{a}")) == outcome(&sandbox, &format!("runs/{b}")), "{setting}");
        // Those of several devices add their sums in another order.
        let settings = |name| ["--set", setting, "--name", name];
        let [a, b] = [format!("four{i}"), format!("two-by-two{i}")];
        sandbox.run(&train("cpu,cpu,cpu,cpu", &settings(&a))).succeeds();
        run(&sandbox, 2, &train("cpu,cpu", &settings(&b))).succeeds();
        close(&sandbox.losses(&format!("runs/{a}"), "train"), &sandbox.losses(&format!("runs/{b}"), "train"), 1e-5);
        let [four, two_by_two] = [a, b].map(|name| outcome(&sandbox, &format!("runs/{name}"))[1].len());
        assert_eq!(four, two_by_two, "{setting}: as many moments");
    }
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn processes_of_several_devices_agree_too() {
    let sandbox = Sandbox::new();
    sandbox.run(&train("cpu", &["--name", "one"])).succeeds();
    for name in ["a", "b"] {
        run(&sandbox, 2, &train("cpu,cpu", &["--name", name])).succeeds();
    }
    assert!(outcome(&sandbox, "runs/a") == outcome(&sandbox, "runs/b"));
    close(&sandbox.losses("runs/one", "train"), &sandbox.losses("runs/a", "train"), 1e-5);
}

#[test]
fn ranks_that_were_started_differently_are_refused_with_one_message() {
    let sandbox = Sandbox::new();
    let [a, b] = ["1e-3", "2e-3"].map(|rate| train("cpu", &["--set", &format!("train.learning_rate={rate}")]));
    let mut command = mpirun(&sandbox, 1, &a);
    let other = sandbox.command(&b);
    command.args([":", "-n", "1"]).arg(other.get_program()).args(other.get_args());
    let run = Run::new(command.output().unwrap());
    assert_eq!(run.stderr.matches("train.learning_rate is 0.001 on rank 0 and 0.002 on rank 1").count(), 1, "{run:#?}");
    assert_ne!(run.code, Some(0));
    assert!(!run.stderr.contains("panicked"), "{run:#?}");
}

/// The same configuration in two folders, where the text has another end.
#[test]
fn ranks_with_other_texts_are_refused_with_one_message() {
    let sandboxes = ["first", "other"].map(|end| {
        let sandbox = Sandbox::new();
        sandbox.write("text.txt", format!("{} {end}", "once upon a time ".repeat(200)));
        sandbox
    });
    let args = train("cpu", &["--corpus", "text.txt"]);
    let mut command = mpirun(&sandboxes[0], 1, &args);
    let other = sandboxes[1].command(&args);
    command.args([":", "-n", "1", "-wdir"]).arg(sandboxes[1].path("")).arg(other.get_program()).args(other.get_args());
    let run = Run::new(command.output().unwrap());
    assert_eq!(run.stderr.matches("the text or its tokens differ from rank 0's").count(), 1, "{run:#?}");
    assert_ne!(run.code, Some(0));
}

#[test]
fn sequences_that_cannot_be_divided_are_refused() {
    let sandbox = Sandbox::new();
    let run = run(&sandbox, 3, &train("cpu", &[]));
    assert!(run.stderr.contains("16 sequences a step") && run.stderr.contains("a multiple of 3"), "{run:#?}");
    assert_ne!(run.code, Some(0));
    assert!(!sandbox.exists(TINY_RUN));
}

#[test]
fn processes_of_one_machine_share_its_memory() {
    let sandbox = Sandbox::new();
    let mut job = mpirun(&sandbox, 2, &train("cpu", &["--set", "model.block_size=2048"]));
    let run = Run::new(job.env("RUSTYFLOW_HOST_MEMORY", "3").output().unwrap());
    assert!(run.stderr.contains("this machine has 1.50 MiB available"), "{run:#?}");
    assert_ne!(run.code, Some(0));
}

/// The processes of rank 0 and 1 of this sandbox.
fn pids(sandbox: &Sandbox) -> Vec<i32> {
    let folder = fs::canonicalize(sandbox.path("")).unwrap();
    let of = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let is_here = fs::read_link(entry.path().join("cwd")).ok()? == folder;
        let program = fs::read_to_string(entry.path().join("comm")).ok()?;
        (is_here && program.trim() == "rustyflow").then_some(pid)
    };
    let mut pids: Vec<i32> = fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect();
    pids.sort_unstable();
    pids
}

/// A rank that is killed or frozen ends the job within seconds; what was saved is whole, and the run goes on from it as
/// if nothing had happened.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_rank_that_dies_or_freezes_ends_the_job_and_the_run_goes_on_to_the_bit() {
    let sandbox = Sandbox::new();
    let settings = |name| {
        let further = ["--name", name, "--set", "train.max_steps=400", "--set", "train.comm_timeout=3"];
        train("cpu", &[&further[..], &["--set", "checkpoint.every=20"]].concat())
    };
    run(&sandbox, 2, &settings("whole")).succeeds();
    for (name, signal) in [("killed", "-KILL"), ("frozen", "-STOP")] {
        let job = mpirun(&sandbox, 2, &settings(name)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while !sandbox.exists(format!("runs/{name}/last")) {
            assert!(began.elapsed() < Duration::from_secs(60), "no checkpoint comes");
            std::thread::sleep(Duration::from_millis(5));
        }
        let victim = *pids(&sandbox).last().expect("two processes run");
        assert!(Command::new("kill").args([signal, &victim.to_string()]).status().unwrap().success());
        let struck = Instant::now();
        let run = Run::new(job.wait_with_output().unwrap());
        assert_ne!(run.code, Some(0), "{name}: {run:#?}");
        assert!(struck.elapsed() < Duration::from_secs(15), "{name}: {:?}", struck.elapsed());
        let resumed = [&train("cpu", &[])[..1], &["--resume".into(), format!("runs/{name}")]].concat();
        Run::new(mpirun(&sandbox, 2, &resumed).output().unwrap()).succeeds();
        let [whole, resumed] = ["whole", name].map(|name| outcome(&sandbox, &format!("runs/{name}")));
        assert!(whole == resumed, "{name}");
    }
}
