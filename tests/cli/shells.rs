//! Completions and manual pages.

use crate::sandbox::Sandbox;

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

#[test]
fn bash_takes_the_completions() {
    let sandbox = Sandbox::new();
    let folder = sandbox.command::<&str>(&[]).get_program().to_owned();
    let folder = std::path::Path::new(&folder).parent().unwrap().to_path_buf();
    sandbox.write("rustyflow.bash", sandbox.run(&["completions", "bash"]).succeeds().stdout);
    let script = "source rustyflow.bash; COMP_WORDS=(rustyflow tr); COMP_CWORD=1; \
                  _clap_complete_rustyflow rustyflow tr rustyflow; echo ${COMPREPLY[@]}";
    let path =
        std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let mut bash = std::process::Command::new("bash");
    let output = bash.args(["-c", script]).current_dir(sandbox.path("")).env("PATH", path.unwrap()).output();
    // Where there is no bash, there is nothing to see.
    let Ok(output) = output else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "train", "{output:?}");
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
