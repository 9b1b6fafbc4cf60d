//! `rustyflow train`: what it prints and what it leaves behind.

use crate::sandbox::{Sandbox, TINY_RUN, corpus, json_lines};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn keys(line: &Value) -> Vec<&str> {
    line.as_object().expect("a line is an object").keys().map(String::as_str).collect()
}

#[test]
fn the_built_in_quickstart_trains_on_the_sample() {
    let sandbox = Sandbox::new();
    // Its own model takes minutes; corpus and schedule stay.
    let smaller = "data.tokenizer=char model.n_layer=1 model.n_embd=16 model.block_size=16 train.batch_size=2 \
                   train.max_steps=2 train.eval_batches=2 generate.max_new_tokens=4";
    let smaller: Vec<&str> = smaller.split(' ').flat_map(|s| ["--set", s]).collect();
    let run = sandbox.run(&[&["train", "--device", "cpu", "--threads", "1"][..], &smaller].concat()).succeeds();
    run.prints(&["corpus     sample, ", "folder     runs/sample-L1-H4-E16-cpu"]);
    assert!(sandbox.read("runs/sample-L1-H4-E16-cpu/config.toml").contains("# from the built-in quickstart:"));
}

#[test]
fn a_run_says_what_it_does() {
    let run = Sandbox::new().train(&[]).succeeds();
    let run = run.prints(&[
        "device     cpu (1 threads)",
        "corpus     corpus, ",
        "tokenizer char, vocabulary ",
        "model      3.94k parameters: 1 layer, 2 heads, width 16, context 16",
        "training   6 steps of 64 tokens, ",
        " epochs, 0 steps of warm-up\n",
        &format!("folder     {TINY_RUN}\n"),
        "step      3  validation loss ",
    ]);
    let end: Vec<&str> = run.stdout.lines().rev().take(4).collect();
    assert!(
        end[2].starts_with("loss    train ") && end[2].contains(", validation ") && end[2].contains("after 6 steps")
    );
    assert!(end[1].starts_with("sample  ") && end[3].is_empty(), "{end:?}");
    assert_eq!(end[0], format!("next    rustyflow generate --model {TINY_RUN} --prompt \"...\""));
}

#[test]
fn the_report_has_its_documented_form() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--profile"]).succeeds();
    let (_, report) = run.stdout.split_once("[Profiling report]\n").expect("a report");
    let mut lines = report.lines();
    let kernels = lines.next().unwrap();
    assert!(kernels.starts_with("  - CPU kernels: ") && kernels.ends_with("% of training time)"), "{kernels}");
    let (_, total) = kernels.split_once("  total ").expect("a total");
    let (seconds, percent) = total.split_once(" s (").expect("a share");
    seconds.parse::<f64>().expect("seconds");
    let percent: f64 = percent.split_once('%').unwrap().0.parse().expect("a percentage");
    assert!(percent > 0.0 && percent <= 100.0, "{percent}");
    let host = lines.next().unwrap();
    assert!(host.starts_with("  - Host: data ") && host.contains(" s, other ") && host.ends_with("%)"), "{host}");
    let memory = lines.next().unwrap();
    assert!(memory.starts_with("  - CPU memory: ") && memory.ends_with(" buffers"), "{memory}");
    let wall = lines.next().unwrap();
    assert!(wall.starts_with("  - Run: ") && wall.contains(" s on the wall: ") && wall.ends_with("%)"), "{wall}");
    let start = lines.next().unwrap();
    assert!(start.starts_with("  - Start: first step after ") && start.contains(" first step "), "{start}");
    let average = lines.next().unwrap();
    assert!(average.starts_with("[AVG_EPOCH_TIME] - (no whole epoch: 0."), "{average}");
    let table = ["kernel", "calls", "ms", "share", "GFLOP/s", "GB/s"];
    assert_eq!(
        (lines.next(), lines.next().unwrap().split_whitespace().collect::<Vec<_>>()),
        (Some(""), table.to_vec())
    );
    let first = lines.next().unwrap();
    assert!(first.contains('%'));
    let mut largest = lines.skip_while(|line| *line != "  Largest kernels:").skip(1);
    let first = first.split_whitespace().next().unwrap();
    for name in [first, "", ""] {
        let line = largest.next().expect("three kernels");
        assert!(line.starts_with(&format!("  - {name}")) && line.ends_with("s per call"), "{line}");
    }
    let saved = sandbox.read(format!("{TINY_RUN}/profile.txt"));
    assert!(run.stdout.contains(&saved), "profile.txt is the report: {saved}");
}

#[test]
fn the_report_is_printed_only_where_it_is_asked_for_and_is_in_the_folder() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&[]).succeeds();
    assert!(!run.stdout.contains("[Profiling report]") && !run.stdout.contains("[AVG_EPOCH_TIME]"), "{run:?}");
    assert!(sandbox.read(format!("{TINY_RUN}/profile.txt")).contains("Largest kernels"));
}

#[test]
fn a_run_that_overfits_says_so_at_its_end_and_in_its_report() {
    let sandbox = Sandbox::new();
    // Few words to learn by heart, and others to validate on.
    sandbox.write("train.txt", "the fox sees the dog by the river.\n".repeat(20));
    sandbox.write("valid.txt", "red hens wade home to bed; five birds hid.\n".repeat(4));
    let settings = "data.corpus=train=train.txt,validation=valid.txt train.max_steps=60 train.learning_rate=0.02";
    let settings: Vec<&str> = settings.split(' ').flat_map(|s| ["--set", s]).collect();
    let run = sandbox.train(&[&settings[..], &["--name", "heart", "--set", "data.tokenizer=bpe"]].concat()).succeeds();
    let told = "this run overfits: training loss ";
    assert!(run.stderr.contains(told) && run.stderr.contains(", validation loss "), "{run:?}");
    assert!(run.stderr.contains("`generate` and `eval` take that checkpoint"), "{run:?}");
    assert!(sandbox.read("runs/heart/report.html").contains(told));
    sandbox.run(&["runs", "show", "heart"]).succeeds().prints(&[told]);
    let record: Value = serde_json::from_str(&sandbox.read("runs/heart/run.json")).unwrap();
    assert!(record["end"]["overfitting"].is_string(), "{record}");
    let run = sandbox.train(&["--name", "learns"]).succeeds();
    assert!(!run.stderr.contains("overfits"), "{run:?}");
}

#[test]
fn a_small_run_is_evaluated_five_times() {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", crate::sandbox::TINY.replace("eval_every = 3\n", ""));
    let evaluations = |run: &str| sandbox.losses(&format!("runs/{run}"), "eval").len();
    let origin = |run: &str| {
        let config = sandbox.read(format!("runs/{run}/config.toml"));
        config.lines().find(|line| line.starts_with("eval_every")).expect("the key").to_string()
    };
    sandbox.train(&["--max-steps", "20", "--name", "steps"]).succeeds();
    assert_eq!(evaluations("steps"), 5);
    assert!(origin("steps").starts_with("eval_every = 4 ") && origin("steps").ends_with("a fifth of max_steps"));
    sandbox.train(&["--epochs", "1", "--name", "epochs"]).succeeds();
    assert!((5..=6).contains(&evaluations("epochs")), "{}", evaluations("epochs"));
    assert!(origin("epochs").ends_with("# default: a fifth of the steps of epochs"), "{}", origin("epochs"));
    sandbox.run(&["train", "--resume", "steps", "--max-steps", "40"]).succeeds();
    assert!(origin("steps").starts_with("eval_every = 8 "), "{}", origin("steps"));
}

#[test]
fn the_validation_loss_falls() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "train.max_steps=60", "--set", "train.eval_every=20"]).succeeds();
    let losses = sandbox.losses(TINY_RUN, "eval");
    assert_eq!(losses.len(), 3);
    assert!(losses.is_sorted_by(|a, b| a > b) && losses[2] < losses[0] - 0.1, "{losses:?}");
}

#[test]
fn a_run_leaves_its_folder() {
    let sandbox = Sandbox::trained();
    let names = [
        ".lock",
        "best",
        "checkpoints",
        "config.toml",
        "finished",
        "last",
        "metrics.jsonl",
        "profile.json",
        "profile.txt",
        "report.html",
        "run.json",
        "samples.jsonl",
        "samples.txt",
    ];
    assert_eq!(sandbox.names_in(TINY_RUN), names);
    let step = format!("{TINY_RUN}/checkpoints/step-000006");
    let files = "config.json config.toml generation_config.json manifest.json model.safetensors optimizer.safetensors \
                 special_tokens_map.json tokenizer.json tokenizer_config.json trainer_state.json";
    assert_eq!(sandbox.names_in(&step).join(" "), files);
    assert_eq!(sandbox.read(format!("{TINY_RUN}/last")), "step-000006\n");
    assert!(sandbox.read(format!("{TINY_RUN}/best")).starts_with("step-00000"));
    assert!(!sandbox.read(format!("{TINY_RUN}/samples.txt")).trim().is_empty());
}

#[test]
fn every_line_of_the_metrics_has_its_documented_keys() {
    let sandbox = Sandbox::trained();
    let lines = sandbox.metrics(TINY_RUN);
    let of = |kind: &str| lines.iter().filter(|l| l["kind"] == kind).collect::<Vec<_>>();
    let (train, eval) = (of("train"), of("eval"));
    assert_eq!((train.len(), eval.len(), lines.len()), (6, 2, 8));
    for line in train {
        let expected = ["kind", "step", "epoch", "loss", "learning_rate", "grad_norm", "tokens", "tokens_per_s"];
        assert_eq!(keys(line), [&expected[..], &["time"]].concat());
        // Nothing is known of the time before the first.
        let step = line["step"].as_u64().unwrap();
        assert_eq!(line["tokens"], 64 * step);
        assert_eq!(line["tokens_per_s"].as_f64().is_some_and(|speed| speed > 0.0), step > 1, "{line}");
    }
    for line in eval {
        let expected = ["kind", "split", "step", "loss", "perplexity", "bits_per_byte"];
        let of_text = ["lossless", "unknown_share", "tokens", "context", "stride", "time"];
        assert_eq!(keys(line), [&expected[..], &of_text].concat());
        let time: jiff::Timestamp = line["time"].as_str().unwrap().parse().unwrap();
        assert!(jiff::Timestamp::now().duration_since(time).as_secs().abs() < 600, "{line}");
        let (loss, perplexity) = (line["loss"].as_f64().unwrap(), line["perplexity"].as_f64().unwrap());
        assert!((loss.exp() - perplexity).abs() < 1e-9 * perplexity);
    }
}

#[test]
fn every_run_appends_a_block_to_the_training_log() {
    let sandbox = Sandbox::trained();
    sandbox.train(&[]).succeeds();
    let log = sandbox.read("training_log.txt");
    let blocks: Vec<&str> = log.split("== ").skip(1).collect();
    assert_eq!(blocks.len(), 2);
    for part in [
        "device ",
        "model ",
        "steps ",
        "training time ",
        "seconds per epoch ",
        "speed ",
        "kernels, host ",
        "final losses ",
    ] {
        assert!(blocks[0].contains(&format!("\n{part}")), "{part} is missing in {log}");
    }
    assert!(blocks[0].lines().next().unwrap().ends_with(TINY_RUN));
}

#[test]
fn a_quiet_run_says_where_it_is_and_no_more() {
    let sandbox = Sandbox::new();
    // Something to warn of, and something to note.
    sandbox.write("tiny.toml", crate::sandbox::TINY.to_string() + "[device]\nf32_products = \"fma\"\n");
    sandbox.write("corpus.txt", corpus().split_at(60).0);
    let run = sandbox.train(&["--quiet"]).succeeds();
    assert_eq!((&*run.stdout, &*run.stderr), (&*format!("{TINY_RUN}\n"), ""));
    assert!(sandbox.exists(format!("{TINY_RUN}/finished")), "{run:?}");
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn every_epoch_has_a_line() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--epochs", "3", "--name", "passes", "--json"]).succeeds();
    let epochs: Vec<serde_json::Value> = run
        .stdout
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .filter(|l: &serde_json::Value| l["kind"] == "epoch")
        .collect();
    let numbers: Vec<u64> = epochs.iter().map(|line| line["epoch"].as_u64().unwrap()).collect();
    assert!(numbers == [1, 2] || numbers == [1, 2, 3], "{numbers:?}");
    let log = sandbox.read("training_log.txt");
    for (line, number) in epochs.iter().zip(1..) {
        let (label, seconds) = (format!("  epoch {number:<10}"), line["seconds"].as_f64().unwrap());
        let told: f64 = log.lines().find_map(|line| line.strip_prefix(&*label)).expect("its line").parse().unwrap();
        assert!((told - seconds).abs() < 0.006 * seconds, "{seconds} in {log}");
    }
    // But not where lines would be all that is seen.
    let run = sandbox.train(&["--epochs", "40", "--name", "plain", "--set", "train.eval_every=0"]).succeeds();
    let run = run.prints(&["\nepoch     1  "]);
    assert!(run.stdout.matches("\nepoch ").count() < 40, "{run:?}");
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_report_adds_up_to_the_time_on_the_wall() {
    let sandbox = Sandbox::with_own_cache();
    sandbox.write("corpus.txt", corpus().repeat(300)); // so that to tokenize it takes a time
    let settings = "train.max_steps=1500 train.eval_every=100 checkpoint.every=300 log.every=10 data.tokenizer=bpe \
                    generate.max_new_tokens=300";
    let settings: Vec<&str> = settings.split_whitespace().flat_map(|s| ["--set", s]).collect();
    let started = std::time::Instant::now();
    sandbox.train(&settings).succeeds();
    let seconds = started.elapsed().as_secs_f64();
    let report = sandbox.read(format!("{TINY_RUN}/profile.txt"));
    let line = report.lines().find_map(|line| line.strip_prefix("  - Run: ")).expect("a line on the run");
    let (total, phases) = line.split_once(" s on the wall: ").unwrap();
    let total: f64 = total.parse().unwrap();
    // What is left is the start of the process, and its end.
    assert!(total > 0.5 && total <= seconds && total > seconds - 0.3, "{total} of {seconds} s");
    let phases: Vec<(&str, f64)> = phases
        .split(", ")
        .map(|phase| {
            let (name, time) = phase.rsplit_once(" s").unwrap().0.rsplit_once(' ').unwrap();
            (name, time.parse().unwrap())
        })
        .collect();
    let names: Vec<&str> = phases.iter().map(|(name, _)| *name).collect();
    for name in ["training", "evaluation", "checkpoints", "text and tokens", "sampling", "unaccounted"] {
        assert!(names.contains(&name), "{name} is missing in {line}");
    }
    let sum: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
    assert!((sum - total).abs() < 0.006 * phases.len() as f64, "{line} adds up to {sum}");
    let (_, unaccounted) = phases.last().unwrap();
    assert!(*unaccounted < 0.02 * total, "{line}");
}

#[test]
fn a_training_log_goes_where_it_can_be_written() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("training_log.txt")).unwrap();
    let run = sandbox.train(&[]).succeeds();
    let told = "the timings of this run go to runs/training_log.txt (log.file)";
    assert!(run.stderr.contains("cannot open training_log.txt") && run.stderr.contains(told), "{run:?}");
    assert!(sandbox.read("runs/training_log.txt").contains(TINY_RUN));
    // Also of a run that is resumed from elsewhere.
    sandbox.run(&["train", "--resume", TINY_RUN, "--max-steps", "7"]).succeeds();
    assert_eq!(sandbox.read("runs/training_log.txt").matches("== ").count(), 2);
    sandbox.train(&["--set", "log.file=elsewhere.txt"]).succeeds();
    assert!(sandbox.read("elsewhere.txt").contains(TINY_RUN));
    sandbox.train(&["--set", "log.file="]).succeeds();
    assert_eq!(sandbox.read("runs/training_log.txt").matches("== ").count(), 2, "none is wanted");
    let before = sandbox.runs();
    sandbox.train(&["--set", "log.file=missing/log.txt"]).fails_with(&["cannot open missing/log.txt"]);
    assert_eq!(sandbox.runs(), before, "nothing was begun");
}

#[test]
fn a_second_run_gets_a_number_and_the_first_stays() {
    let sandbox = Sandbox::trained();
    let before = sandbox.read(format!("{TINY_RUN}/metrics.jsonl"));
    sandbox.train(&[]).succeeds().prints(&["runs/corpus-L1-H2-E16-cpu-2"]);
    assert_eq!(sandbox.runs(), ["corpus-L1-H2-E16-cpu", "corpus-L1-H2-E16-cpu-2"]);
    assert_eq!(sandbox.read(format!("{TINY_RUN}/metrics.jsonl")), before);
}

#[test]
fn the_configuration_left_behind_reproduces_the_run() {
    let sandbox = Sandbox::new();
    let settings = ["train.learning_rate=3e-3", "model.dropout=0.1", "optimizer.eps=1e-7", "run.seed=9"];
    sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
    let config = format!("{TINY_RUN}/config.toml");
    sandbox.run(&["train", "--config", &config]).succeeds();
    assert_eq!(sandbox.timeless_metrics(TINY_RUN), sandbox.timeless_metrics(&format!("{TINY_RUN}-2")));
}

#[test]
fn the_same_seed_gives_the_same_run_for_any_number_of_threads() {
    let sandbox = Sandbox::trained();
    sandbox.run(&["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "2"]).succeeds();
    let [one, two] = [TINY_RUN.to_string(), format!("{TINY_RUN}-2")].map(|run| sandbox.timeless_metrics(&run));
    assert_eq!(one, two);
}

#[test]
fn another_seed_gives_another_run() {
    let sandbox = Sandbox::trained();
    sandbox.train(&["--seed", "4"]).succeeds();
    let second = sandbox.losses(&format!("{TINY_RUN}-2"), "train");
    assert!(sandbox.losses(TINY_RUN, "train").iter().zip(&second).all(|(a, b)| a != b));
}

#[test]
fn json_output_is_an_object_a_line() {
    let sandbox = Sandbox::new();
    let run = sandbox.train(&["--json"]).succeeds();
    let lines = json_lines(&run.stdout);
    let kinds: Vec<&str> = lines.iter().map(|l| l["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds.first(), Some(&"start"));
    assert_eq!(kinds.last(), Some(&"end"));
    for kind in ["train", "eval", "checkpoint", "sample"] {
        assert!(kinds.contains(&kind), "{kind} is missing in {kinds:?}");
    }
    let end = lines.last().unwrap();
    assert_eq!((&end["steps"], &end["interrupted"]), (&6.into(), &false.into()));
    assert!(end["profile"]["kernels"].as_array().is_some_and(|k| !k.is_empty()));
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_says() {
    let sandbox = Sandbox::new();
    let args = ["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1"];
    let mut child =
        sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap(); // and closes it
    assert!(line.starts_with("device"));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
    assert!(sandbox.exists(format!("{TINY_RUN}/last")));
}

#[cfg(unix)]
#[test]
fn an_error_that_nobody_reads_is_no_panic() {
    let sandbox = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = sandbox.command(&["train", "--config", "none.toml"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
