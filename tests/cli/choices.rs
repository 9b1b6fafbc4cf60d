//! `rustyflow eval --choices`: accuracy on multiple choice.

use crate::sandbox::{Run, Sandbox, TINY_RUN};
use serde_json::json;

const EVAL: [&str; 9] =
    ["eval", "--model", TINY_RUN, "--device", "cpu", "--threads", "1", "--choices", "questions.jsonl"];

/// A model that knows its sentences, and questions about how they go on.
fn knowing() -> Sandbox {
    let sandbox = Sandbox::new();
    let settings = ["train.max_steps=300", "train.learning_rate=0.01", "train.eval_every=0"];
    sandbox.train(&settings.map(|s| ["--set", s]).concat()).succeeds();
    let question = |question: &str, choices: [&str; 3], answer: serde_json::Value| {
        json!({ "question": question, "choices": choices, "answer": answer, "source": "the corpus" }).to_string()
    };
    let lines = [
        question("the fox sees the dog by", ["the river.", "the tree.", "river the."], json!(0)),
        question("the hen", ["wood the likes", "likes the", "the the the"], json!("B")),
        question("the owl greets the cat ", ["no the hill", "in in wood", "on the hill"], json!("on the hill")),
        String::new(),
        question("", ["the dog", "god eht", "t t t t"], json!(0)),
    ];
    sandbox.write("questions.jsonl", lines.join("\n"));
    sandbox
}

fn eval(sandbox: &Sandbox, further: &[&str]) -> Run {
    sandbox.run(&[&EVAL, further].concat())
}

#[test]
fn a_model_answers_by_likelihood() {
    let sandbox = knowing();
    let result = eval(&sandbox, &["--json"]).succeeds().json();
    assert_eq!((&result["questions"], &result["correct"], &result["correct_norm"]), (&json!(4), &json!(4), &json!(4)));
    assert_eq!((&result["accuracy"], &result["accuracy_stderr"]), (&json!(1.0), &json!(0.0)));
    assert!((result["chance"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12);
    eval(&sandbox, &[]).succeeds().prints(&[
        "questions      questions.jsonl, 4; guessing 33.33%",
        "accuracy       4 of 4: 100.00%, standard error 0.00%",
        "  per byte     4 of 4",
        "answer loss",
    ]);
    // However many are computed at once.
    let one = eval(&sandbox, &["--json", "--batch-size", "1"]).succeeds().json();
    let (loss, of_one) = (result["answer_loss"].as_f64().unwrap(), one["answer_loss"].as_f64().unwrap());
    assert!((loss - of_one).abs() < 1e-5 * loss, "{loss} and {of_one}");
    // Wrong answers are counted as wrong.
    sandbox.write("questions.jsonl", sandbox.read("questions.jsonl").replace("\"answer\":0", "\"answer\":1"));
    assert_eq!(eval(&sandbox, &["--json"]).succeeds().json()["correct"], json!(2));
}

#[test]
fn a_long_question_loses_its_beginning_and_a_long_choice_is_refused() {
    let sandbox = knowing();
    let told = eval(&sandbox, &[]).succeeds();
    assert!(told.stderr.contains("choices follow the end of their question alone: the context is 16"), "{told:?}");
    eval(&sandbox, &["--context", "8"]).fails_with(&["questions.jsonl: line 1: the choice \"the river.\"", "holds 8"]);
    eval(&sandbox, &["--context", "17"]).fails_with(&["--context is 17; the model's is 1 to 16"]);
}

#[test]
fn a_file_that_holds_no_questions_is_refused_by_its_line() {
    let sandbox = knowing();
    let good = sandbox.read("questions.jsonl");
    for (line, told) in [
        ("not json", "line 6: expected"),
        (r#"{"question": "the", "choices": ["a", "b"], "answer": "C"}"#, "line 6: answer is \"C\"; expected an index"),
        (r#"{"question": "é", "choices": ["a", "b"], "answer": 0}"#, "line 6: tokenizer char"),
    ] {
        sandbox.write("questions.jsonl", format!("{good}\n{line}\n"));
        eval(&sandbox, &[]).fails_with(&["questions.jsonl", told]);
    }
    let both = eval(&sandbox, &["--text", "corpus.txt"]);
    assert!(both.code == Some(2) && both.stderr.contains("cannot be used with"), "{both:?}");
    sandbox.write("questions.jsonl", "");
    eval(&sandbox, &[]).fails_with(&["questions.jsonl: has no question"]);
}
