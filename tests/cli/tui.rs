//! `train --tui`: what is left in the terminal, and what happens where there is none. And the bar without it.

use crate::sandbox::{Run, Sandbox, TINY_RUN};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn without_a_terminal_it_says_so_and_trains_as_ever() {
    let run = Sandbox::new().train(&["--tui"]).succeeds();
    assert_eq!(run.stderr, "note: --tui needs a terminal, which standard output is not: continuing without\n");
    run.prints(&[
        "device     cpu (1 threads)",
        "step      3  validation loss ",
        &format!("next    rustyflow generate --model {TINY_RUN} "),
    ]);
}

#[test]
fn fails_with_what_writes_to_the_same_place() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--tui", "--json"]);
    assert!(run.code == Some(2) && run.stderr.contains("'--tui' cannot be used with '--json'"), "{run:#?}");
    sandbox.train(&["--tui", "--quiet"]).fails_with(&["--tui cannot be used with --quiet"]);
    assert_eq!(sandbox.runs(), [""; 0]);
}

/// Runs the command in a terminal of 100 by 30, in a shell that was prepared so; `None` where there is no `script` to
/// make one.
fn in_terminal(sandbox: &Sandbox, prepare: &str, command: &str) -> Option<Run> {
    in_terminal_with_key(sandbox, prepare, command, None)
}

/// As [`in_terminal`], with this key pressed once the command has had a second.
pub fn in_terminal_with_key(sandbox: &Sandbox, prepare: &str, command: &str, key: Option<&[u8]>) -> Option<Run> {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED, no `script` of util-linux");
        return None;
    }
    let program = sandbox.command::<&str>(&[]);
    let mut script = Command::new("script");
    let program_path = program.get_program().display();
    let line = format!("stty cols 100 rows 30; {prepare} {program_path} {command}; echo code $?; stty -a");
    script.args(["-q", "-c", &line, "/dev/null"]).current_dir(program.get_current_dir().expect("it has one"));
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = script.spawn().expect("it starts");
    if let Some(key) = key {
        std::thread::sleep(Duration::from_secs(1));
        child.stdin.as_mut().expect("it is a pipe").write_all(key).expect("it reads");
    }
    let run = Run::new(child.wait_with_output().expect("it ends"));
    let stdout = run.stdout.replace("\r\n", "\n");
    Some(Run { stdout, ..run })
}

/// What stands in the terminal after the view has closed, which must be as it was before.
#[track_caller]
fn after_the_view(run: &Run) -> &str {
    let (before, view) = run.stdout.split_once(ENTER).expect("it opens");
    assert!(before.contains("device     cpu (1 threads)"), "what comes first stays too: {before}");
    let (view, after) = view.rsplit_once(LEAVE).expect("it closes");
    assert!(view.contains("loss") && view.contains("tokens/s"), "{view}");
    for setting in ["icanon", "echo", "isig", "opost"] {
        assert!(
            after.contains(&format!("{setting} ")) && !after.contains(&format!("-{setting} ")),
            "{setting}: {after}"
        );
    }
    after
}

#[test]
fn the_terminal_is_given_back_with_the_summary_in_it() {
    let sandbox = Sandbox::new();
    let command = "train --config tiny.toml --device cpu --threads 1 --tui";
    let Some(run) = in_terminal(&sandbox, "", command) else { return };
    let after = after_the_view(&run);
    for part in ["step      3  validation loss ", "sample  ", " after 6 steps, ", "next    ", "code 0\n"] {
        assert!(after.contains(part), "{part:?} is missing in {after}");
    }
    assert!(!after.contains('\x1b') || after.starts_with("\x1b[?25h"), "nothing is drawn any more: {after:?}");
}

#[test]
fn q_stops_the_run_as_an_interrupt_does() {
    let sandbox = Sandbox::new();
    // Without it the run lasts half a minute.
    let command = "train --config tiny.toml --device cpu --threads 1 --tui --max-steps 30000";
    let Some(run) = in_terminal_with_key(&sandbox, "", command, Some(b"q")) else { return };
    let after = after_the_view(&run);
    for part in ["interrupted before 30000", "--resume runs/", "code 130\n"] {
        assert!(after.contains(part), "{part:?} is missing in {after}");
    }
}

#[test]
fn the_bar_tells_no_time_left_before_the_first_step() {
    let sandbox = Sandbox::new();
    let command = "train --config tiny.toml --device cpu --threads 1 --max-steps 1000 --set train.eval_every=0";
    let Some(run) = in_terminal(&sandbox, "", command) else { return };
    let (early, late): (Vec<&str>, Vec<&str>) =
        run.stdout.split('\r').filter(|bar| bar.contains("/1000  ")).partition(|bar| bar.contains(" 0/1000  "));
    assert!(!early.is_empty() && !early.iter().any(|bar| bar.contains("ETA")), "{early:?}");
    assert!(late.iter().any(|bar| bar.contains(" ETA ")), "{late:?}");
}

#[test]
fn the_terminal_is_given_back_before_an_error_or_the_word_on_a_signal() {
    let sandbox = Sandbox::new();
    let command = "train --config tiny.toml --device cpu --threads 1 --tui --set train.max_steps=100000000";
    // No disk holds the first checkpoint.
    let Some(run) = in_terminal(&sandbox, "trap '' XFSZ; ulimit -f 24;", command) else { return };
    let after = after_the_view(&run);
    assert!(after.contains("error: ") && after.contains("could not be saved") && after.contains("code 1\n"), "{after}");
    let killed = format!("{command} --name b & sleep 1; kill -TERM $!; wait $!");
    let run = in_terminal(&sandbox, "", &killed).expect("as before");
    let after = after_the_view(&run);
    for part in ["stopping after this step", "interrupted before 100000", "--resume runs/b", "code 143\n"] {
        assert!(after.contains(part), "{part:?} is missing in {after}");
    }
}
