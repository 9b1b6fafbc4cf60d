//! What a run's folder shows of it: its page, and `rustyflow runs`.

use crate::sandbox::{Run, Sandbox, TINY_RUN, corpus, json_lines};
use serde_json::Value;
use std::fs;

/// The data in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("the data");
    serde_json::from_str(rest.split_once("</script>").expect("its end").0).expect("it is JSON")
}

/// Two runs that differ in their learning rate: `runs/one` and `runs/two`.
fn two_runs() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.train(&["--name", "one"]).succeeds();
    sandbox.train(&["--name", "two", "--learning-rate", "0.01"]).succeeds();
    sandbox
}

#[test]
fn the_page_of_a_run_has_every_logged_loss() {
    let sandbox = Sandbox::trained();
    let data = data(&sandbox.read(format!("{TINY_RUN}/report.html")));
    for (series, kind) in [("train", "train"), ("validation", "eval")] {
        let values = data["series"][series]["values"].as_array().unwrap();
        let values: Vec<f64> = values.iter().map(|value| value.as_f64().unwrap()).collect();
        assert_eq!(values, sandbox.losses(TINY_RUN, kind));
    }
    assert_eq!(data["summary"]["state"], "finished");
    assert_eq!(data["config"], sandbox.read(format!("{TINY_RUN}/config.toml")));
    assert_eq!(data["samples"].as_array().unwrap().len(), 2, "one after each evaluation");
    let profile: Value = serde_json::from_str(&sandbox.read(format!("{TINY_RUN}/profile.json"))).unwrap();
    assert_eq!(data["profile"], profile);
    assert!(profile["kernels"][0]["seconds"].as_f64().unwrap() > 0.0 && profile["wall"]["total"].is_number());
    assert_eq!(data["start"]["start"]["parameters"], 3936);
    assert_eq!(data["start"]["end"]["steps"], 6);
}

#[test]
fn samples_change_no_number_of_a_run() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--name", "with", "--set", "model.dropout=0.1"]).succeeds();
    sandbox.train(&["--name", "without", "--set", "model.dropout=0.1", "--set", "log.samples=false"]).succeeds();
    assert_eq!(sandbox.timeless_metrics("runs/with"), sandbox.timeless_metrics("runs/without"));
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = |run: &str| fs::read(sandbox.path(format!("runs/{run}/checkpoints/step-000006/{file}"))).unwrap();
        assert_eq!(bytes("with"), bytes("without"), "{file}");
    }
    assert!(!sandbox.exists("runs/without/samples.jsonl"));
    let steps: Vec<Value> =
        json_lines(&sandbox.read("runs/with/samples.jsonl")).iter().map(|l| l["step"].clone()).collect();
    assert_eq!(steps, [3, 6]);
}

#[test]
fn a_run_that_diverges_leaves_a_page_that_says_so() {
    let sandbox = Sandbox::new();
    let settings = ["--set", "guard.non_finite=stop", "--set", "train.grad_clip=0", "--set", "optimizer.kind=sgd"];
    sandbox
        .train(&[&settings[..], &["--learning-rate", "1e30", "--max-steps", "50"]].concat())
        .fails_with(&["diverged"]);
    let data = data(&sandbox.read(format!("{TINY_RUN}/report.html")));
    assert!(data["start"]["error"].as_str().unwrap().contains("diverged"), "{}", data["start"]);
    assert_eq!(data["summary"]["state"], "failed");
    sandbox.run(&["runs", "list"]).succeeds().prints(&[" failed "]);
}

#[test]
fn list_shows_the_newest_run_first() {
    let sandbox = two_runs();
    let run = sandbox.run(&["runs", "list"]).succeeds();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with("run  began") && lines[1].starts_with("two  ") && lines[2].starts_with("one  "));
    let loss = format!("{:.4}", sandbox.losses("runs/one", "eval").into_iter().fold(f64::INFINITY, f64::min));
    assert!(lines[2].contains(" finished ") && lines[2].contains(&loss) && lines[2].ends_with("cpu (1 threads)"));
    let json = json_lines(&sandbox.run(&["runs", "list", "--json"]).succeeds().stdout);
    assert_eq!((json.len(), &json[0]["name"], &json[1]["steps"]), (2, &"two".into(), &6.into()));
    assert_eq!(json[0]["parameters"], 3936);
}

#[test]
fn list_fits_a_hundred_columns_whatever_names_are() {
    let sandbox = Sandbox::trained();
    let long = format!("runs/{}", "a-name-".repeat(20));
    fs::rename(sandbox.path(TINY_RUN), sandbox.path(&long)).unwrap();
    let run = sandbox.run(&["runs", "list"]).succeeds();
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.stdout);
    sandbox.run(&["runs", "list", "--dir", "elsewhere"]).succeeds().prints(&["elsewhere is not there"]);
}

#[test]
fn show_draws_the_loss_and_names_what_was_set() {
    let sandbox = two_runs();
    let run = sandbox.run(&["runs", "show", "two"]).succeeds();
    run.prints(&[
        "two: finished\n",
        "  best        ",
        " at step ",
        "  report      runs/two/report.html\n",
        "│",
        "A  training loss, smoothed, over steps",
    ]);
    let run = sandbox.run(&["runs", "show", "runs/two", "--html", "page.html"]).succeeds();
    assert!(run.stdout.lines().any(|line| line.split_whitespace().eq([
        "train.learning_rate",
        "0.01",
        "(default",
        "0.001)"
    ])));
    assert!(!run.stdout.contains("min_learning_rate"), "nobody set it: {}", run.stdout);
    assert_eq!(data(&sandbox.read("page.html"))["summary"]["name"], "two");
    let json = sandbox.run(&["runs", "show", "two", "--json"]).succeeds().json();
    assert_eq!((&json["state"], &json["settings"]["train.learning_rate"]), (&"finished".into(), &"0.01".into()));
}

#[test]
fn a_name_that_is_nearly_right_is_answered_with_the_one_that_is() {
    let sandbox = two_runs();
    sandbox.run(&["runs", "show", "twoo"]).fails_with(&["no run twoo in runs", "did you mean two?"]);
    sandbox.run(&["runs", "show", "qqqqqq"]).fails_with(&["no run qqqqqq", "`rustyflow runs list`"]);
    sandbox.run(&["runs", "show", "runs/one/checkpoints"]).fails_with(&["checkpoints", "is not the folder of a run"]);
}

#[test]
fn compare_puts_losses_and_settings_side_by_side() {
    let sandbox = two_runs();
    let run = sandbox.run(&["runs", "compare", "one", "two", "--html", "both.html"]).succeeds();
    let words = |name: &str| -> Vec<String> {
        let line = run.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {run:?}"));
        line[name.len()..].split_whitespace().map(str::to_string).collect()
    };
    assert_eq!(words("train.learning_rate"), ["0.001", "0.01"]);
    let last = |run: &str| format!("{:.4}", sandbox.losses(run, "eval").pop().unwrap());
    assert_eq!(words("validation loss at step 6"), [last("runs/one"), last("runs/two")]);
    assert_eq!(words("smoothed training loss at step 6").len(), 2);
    run.stdout.contains("A  one: validation loss").then_some(()).expect("a legend");
    let data = data(&sandbox.read("both.html"));
    assert_eq!(data["runs"].as_array().unwrap().len(), 2);
    assert_eq!(data["config"][0]["key"], "train.learning_rate");
    let json = sandbox.run(&["runs", "compare", "one", "two", "--json"]).succeeds().json();
    assert_eq!((json["runs"].as_array().unwrap().len(), &json["equal"][0]["at"]), (2, &6.0.into()));
    let run: Run = sandbox.run(&["runs", "compare", "one"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}

#[test]
fn losses_of_different_text_are_not_compared() {
    let sandbox = two_runs();
    sandbox.write("other.txt", corpus().replace("owl", "low"));
    sandbox.train(&["--name", "other", "--corpus", "other.txt"]).succeeds();
    let told = "the runs have different texts or tokenizers: their losses cannot be compared";
    for (with, is_same) in [("two", true), ("other", false)] {
        let run = sandbox.run(&["runs", "compare", "one", with, "--html", "both.html"]).succeeds();
        assert_eq!(run.stdout.contains(told), !is_same, "{run:?}");
        assert_eq!(data(&sandbox.read("both.html"))["same_data"], is_same);
    }
}

#[test]
fn rm_removes_runs_and_says_how_much_that_was() {
    let sandbox = two_runs();
    sandbox.run(&["runs", "rm", "one"]).fails_with(&["runs/one", "--yes"]);
    sandbox.write("runs/notes/config.toml", "");
    sandbox.run(&["runs", "rm", "one", "notes", "--yes"]).fails_with(&["notes", "is not the folder of a run"]);
    assert_eq!(sandbox.runs(), ["notes", "one", "two"], "one that is refused keeps all");
    sandbox.run(&["runs", "rm", "one", "--yes"]).succeeds().prints(&["removed runs/one, ", " KiB freed"]);
    assert_eq!(sandbox.runs(), ["notes", "two"]);
}

#[cfg(unix)]
#[test]
fn a_run_that_is_being_trained_is_shown_as_such_and_not_removed() {
    let sandbox = Sandbox::trained();
    let lock = fs::File::options().write(true).open(sandbox.path(format!("{TINY_RUN}/.lock"))).unwrap();
    lock.lock().unwrap();
    sandbox.run(&["runs", "rm", TINY_RUN, "--yes"]).fails_with(&["in use by process "]);
    sandbox.run(&["runs", "list"]).succeeds().prints(&[" running "]);
    drop(lock);
    sandbox.run(&["runs", "list"]).succeeds().prints(&[" finished "]);
}
