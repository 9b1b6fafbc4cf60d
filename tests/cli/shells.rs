//! Completions and manual pages.

use crate::sandbox::Sandbox;

#[test]
fn completions_name_every_command() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        sandbox.run(&["completions", shell]).succeeds().prints(&["verify-resume", "learning-rate"]);
    }
}

#[test]
fn bash_takes_the_completions() {
    let sandbox = Sandbox::new();
    sandbox.write("rustyflow.bash", sandbox.run(&["completions", "bash"]).succeeds().stdout);
    let script = "source rustyflow.bash; COMP_WORDS=(rustyflow tr); COMP_CWORD=1; _rustyflow rustyflow tr rustyflow; \
                  echo ${COMPREPLY[@]}";
    let output = std::process::Command::new("bash").args(["-c", script]).current_dir(sandbox.path("")).output();
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
    assert!(sandbox.read("pages/man1/rustyflow-train.1").contains("Examples:"));
}
