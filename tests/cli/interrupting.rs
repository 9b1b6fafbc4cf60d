//! Ctrl-C.

use crate::sandbox::{Run, Sandbox, TINY_RUN, corpus};
use rustyflow::ops::random::splitmix64;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Output = BufReader<std::process::ChildStdout>;

/// A run with these settings, once it has printed a line with `sign`.
fn train_until(sign: &str, sandbox: &Sandbox, settings: &str, flags: &[&str]) -> (Child, Output) {
    let args = ["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1"];
    let settings: Vec<&str> = settings.split(' ').flat_map(|s| ["--set", s]).collect();
    let mut command = sandbox.command(&[&args[..], &settings, flags].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(sign) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended early: {:?}", child.wait_with_output());
    }
    (child, stdout)
}

fn interrupt(child: &Child) {
    send("-INT", child);
}

fn send(signal: &str, child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
}

/// What the rest of the run said, once it has ended.
fn finish(child: Child, mut stdout: Output) -> Run {
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let mut run = Run::new(child.wait_with_output().unwrap());
    run.stdout = text;
    run
}

#[test]
fn an_interrupted_run_is_saved_and_reported() {
    let sandbox = Sandbox::new();
    let (child, stdout) = train_until("validation loss", &sandbox, "train.max_steps=100000000 log.every=1000", &[]);
    let started = Instant::now();
    interrupt(&child);
    let run = finish(child, stdout).ends_with(130);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(run.stderr.contains("stopping after this step; press Ctrl-C again to stop at once"), "{run:?}");
    let run =
        run.prints(&["steps, interrupted before 100000000", &format!("next    rustyflow train --resume {TINY_RUN}\n")]);
    let last = sandbox.read(format!("{TINY_RUN}/last"));
    let step: usize = last.trim().trim_start_matches("step-").parse().unwrap();
    assert!(run.stdout.contains(&format!(" after {step} steps, ")), "{last} {run:?}");
    assert!(sandbox.exists(format!("{TINY_RUN}/checkpoints/{}/model.safetensors", last.trim())));
    assert!(sandbox.read("training_log.txt").contains("interrupted"));
    sandbox.run(&["generate", "--device", "cpu", "--model", TINY_RUN, "-n", "2"]).succeeds();
}

#[test]
fn an_interrupted_run_says_how_to_go_on_and_does_so_to_the_bit() {
    let settings = "train.max_steps=2000 train.eval_every=400 log.every=7 model.dropout=0.1 checkpoint.every=150";
    let undisturbed = Sandbox::new();
    undisturbed.train(&settings.split(' ').flat_map(|s| ["--set", s]).collect::<Vec<_>>()).succeeds();
    let sandbox = Sandbox::new();
    let (child, stdout) = train_until("validation loss", &sandbox, settings, &[]);
    send("-TERM", &child);
    let how = format!("rustyflow train --resume {TINY_RUN}\n");
    finish(child, stdout).ends_with(143).prints(&[&how, "interrupted before 2000"]);
    assert_ne!(sandbox.read(format!("{TINY_RUN}/last")), "step-002000\n", "it was interrupted");
    sandbox.run(&["train", "--resume", TINY_RUN]).succeeds().prints(&[" after 2000 steps, "]);
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let read = |s: &Sandbox| std::fs::read(s.path(format!("{TINY_RUN}/checkpoints/step-002000/{name}"))).unwrap();
        assert!(read(&sandbox) == read(&undisturbed), "{name}");
    }
    assert_eq!(sandbox.timeless_metrics(TINY_RUN), undisturbed.timeless_metrics(TINY_RUN));
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn an_evaluation_that_was_cut_off_is_made_up_for() {
    let sandbox = Sandbox::new();
    sandbox.write("corpus/train.txt", corpus());
    sandbox.write("corpus/valid.txt", corpus().repeat(300)); // a second or more
    let settings = "data.corpus=corpus train.max_steps=2 train.eval_every=1";
    let (child, stdout) = train_until("step      1/2", &sandbox, settings, &[]);
    interrupt(&child);
    finish(child, stdout).ends_with(130);
    let run = sandbox.run(&["train", "--resume", "auto"]).succeeds();
    run.prints(&["step      1  validation loss", "step      2  validation loss"]);
    let kinds: Vec<(u64, String)> = sandbox
        .metrics("runs/corpus-L1-H2-E16-cpu")
        .iter()
        .map(|l| (l["step"].as_u64().unwrap(), l["kind"].as_str().unwrap().to_string()))
        .collect();
    let expected = [(1, "train"), (1, "eval"), (2, "train"), (2, "eval")].map(|(s, k)| (s, k.to_string()));
    assert_eq!(kinds, expected);
}

#[test]
fn an_interrupt_does_not_wait_for_an_evaluation() {
    let sandbox = Sandbox::new();
    sandbox.write("corpus/train.txt", corpus());
    sandbox.write("corpus/valid.txt", corpus().repeat(3000)); // 11 MB: a minute or more
    let settings = "data.corpus=corpus train.max_steps=9 train.eval_every=1";
    let (child, stdout) = train_until("step      1/9", &sandbox, settings, &[]);
    let started = Instant::now();
    interrupt(&child);
    let run = finish(child, stdout).ends_with(130);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    run.prints(&[" after 1 step, interrupted before 9"]);
}

#[test]
fn a_second_interrupt_ends_the_run_at_once() {
    let sandbox = Sandbox::new();
    // An update that lasts for minutes, so that the second signal finds it under way.
    let settings = "train.batch_size=64 train.grad_accum_steps=1000000 train.max_steps=2";
    let (child, stdout) = train_until("folder", &sandbox, settings, &[]);
    // Nothing is printed when the update begins; an interrupt before that would end the run in good order.
    std::thread::sleep(Duration::from_secs(1));
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(500)); // two signals that are pending at once count as one
    let started = Instant::now();
    interrupt(&child);
    let run = finish(child, stdout);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(!run.stdout.contains("next    "));
}

#[test]
fn an_interrupted_run_reports_to_machines_too() {
    let sandbox = Sandbox::new();
    let settings = "train.max_steps=100000000 train.eval_every=0";
    let (child, stdout) = train_until("\"train\"", &sandbox, settings, &["--json"]);
    interrupt(&child);
    let run = finish(child, stdout).ends_with(130);
    let end: serde_json::Value = serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&end["kind"], &end["interrupted"]), (&"end".into(), &true.into()));
}

#[test]
fn interrupted_text_ends_with_its_line() {
    let sandbox = Sandbox::trained();
    let args = ["generate", "--device", "cpu", "--threads", "1", "-n", "4000000000"];
    let mut child = sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_exact(&mut [0; 20]).unwrap();
    interrupt(&child);
    let run = finish(child, stdout).ends_with(130);
    assert!(run.stdout.ends_with('\n'), "{run:?}");
}

/// A conversation with a model that talks for seconds, and its first words.
fn chat(sandbox: &Sandbox) -> (Child, Output) {
    let args = ["chat", "--device", "cpu", "--threads", "1", "--chat-template", "plain.jinja", "-n", "4000000000"];
    // The first token is the line break, which ends an answer.
    let mut command = sandbox.command(&[&args[..], &["--logit-bias", "0=-inf"]].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"the\n").unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_exact(&mut [0; 20]).unwrap();
    (child, stdout)
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn an_interrupt_ends_an_answer_and_not_the_conversation() {
    let sandbox = Sandbox::new();
    sandbox.write("corpus.txt", corpus().repeat(10));
    sandbox.write("plain.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
    sandbox.train(&["--block-size", "8192", "--batch-size", "1", "--max-steps", "1"]).succeeds();
    let (mut child, stdout) = chat(&sandbox);
    interrupt(&child);
    child.stdin.as_mut().unwrap().write_all(b"/save talk.jsonl\n").unwrap();
    drop(child.stdin.take());
    let run = finish(child, stdout).succeeds();
    let saved: serde_json::Value = serde_json::from_str(&sandbox.read("talk.jsonl")).unwrap();
    let answer = saved["messages"][1]["content"].as_str().unwrap();
    assert!(run.stdout.ends_with('\n') && (20..7000).contains(&answer.len()), "{}: {run:?}", answer.len());
    // Where nothing is under way the signal ends the program: here it waits for the next line.
    let (child, mut stdout) = chat(&sandbox);
    interrupt(&child);
    stdout.read_until(b'\n', &mut vec![]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&child);
    finish(child, stdout).ends_with(130);
    let (child, stdout) = chat(&sandbox);
    send("-TERM", &child);
    finish(child, stdout).ends_with(143);
}

#[test]
fn eval_ends_at_the_first_signal() {
    let sandbox = Sandbox::trained();
    sandbox.write("long.txt", corpus().repeat(5000));
    let args = ["eval", "--device", "cpu", "--threads", "1", "--text", "long.txt", "--stride", "1"];
    let child = sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    // Not an interrupt: whoever runs the tests in the background of a shell has those ignored, and so has the command.
    send("-TERM", &child);
    let run = Run::new(child.wait_with_output().unwrap());
    assert_eq!((run.code, run.stdout.as_str()), (Some(143), ""), "the signal ends it: {run:?}");
}

#[test]
fn what_comes_before_the_first_step_ends_at_the_first_signal() {
    let sandbox = Sandbox::new();
    // Its pairs take BPE a minute to count and merge.
    sandbox.write("long.txt", random_words(20_000_000));
    let settings = ["data.corpus=long.txt", "data.tokenizer=bpe", "data.vocab_size=4096"];
    let settings = settings.iter().flat_map(|s| ["--set", s]);
    let args: Vec<&str> = ["train", "--config", "tiny.toml", "--device", "cpu"].into_iter().chain(settings).collect();
    let child = sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let started = Instant::now();
    send("-TERM", &child);
    let run = Run::new(child.wait_with_output().unwrap());
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    run.ends_with(143);
    assert!(!sandbox.exists("runs"), "no run was begun");
}

/// No interrupt, but a run that something happens to meanwhile.
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_training_log_that_cannot_be_written_any_more_costs_a_run_nothing() {
    let sandbox = Sandbox::new();
    let (child, stdout) = train_until("step      1/3000", &sandbox, "train.max_steps=3000 train.eval_every=0", &[]);
    std::fs::create_dir(sandbox.path("training_log.txt")).unwrap();
    let run = finish(child, stdout).succeeds();
    assert!(
        run.stderr.contains("note: the run's timings are in its folder alone: cannot open training_log"),
        "{run:?}"
    );
    assert!(sandbox.exists(format!("{TINY_RUN}/finished")) && sandbox.exists(format!("{TINY_RUN}/profile.txt")));
}

/// So many bytes of words that hardly repeat.
fn random_words(bytes: usize) -> String {
    let mut state = 7;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        let word = splitmix64(&mut state);
        text.extend((0..3 + word % 9).map(|i| char::from(b'a' + (word >> (5 * i) & 31) as u8 % 26)));
        text.push(if word.is_multiple_of(11) { '\n' } else { ' ' });
    }
    text
}
