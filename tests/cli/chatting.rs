//! `rustyflow chat`: answers, what is computed for them, and what is kept of a conversation.

use crate::sandbox::{Run, Sandbox, TINY, json_lines};
use serde_json::{Value, json};
use std::io::Write;
use std::process::Stdio;

/// A conversation is 21 characters a turn, of which an answer is one and a line break.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// With `runs/chat`, a model that answers each of a, b, c and d by the next letter. Its context has 64 characters.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let letter = |i: usize| ((b'a' + (i % 4) as u8) as char).to_string();
    let turn = |i: usize| {
        let answer = ((b'b' + (i % 4) as u8) as char).to_string();
        [json!({"role": "user", "content": letter(i)}), json!({"role": "assistant", "content": answer})]
    };
    let talk = |i: usize| [i, i / 4, i / 16][..i % 3 + 1].iter().flat_map(|i| turn(*i)).collect::<Vec<Value>>();
    let with_system = [json!({"role": "system", "content": "next"})].into_iter().chain(turn(0)).collect();
    let lines = (0..64).map(talk).chain([with_system]).map(|talk| format!("{}\n", json!({"messages": talk})));
    sandbox.write("chat.jsonl", lines.collect::<String>());
    sandbox.write("mine.jinja", TEMPLATE);
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 64\nkind = \"llama\""));
    let settings = ["train.learning_rate=0.01", "train.max_steps=300", "train.eval_every=0", "log.every=300"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let args = ["--corpus", "chat.jsonl", "--name", "chat", "--set", "data.chat_template=mine.jinja"];
    sandbox.train(&args.into_iter().chain(settings).collect::<Vec<_>>()).succeeds();
    sandbox
}

/// What becomes of these lines, by the newest run.
fn chat(sandbox: &Sandbox, further: &[&str], lines: &str) -> Run {
    let args = ["chat", "--device", "cpu", "--threads", "1", "-t", "0"];
    let mut command = sandbox.command(&[&args, further].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    // It may have ended before it reads.
    let _ = child.stdin.take().expect("a pipe").write_all(lines.as_bytes());
    Run::new(child.wait_with_output().expect("it ends"))
}

#[test]
fn lines_of_a_pipe_are_answered_line_by_line() {
    let sandbox = sandbox();
    let run = chat(&sandbox, &[], "a\n\nb\r\nc").succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.contains("note:")), ("b\nc\nd\n", true), "{run:?}");
    assert_eq!(run.stderr.matches("oldest turns are dropped").count(), 1, "{}", run.stderr);
    let run = chat(&sandbox, &["--system", "next"], "d\n").succeeds();
    assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("e\n", ""));
    // Of a text in the template's form `generate` makes the same.
    let args = ["generate", "--model", "runs/chat", "--device", "cpu", "-t", "0", "--stop", "\n"];
    let generated = sandbox.run(&[&args[..], &["--prompt", "<user>c\n<assistant>"]].concat()).succeeds();
    assert_eq!(generated.stdout, "<user>c\n<assistant>d\n");
}

#[test]
fn only_what_is_new_is_computed_and_the_oldest_is_forgotten() {
    let sandbox = sandbox();
    let run = chat(&sandbox, &["--json"], "a\nb\nc\n/reset\nc\n").succeeds();
    assert_eq!(run.stderr, "");
    let answers = json_lines(&run.stdout);
    let number = |answer: &Value, key: &str| answer[key].as_u64().unwrap_or_else(|| panic!("{key} in {answer}"));
    let told: Vec<_> = answers
        .iter()
        .map(|answer| {
            let counts = ["prompt_tokens", "computed_tokens", "new_tokens", "forgotten_messages"];
            (answer["text"].as_str().unwrap(), counts.map(|key| number(answer, key)))
        })
        .collect();
    // The line break of the first answer was drawn and not computed. The third prompt would take 61 of 64 tokens, so
    // both turns go; what is left begins as the first did.
    let expected = [("b", [19, 19, 2, 0]), ("c", [40, 20, 2, 0]), ("d", [19, 13, 2, 4]), ("d", [19, 19, 2, 0])];
    assert_eq!(told, expected);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["kind"], number(answer, "answer")), (&"answer".into(), i as u64 + 1));
        assert_eq!(answer["end"], "end_of_answer");
        let [first, all] = ["first_token_seconds", "seconds"].map(|key| answer[key].as_f64().unwrap());
        assert!(0.0 < first && first <= all && answer["tokens_per_s"].as_f64().unwrap() > 0.0, "{answer}");
    }
}

#[test]
fn an_answer_that_is_cut_says_why() {
    let sandbox = sandbox();
    let never_ends = ["--logit-bias", "\n=-inf", "-n"];
    let cut =
        |most: &str, further: &[&str]| chat(&sandbox, &[&never_ends[..], &[most], further].concat(), "a\n").succeeds();
    let run = cut("5", &[]);
    assert_eq!((run.stdout.len(), run.stderr.as_str()), (6, "note: cut after 5 tokens; --max-tokens allows more\n"));
    assert_eq!(cut("5", &["--json"]).json()["end"], "max_tokens");
    let run = cut("99", &[]);
    assert_eq!(run.stdout.len(), 64 - 19 + 1);
    assert_eq!(run.stderr, "note: cut at the end of the model's context of 64 tokens\n");
    assert_eq!(cut("99", &["--json"]).json()["end"], "context");
    chat(&sandbox, &[], &"a".repeat(64)).fails_with(&["the message has 82 tokens", "context has 64"]);
    let stopped = chat(&sandbox, &["--stop", "c"], "b\n").succeeds();
    assert_eq!((stopped.stdout.as_str(), stopped.stderr.as_str()), ("\n", ""));
}

#[test]
fn a_saved_conversation_is_one_that_can_be_learnt() {
    let sandbox = sandbox();
    let run = chat(&sandbox, &["--system", "next"], "a\nb\n/save talk.jsonl\n/reset\nc\n/save talk.jsonl\n").succeeds();
    assert_eq!(run.stdout, "b\nc\nd\n");
    assert!(run.stderr.contains("5 messages are in talk.jsonl\n3 messages are in talk.jsonl"), "{}", run.stderr);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let saved = json_lines(&sandbox.read("talk.jsonl"));
    let [system, user, assistant] = [message("system", "next"), message("user", "c"), message("assistant", "d")];
    assert_eq!(saved[1], json!({"messages": [system, user, assistant]}));
    assert_eq!(saved[0]["messages"].as_array().unwrap().len(), 5);
    let args = ["eval", "--model", "runs/chat", "--device", "cpu", "--json", "--text", "talk.jsonl"];
    // A letter and a line break of each of three answers.
    assert_eq!(sandbox.run(&args).succeeds().json()["tokens"], 6);
    // A line that somebody left without its end stays a line.
    sandbox.write("talk.jsonl", "{\"text\": \"a\"}");
    chat(&sandbox, &[], "a\n/save talk.jsonl\n").succeeds();
    assert_eq!(json_lines(&sandbox.read("talk.jsonl")).len(), 2);
    chat(&sandbox, &[], "/save talk.jsonl\n").fails_with(&["/save", "nothing has been said"]);
    chat(&sandbox, &[], "a\n/save\n").fails_with(&["/save", "name the file"]);
    chat(&sandbox, &[], "a\n/save nowhere/talk.jsonl\n").fails_with(&["nowhere/talk.jsonl"]);
}

#[test]
fn commands_are_no_messages() {
    let sandbox = sandbox();
    let run = chat(&sandbox, &[], "/help\na\n/quit\nb\n").succeeds();
    assert_eq!(run.stdout, "b\n");
    assert!(run.stderr.contains("/reset") && run.stderr.contains("Ctrl-C"), "{}", run.stderr);
    chat(&sandbox, &[], "/exit\n").fails_with(&["unknown command /exit", "/help"]);
    // A message, whose / the tokenizer of these characters does not know.
    chat(&sandbox, &[], "//a\n").fails_with(&["character '/'", "at byte 6"]);
}

#[test]
fn a_template_is_taken_from_the_model_or_named() {
    let sandbox = sandbox();
    let checkpoint = "runs/chat/checkpoints/step-000300";
    // As a folder from elsewhere, without a manifest that misses what is removed.
    for name in ["manifest.json", "chat_template.jinja"] {
        std::fs::remove_file(sandbox.path(format!("{checkpoint}/{name}"))).unwrap();
    }
    let told = ["has no chat template", "tokenizer_config.json", "--chat-template", "generate"];
    chat(&sandbox, &["--model", checkpoint], "a\n").fails_with(&told);
    let named = ["--model", checkpoint, "--chat-template", "mine.jinja"];
    assert_eq!(chat(&sandbox, &named, "a\n").succeeds().stdout, "b\n");
    chat(&sandbox, &["--chat-template", "nowhere.jinja"], "").fails_with(&["nowhere.jinja"]);
    sandbox.write("bad.jinja", "{{ raise_exception('no such role') }}");
    chat(&sandbox, &["--chat-template", "bad.jinja"], "").fails_with(&["bad.jinja", "no such role"]);
    // What the model's folder says of the end of a text holds too: here the letter c, whose number follows the order
    // of characters.
    let characters: std::collections::BTreeSet<char> = "\n<>abcdenxtusrim".chars().chain("assistant".chars()).collect();
    let c = characters.iter().position(|&character| character == 'c').unwrap();
    sandbox.write(format!("{checkpoint}/generation_config.json"), format!("{{\"eos_token_id\": [{c}]}}"));
    let run = chat(&sandbox, &named, "b\na\n").succeeds();
    assert_eq!(run.stdout, "\nb\n");
    sandbox.write(format!("{checkpoint}/generation_config.json"), "{\"eos_token_id\": \"c\"}");
    chat(&sandbox, &named, "b\n").fails_with(&["generation_config.json", "eos_token_id is \"c\""]);
}

#[test]
fn a_run_warns_of_an_end_of_an_answer_that_is_no_special_token() {
    let sandbox = Sandbox::new();
    sandbox.write("mine.jinja", TEMPLATE);
    let message = |role: &str| json!({"role": role, "content": "abcd"});
    let line = format!("{}\n", json!({"messages": [message("user"), message("assistant")]}));
    sandbox.write("chat.jsonl", line.repeat(20));
    let args = ["--corpus", "chat.jsonl", "--max-steps", "1", "--set", "model.block_size=64"];
    let run = sandbox.train(&[&args[..], &["--set", "data.chat_template=mine.jinja"]].concat()).succeeds();
    let told = "the chat template ends an answer with \"\\n\", which is not a special token of the tokenizer";
    assert_eq!(run.stderr.matches(told).count(), 1, "{run:?}");
}

#[test]
fn special_tokens_are_no_part_of_an_answer_unless_asked_for() {
    let sandbox = sandbox();
    let checkpoint = "runs/chat/checkpoints/step-000300";
    // As a folder from elsewhere, whose letter c is a special token.
    std::fs::remove_file(sandbox.path(format!("{checkpoint}/manifest.json"))).unwrap();
    let path = format!("{checkpoint}/tokenizer.json");
    let mut pipeline: Value = serde_json::from_str(&sandbox.read(&path)).unwrap();
    let token = json!({"id": pipeline["model"]["vocab"]["c"], "content": "c", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    pipeline["added_tokens"].as_array_mut().unwrap().push(token);
    sandbox.write(&path, pipeline.to_string());
    let talk = |further: &[&str]| chat(&sandbox, &[&["--model", checkpoint], further].concat(), "a\nb\n").succeeds();
    assert_eq!(talk(&[]).stdout, "b\n\n");
    assert_eq!(talk(&["--special-tokens"]).stdout, "b\nc\n");
    assert_eq!(json_lines(&talk(&["--json"]).stdout)[1]["text"], "");
    assert_eq!(json_lines(&talk(&["--json", "--special-tokens"]).stdout)[1]["text"], "c");
}

#[cfg(target_os = "linux")]
#[test]
fn a_person_sees_a_prompt_and_may_mend_a_mistake() {
    let sandbox = sandbox();
    let command = "chat --model runs/chat --device cpu --threads 1 -t 0";
    let Some(run) = crate::tui::in_terminal_with_key(&sandbox, "NO_COLOR=1", command, Some(b"a\r/exit\rb\r\x04"))
    else {
        return;
    };
    let shown = run.stdout;
    assert!(shown.contains("llama, context 64; /help lists the commands, Ctrl-D ends"), "{shown}");
    assert!(shown.contains("b\n\n> ") && shown.contains("c\n\n> "), "{shown}");
    assert!(shown.contains("error: unknown command /exit") && shown.contains("code 0"), "{shown}");
}
