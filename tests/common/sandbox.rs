//! Runs the command in an empty folder, with a corpus and a model so small that a run takes a fraction of a second.
#![allow(dead_code)] // each test file uses a part

use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Only what differs from the defaults.
pub const TINY: &str = r#"
[data]
corpus = "corpus.txt"
tokenizer = "char"
[model]
n_layer = 1
n_head = 2
n_embd = 16
block_size = 16
[train]
batch_size = 4
max_steps = 6
eval_every = 3
[log]
every = 1
[generate]
max_new_tokens = 8
"#;

/// The folder that a run of [`TINY`] gets on the CPU.
pub const TINY_RUN: &str = "runs/corpus-L1-H2-E16-cpu";

/// A folder of its own for a test, removed when the test is over.
pub struct Sandbox {
    folder: TempDir,
    cache: PathBuf,
}

impl Sandbox {
    /// With `corpus.txt` and `tiny.toml`.
    pub fn new() -> Sandbox {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // One for all tests: a GPU is measured once, not by each of them.
        let sandbox = Sandbox { folder, cache: Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache") };
        sandbox.write("corpus.txt", corpus());
        sandbox.write("tiny.toml", TINY);
        sandbox
    }

    /// With a cache folder of its own, which is not there yet: `cache`.
    pub fn with_own_cache() -> Sandbox {
        let sandbox = Sandbox::new();
        Sandbox { cache: sandbox.path("cache"), ..sandbox }
    }

    /// With a trained model in [`TINY_RUN`].
    pub fn trained() -> Sandbox {
        let sandbox = Sandbox::new();
        sandbox.train(&[]).succeeds();
        sandbox
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is below the sandbox")).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    pub fn exists(&self, name: impl AsRef<Path>) -> bool {
        self.path(name).exists()
    }

    /// The command in this folder, free of the caller's RUSTYFLOW variables and cache. With RUSTYFLOW_BIN set, that
    /// program is tested in place of the one just built.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let program = std::env::var_os("RUSTYFLOW_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_rustyflow").into());
        let mut command = Command::new(program);
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RUSTYFLOW_")) {
            command.env_remove(name);
        }
        command.env("RUSTYFLOW_CACHE_DIR", &self.cache);
        // Without it some drivers complain on standard error.
        command.env("XDG_RUNTIME_DIR", self.folder.path()).env_remove("RUST_LOG");
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Run {
        self.run_with(args, &[])
    }

    /// As [`run`](Self::run), with environment variables.
    pub fn run_with<S: AsRef<OsStr>>(&self, args: &[S], variables: &[(&str, &str)]) -> Run {
        let mut command = self.command(args);
        command.envs(variables.iter().copied());
        Run::new(command.output().expect("the command starts"))
    }

    /// Trains [`TINY`] on one thread, with these further arguments.
    pub fn train(&self, further: &[&str]) -> Run {
        self.run(&[&["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1"], further].concat())
    }

    /// As [`train`](Self::train) on the GPU, software or not.
    pub fn train_on_gpu(&self, further: &[&str]) -> Run {
        self.run(&[&["train", "--config", "tiny.toml", "--device", "gpu", "--allow-software-gpu"], further].concat())
    }

    /// The lines of a run's metrics.
    pub fn metrics(&self, run: &str) -> Vec<Value> {
        json_lines(&self.read(Path::new(run).join("metrics.jsonl")))
    }

    /// The metrics without the one number that depends on the clock.
    pub fn timeless_metrics(&self, run: &str) -> Vec<Value> {
        let mut lines = self.metrics(run);
        for line in &mut lines {
            for key in ["tokens_per_s", "time"] {
                line.as_object_mut().expect("a line is an object").shift_remove(key);
            }
        }
        lines
    }

    /// The losses of `kind` ("train" or "eval") in a run's metrics.
    pub fn losses(&self, run: &str, kind: &str) -> Vec<f64> {
        let lines = self.metrics(run);
        lines.iter().filter(|l| l["kind"] == kind).map(|l| l["loss"].as_f64().expect("a loss")).collect()
    }

    /// Names of the folders in `runs`.
    pub fn runs(&self) -> Vec<String> {
        self.names_in("runs")
    }

    /// Sorted names of what is in a folder; none if there is no such folder.
    pub fn names_in(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// How the command ended, and what it said.
#[derive(Debug)]
pub struct Run {
    /// `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn new(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub fn succeeds(self) -> Run {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// It exited with this code and no error.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Run {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.contains("error:"), "{self:#?}");
        self
    }

    /// It exited with an `error:` that holds all of `parts`, and without a panic: with 2 where the error begins with a
    /// flag, for then the command was called wrongly, else with 1.
    #[track_caller]
    pub fn fails_with(self, parts: &[&str]) -> Run {
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        let (_, message) = self.stderr.rsplit_once("error: ").unwrap_or_else(|| panic!("no error: {self:#?}"));
        assert_eq!(self.code, Some(if message.starts_with("--") { 2 } else { 1 }), "{self:#?}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
        self
    }

    #[track_caller]
    pub fn prints(self, parts: &[&str]) -> Run {
        for part in parts {
            assert!(self.stdout.contains(part), "{part:?} is missing in:\n{}", self.stdout);
        }
        self
    }

    /// Standard output as one JSON object.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:#?}"))
    }
}

pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Whether there is a GPU to test on, software or not. With RUSTYFLOW_REQUIRE_GPU set a missing one is a failure, else
/// the test says that it was skipped.
pub fn has_gpu() -> bool {
    let devices = Sandbox::new().run(&["devices", "--json"]).succeeds().json();
    let adapters = devices["adapters"].as_array().expect("a list of adapters");
    let usable = !adapters.is_empty();
    assert!(usable || std::env::var_os("RUSTYFLOW_REQUIRE_GPU").is_none(), "RUSTYFLOW_REQUIRE_GPU is set: {devices}");
    if !usable {
        eprintln!("SKIPPED, no GPU");
    }
    usable
}

/// 3.6 kB that a model can learn something from: sentences which differ in a few words.
pub fn corpus() -> String {
    let animals = ["fox", "dog", "cat", "owl", "hen"];
    let verbs = ["sees", "likes", "greets", "follows"];
    let places = ["by the river", "in the wood", "on the hill"];
    let sentence = |i: usize| {
        let (who, whom) = (animals[i % 5], animals[(i / 3 + 1) % 5]);
        format!("the {who} {} the {whom} {}.\n", verbs[i % 4], places[i % 3])
    };
    (0..100).map(sentence).collect()
}
