//! Completions and manual pages.

use crate::sandbox::Sandbox;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn every_shell_has_a_script_that_asks_the_command() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        sandbox.run(&["completions", shell]).succeeds().prints(&["COMPLETE", "rustyflow"]);
    }
}

/// What a shell is offered for the last of these words.
fn offered(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let index = (words.len() - 1).to_string();
    let variables = [("COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", &*index), ("_CLAP_IFS", "\n")];
    let run = sandbox.run_with(&[&["--"], words].concat(), &variables).succeeds();
    run.stdout.lines().map(str::to_string).collect()
}

#[test]
fn a_shell_is_offered_commands_values_and_runs() {
    let sandbox = Sandbox::new();
    for name in ["first", "second"] {
        sandbox.write(format!("runs/{name}/config.toml"), "");
        sandbox.write(format!("runs/{name}/metrics.jsonl"), "");
    }
    sandbox.write("configs/mine.toml", "");
    let offered = |words: &[&str]| offered(&sandbox, &[&["rustyflow"], words].concat());
    assert_eq!(offered(&["tr"]), ["train"]);
    assert_eq!(offered(&["train", "--learning-r"]), ["--learning-rate"]);
    assert_eq!(offered(&["train", "--device", "g"]), ["gpu", "gpu:0", "gpu:all"]);
    assert_eq!(offered(&["train", "--precision", ""]), ["f32", "mixed"]);
    assert_eq!(offered(&["train", "--tokenizer", "b"]), ["bpe"]);
    assert_eq!(offered(&["train", "configs/m"])[0], "configs/mine.toml");
    assert_eq!(offered(&["train", "--resume", "a"]), ["auto"]);
    assert_eq!(offered(&["train", "--set", "train.schedule=c"]), ["train.schedule=cosine", "train.schedule=constant"]);
    for words in [&["train", "--resume"][..], &["runs", "show"], &["generate", "--model"], &["train", "--init"]] {
        assert_eq!(offered(&[words, &["fi"]].concat()), ["first"], "{words:?}");
    }
}

/// What bash makes of these lines when the tab key is pressed at their ends; `None` where there is no terminal to be
/// had.
fn completed_by_bash(sandbox: &Sandbox, lines: &[&str]) -> Option<Vec<String>> {
    let program = sandbox.command::<&str>(&[]).get_program().to_owned();
    let folder = Path::new(&program).parent().unwrap().to_path_buf();
    sandbox.write("rustyflow.bash", sandbox.run(&["completions", "bash"]).succeeds().stdout);
    let inherited = std::env::var_os("PATH").unwrap();
    let path = [folder].into_iter().chain(std::env::split_paths(&inherited));
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-c", "bash --norc --noprofile -i", "/dev/null"]).current_dir(sandbox.path(""));
    terminal.env("PATH", std::env::join_paths(path).unwrap()).env("TERM", "dumb").env("INPUTRC", "/dev/null");
    let Ok(mut bash) = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED, no `script` of util-linux");
        return None;
    };
    let shown = lines.iter().map(|line| format!("shown {line}\t\n")).collect::<String>();
    let typed = format!(
        "source rustyflow.bash; shown() {{ echo \"<$*>\"; }}; complete -F _clap_complete_rustyflow shown\n{shown}exit\n"
    );
    bash.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    let output = String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap();
    let lines = output.lines().map(|line| line.trim_end_matches('\r'));
    Some(lines.filter_map(|line| Some(line.strip_prefix('<')?.strip_suffix('>')?.to_string())).collect())
}

#[test]
fn bash_completes_words_with_colons_and_equals_signs() {
    let lines = [
        ("tr", "train"),
        ("train --device gpu:a", "train --device gpu:all"),
        ("train --device=gpu:a", "train --device=gpu:all"),
        ("train --set train.sched", "train --set train.schedule="),
        ("train --set train.schedule=cos", "train --set train.schedule=cosine"),
        ("train --set \"train.schedule=cos", "train --set train.schedule=cosine"),
        ("train --set model.kind=qw", "train --set model.kind=qwen3"),
        ("train --set train.epochs=", "train --set train.epochs="),
        ("train --set train.epochs=1 --precision m", "train --set train.epochs=1 --precision mixed"),
    ];
    let Some(completed) = completed_by_bash(&Sandbox::new(), &lines.map(|(typed, _)| typed)) else { return };
    assert_eq!(completed, lines.map(|(_, completed)| completed));
}

#[test]
fn there_is_a_page_for_every_command() {
    let sandbox = Sandbox::new();
    sandbox.run(&["man", "pages/man1"]).succeeds().prints(&["pages/man1"]);
    let names = sandbox.names_in("pages/man1");
    for name in ["rustyflow.1", "rustyflow-train.1", "rustyflow-bench-step.1", "rustyflow-config-show.1"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    let page = |name: &str| sandbox.read(format!("pages/man1/{name}"));
    assert!(page("rustyflow-train.1").contains(".SH EXAMPLES\n"));
    assert!(page("rustyflow.1").contains(".SH EXAMPLES\n") && page("rustyflow.1").contains(".SH \"EXIT STATUS\"\n"));
    for name in &names {
        assert!(!page(name).contains("EXTRA"), "{name}");
    }
}

#[test]
fn the_help_groups_the_flags_of_the_device() {
    let help = Sandbox::new().run(&["train", "--help"]).succeeds().stdout;
    let (_, group) = help.split_once("\nDevice options:\n").expect("a group");
    let group = group.split("\n\n").next().unwrap();
    for flag in ["--device", "--allow-fallback", "--allow-software-gpu", "--matmul-f32", "--threads", "--precision"] {
        assert!(group.contains(flag), "{flag} is not in {group}");
    }
    assert!(!group.contains("--resume"), "{group}");
}
