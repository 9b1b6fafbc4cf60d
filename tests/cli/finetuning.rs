//! Documents of which only a part is learnt: prompts with completions, and conversations.

use crate::sandbox::{Sandbox, TINY, json_lines};
use serde_json::{Value, json};

/// Questions with answers: the answer is the letter that follows the one in the question.
fn questions(count: usize) -> Vec<[String; 2]> {
    let letter = |i: usize| (b'a' + i as u8) as char;
    (0..count).map(|i| [format!("after {} comes ", letter(i % 4)), letter(i % 4 + 1).to_string()]).collect()
}

fn lines(all: impl IntoIterator<Item = Value>) -> String {
    all.into_iter().map(|line| format!("{line}\n")).collect()
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let completions = |[prompt, completion]: [String; 2]| json!({"prompt": prompt, "completion": completion});
    sandbox.write("sums.jsonl", lines(questions(60).into_iter().map(completions)));
    let chat = |[question, answer]: [String; 2]| {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        json!({"messages": [message("user", &question), message("assistant", &answer)]})
    };
    sandbox.write("chat.jsonl", lines(questions(60).into_iter().map(chat)));
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 64"));
    sandbox
}

fn notes(output: &str) -> String {
    json_lines(output)
        .iter()
        .filter_map(|line| line["text"].as_str().map(str::to_string))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn completions_are_learnt_and_prompts_only_read() {
    let sandbox = sandbox();
    let settings = ["--corpus", "sums.jsonl", "--name", "x", "--max-steps", "300", "--json"];
    let fast = ["--set", "train.learning_rate=0.01", "--set", "train.eval_every=0", "--set", "log.every=50"];
    let run = sandbox.train(&[&settings[..], &fast].concat()).succeeds();
    let notes = notes(&run.stdout);
    // Of 17 characters and the end: 16 places a document, three in a row of 64.
    assert!(notes.contains("documents are packed into") && notes.contains("rows of 64 tokens"), "{notes}");
    let eval = ["eval", "--model", "runs/x", "--device", "cpu", "--json", "--text", "sums.jsonl"];
    let result = sandbox.run(&eval).succeeds().json();
    // The answer and the end of the text of each of 60.
    assert_eq!(result["tokens"], 120, "{result}");
    assert!(result["loss"].as_f64().unwrap() < 0.05, "{result}");
    // What was never predicted was not learnt: letters of the question.
    sandbox.write("question.txt", "after a comes after b comes after c comes ");
    let eval = ["eval", "--model", "runs/x", "--device", "cpu", "--json", "--text", "question.txt"];
    let unlearnt = sandbox.run(&eval).succeeds().json();
    assert!(unlearnt["loss"].as_f64().unwrap() > 3.0, "{unlearnt}");
}

#[test]
fn packing_changes_rows_and_not_the_loss() {
    let sandbox = sandbox();
    let chat = ["--corpus", "chat.jsonl", "--set", "data.chat_template=chatml", "--block-size", "256"];
    let settings = [&chat[..], &["--max-steps", "1", "--json"]].concat();
    let run = |name: &str, further: &[&str]| {
        let output = sandbox.train(&[&settings[..], &["--name", name], further].concat()).succeeds().stdout;
        let loss = json_lines(&output).iter().find_map(|line| line["loss"].as_f64().filter(|_| line["kind"] == "eval"));
        (notes(&output), loss.expect("an evaluation"))
    };
    // Without an update both evaluate the model that they began with.
    let still = ["--set", "train.learning_rate=1e-30", "--set", "train.min_learning_rate=0"];
    let (packed, loss) = run("packed", &still);
    let (alone, loss_alone) = run("alone", &[&still[..], &["--no-pack"]].concat());
    assert!((loss - loss_alone).abs() < 1e-5 * loss, "{loss} {loss_alone}");
    assert_ne!(packed, alone);
    let count = |notes: &str| {
        notes.split(" documents are packed into").next().unwrap().rsplit('\n').next().unwrap().to_string()
    };
    assert_eq!(count(&packed), count(&alone));
}

#[test]
fn a_conversation_is_written_by_its_template_which_goes_with_the_model() {
    let sandbox = sandbox();
    let args = ["--corpus", "chat.jsonl", "--name", "x"];
    sandbox.train(&args).fails_with(&["chat.jsonl", "line 1", "data.chat_template", "chatml"]);
    let rewrites = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}";
    sandbox.write("mine.jinja", rewrites);
    let run = sandbox.train(&[&args[..], &["--set", "data.chat_template=mine.jinja"]].concat());
    run.fails_with(&["mine.jinja", "generation"]);
    let with_prompt = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
                       {% if add_generation_prompt %}<assistant>{% endif %}";
    sandbox.write("mine.jinja", with_prompt);
    sandbox.train(&[&args[..], &["--set", "data.chat_template=mine.jinja"]].concat()).succeeds();
    let checkpoint = "runs/x/checkpoints/step-000006";
    assert_eq!(sandbox.read(format!("{checkpoint}/chat_template.jinja")), with_prompt);
    // The checkpoint writes conversations by itself, and a run goes on without the file that it began with.
    std::fs::remove_file(sandbox.path("mine.jinja")).unwrap();
    let eval = ["eval", "--model", "runs/x", "--device", "cpu", "--json", "--text", "chat.jsonl"];
    // A letter and a line break of each.
    assert_eq!(sandbox.run(&eval).succeeds().json()["tokens"], 120);
    sandbox.run(&["train", "--resume", "runs/x", "--max-steps", "8", "--device", "cpu", "--threads", "1"]).succeeds();
}

/// A folder `model` as of a chat model: `<|im_end|>` ends answers and texts, and the model's own files name a token
/// more. Returns the numbers of `<|endoftext|>` and `<|im_end|>`.
fn chat_model(sandbox: &Sandbox) -> [u64; 2] {
    let args = ["--corpus", "chat.jsonl", "--name", "base", "--max-steps", "1", "--set", "model.vocab_multiple=64"];
    sandbox.train(&[&args[..], &["--set", "data.chat_template=chatml"]].concat()).succeeds();
    std::fs::rename(sandbox.path("runs/base/checkpoints/step-000001"), sandbox.path("model")).unwrap();
    std::fs::remove_file(sandbox.path("model/manifest.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&sandbox.read("model/tokenizer.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let end_of_text = added[0]["id"].as_u64().unwrap();
    for (id, content) in [(end_of_text + 1, "<|im_start|>"), (end_of_text + 2, "<|im_end|>")] {
        let mut token = added[0].clone();
        (token["id"], token["content"]) = (id.into(), content.into());
        added.push(token);
    }
    sandbox.write("model/tokenizer.json", tokenizer.to_string());
    let config = json!({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"});
    sandbox.write("model/tokenizer_config.json", config.to_string());
    let ends = json!({"eos_token_id": [7, end_of_text], "pad_token_id": end_of_text});
    sandbox.write("model/generation_config.json", ends.to_string());
    [end_of_text, end_of_text + 2]
}

#[test]
fn a_chat_model_keeps_its_special_tokens_and_what_ends_an_answer() {
    let sandbox = sandbox();
    let [end_of_text, end_of_answer] = chat_model(&sandbox);
    let read = |name: &str| -> Value { serde_json::from_str(&sandbox.read(name)).unwrap() };
    let ends = json!([7, end_of_text, end_of_answer]);
    let keeps = |folder: &str| {
        let generation = read(&format!("{folder}/generation_config.json"));
        assert_eq!(
            (&generation["eos_token_id"], &generation["pad_token_id"]),
            (&ends, &end_of_text.into()),
            "{folder}"
        );
        let config = read(&format!("{folder}/tokenizer_config.json"));
        let tokens = ["bos_token", "eos_token", "pad_token"].map(|key| config[key].as_str().unwrap_or_default());
        assert_eq!(tokens, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"], "{folder}");
    };
    let args = ["train", "--init", "model", "--corpus", "chat.jsonl", "--device", "cpu", "--max-steps", "1"];
    let train = |name: &str, further: &[&str]| {
        let next = format!("next    rustyflow chat --model runs/{name}");
        let name =
            ["--name", name, "--batch-size", "2", "--set", "train.eval_every=1", "--set", "train.warmup_steps=0"];
        sandbox.run(&[&args[..], &name, further].concat()).succeeds().prints(&[&next]);
    };
    train("whole", &[]);
    keeps("runs/whole/checkpoints/step-000001");
    assert_eq!(read("runs/whole/checkpoints/step-000001/config.json")["eos_token_id"], ends);
    // The sample is a question of the validation text and what the model answers.
    let sample = sandbox.read("runs/whole/samples.txt");
    assert!(sample.starts_with("user\nafter ") && sample.contains(" comes \nassistant\n"), "{sample:?}");
    assert!(!sample.contains("<|im_"), "{sample:?}");
    train("lora", &["--set", "lora.rank=2"]);
    keeps("runs/lora/checkpoints/step-000001");
    sandbox.run(&["merge", "runs/lora", "--output", "merged", "--device", "cpu"]).succeeds();
    keeps("merged");
    assert_eq!(read("merged/config.json")["eos_token_id"], ends);
    // An adapter that has no such files has its model's.
    let adapter = "runs/lora/checkpoints/step-000001";
    for name in std::fs::read_dir(sandbox.path(adapter)).unwrap().flatten().map(|entry| entry.file_name()) {
        if !name.to_string_lossy().starts_with("adapter_") {
            std::fs::remove_file(sandbox.path(adapter).join(name)).unwrap();
        }
    }
    sandbox.run(&["merge", adapter, "--output", "again", "--device", "cpu"]).succeeds();
    assert_eq!(read("again/config.json")["eos_token_id"], ends);
    keeps("again");
    let export = ["export", "model", "--format", "safetensors", "--output", "copy", "--device", "cpu"];
    sandbox.run(&export).succeeds();
    keeps("copy");
}

#[test]
fn verify_resume_holds_for_packed_documents() {
    let sandbox = sandbox();
    let args = ["verify-resume", "--config", "tiny.toml", "--steps", "3", "--corpus", "sums.jsonl"];
    let further = ["--device", "cpu", "--threads", "1", "--set", "train.grad_accum_steps=2"];
    sandbox.run(&[&args[..], &further].concat()).succeeds();
}

#[test]
fn prepared_documents_are_the_text_that_they_were_made_of() {
    let sandbox = sandbox();
    let args = ["data", "prepare", "--corpus", "sums.jsonl", "--tokenizer", "char", "--out", "prepared"];
    sandbox.run(&args).succeeds();
    let run = |corpus: &str, name: &str| {
        let output = sandbox.train(&["--corpus", corpus, "--name", name, "--json"]).succeeds().stdout;
        let losses =
            json_lines(&output).into_iter().filter(|line| line["kind"] == "step").map(|line| line["loss"].clone());
        losses.collect::<Vec<_>>()
    };
    assert_eq!(run("sums.jsonl", "text"), run("prepared", "tokens"));
    // What is predicted is not known without it.
    std::fs::remove_file(sandbox.path("prepared/train.documents")).unwrap();
    sandbox.train(&["--corpus", "prepared", "--name", "y"]).fails_with(&["train.bin", "data prepare"]);
}
