//! Corpora of every form, and `rustyflow data`.

use crate::sandbox::{Sandbox, corpus, json_lines};
use std::io::Write;
use std::process::Stdio;

#[test]
fn a_folder_of_notes_trains_and_says_what_it_is_made_of() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/a.md", corpus());
    sandbox.write("notes/deep/b.txt", corpus());
    sandbox.write("notes/c.jsonl", "{\"text\": \"the duck said the day\"}\n{\"text\": \"the duck sat\"}\n");
    sandbox.write("notes/d.png", "no text");
    let run = sandbox.train(&["--corpus", "notes", "--max-steps", "1", "--name", "x"]).succeeds();
    run.prints(&["text       3 files, 7.03 KiB, 4 documents (2 for validation); skipped 1: 1 .png"]);
    let stats = sandbox.run(&["data", "stats", "--corpus", "notes", "--tokenizer", "char", "--json"]).succeeds().json();
    let counts = ["files", "documents", "held_out"].map(|key| stats[key].as_u64().unwrap());
    assert_eq!((counts, &stats["skipped"][".png"]), ([3, 4, 2], &1.into()), "{stats}");
    let tokenizer = sandbox.read("runs/x/checkpoints/step-000001/tokenizer.json");
    assert!(tokenizer.contains("<|endoftext|>"), "{tokenizer}");
    let run = sandbox.run(&["eval", "--model", "runs/x", "--text", "notes", "--json", "--device", "cpu"]).succeeds();
    let whole = 2 * corpus().len() + "the duck said the day".len() + "the duck sat".len() + 4;
    assert_eq!(run.json()["tokens"], whole - 1, "every character and the ends of four documents, but the first");
}

#[test]
fn every_corpus_layout_trains() {
    let sandbox = Sandbox::new();
    let text = corpus();
    let (train, valid) = text.split_at(text.len() / 2);
    for name in ["stories/a.txt", "stories/more/b.txt", "splits/train.txt", "wiki/wiki.train.tokens"] {
        sandbox.write(name, train);
    }
    for name in ["splits/valid.txt", "wiki/wiki.valid.tokens", "wiki/wiki.test.tokens"] {
        sandbox.write(name, valid);
    }
    for (spec, name) in [
        ("stories", "stories"),
        ("splits", "splits"),
        ("wiki", "wiki"),
        ("train=splits/train.txt,validation=corpus.txt", "splits"),
    ] {
        let corpus = format!("data.corpus={spec}");
        let run = sandbox.train(&["--json", "--set", &corpus, "--set", "run.name=x", "--set", "train.max_steps=1"]);
        let lines = json_lines(&run.succeeds().stdout);
        assert_eq!(lines[0]["corpus"], name);
        let characters = |key: &str| lines[0][key].as_u64().unwrap() as usize;
        let expected = match spec {
            "splits" | "wiki" => (train.len(), valid.len()),
            // One file of each, with the token that ends it.
            "stories" => (train.len() + 1, train.len() + 1),
            _ => (train.len(), text.len()),
        };
        let seen = (characters("train_tokens"), characters("validation_tokens"));
        assert_eq!(seen, expected, "{spec}");
    }
}

#[test]
fn data_files_chooses_among_files() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/a.md", corpus());
    sandbox.write("notes/b.rs", corpus());
    let arguments = ["--corpus", "notes", "--max-steps", "1", "--set", "data.files=*.rs", "--json"];
    let lines = json_lines(&sandbox.train(&arguments).succeeds().stdout);
    let text = &lines[0]["text"];
    assert_eq!((&text["files"], &text["skipped"][".md"]), (&1.into(), &1.into()), "{text}");
    sandbox.write("list.toml", "[data]\nfiles = [\"*.md\", 5]\n");
    sandbox.run(&["data", "stats", "list.toml"]).fails_with(&["list.toml:2", "data.files", "a list of strings"]);
}

#[test]
fn a_second_start_tokenizes_nothing() {
    let sandbox = Sandbox::with_own_cache();
    let prepare = || sandbox.run(&["data", "prepare", "--corpus", "corpus.txt", "--tokenizer", "char"]).succeeds();
    prepare().prints(&["1 file, 3.5", "B/s"]);
    prepare().prints(&["none: cached"]);
    sandbox.train(&["--max-steps", "1"]).succeeds();
    assert_eq!(sandbox.names_in("cache/tokens").len(), 1, "train uses what prepare has made");
}

#[test]
fn prepared_tokens_train_as_the_text_does() {
    let sandbox = Sandbox::new();
    sandbox.run(&["data", "prepare", "--corpus", "corpus.txt", "--tokenizer", "char", "--out", "tokens"]).succeeds();
    sandbox.train(&["--name", "text"]).succeeds();
    sandbox.train(&["--name", "tokens", "--corpus", "tokens"]).succeeds();
    assert_eq!(sandbox.losses("runs/text", "train"), sandbox.losses("runs/tokens", "train"));
    assert_eq!(sandbox.losses("runs/text", "eval"), sandbox.losses("runs/tokens", "eval"));
    sandbox.run(&["eval", "--model", "runs/tokens", "--device", "cpu"]).succeeds();
}

#[test]
fn standard_input_is_a_corpus_and_can_be_resumed() {
    let sandbox = Sandbox::with_own_cache();
    let arguments = ["train", "tiny.toml", "--device", "cpu", "--corpus", "-", "--name", "x"];
    let mut command = sandbox.command(&[&arguments[..], &["--max-steps", "3"]].concat());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(corpus().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("the text of standard input is kept in"), "{said}");
    sandbox.run(&["train", "--resume", "runs/x", "--device", "cpu", "--max-steps", "6"]).succeeds();
}

#[test]
fn stats_tell_tokens_and_the_most_frequent() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["data", "stats", "--corpus", "corpus.txt", "--tokenizer", "word", "--json"]).succeeds();
    let stats = run.json();
    let words: u64 = ["train_tokens", "validation_tokens"].iter().map(|key| stats[key].as_u64().unwrap()).sum();
    let text = corpus();
    assert_eq!(words as usize, text.split_whitespace().count() + text.matches('\n').count());
    assert_eq!(stats["most_frequent"][0][0], "the", "{stats}");
    let of_environment = [("RUSTYFLOW_DATA__CORPUS", "corpus.txt"), ("RUSTYFLOW_DATA__TOKENIZER", "char")];
    let run = sandbox.run_with(&["data", "stats"], &of_environment).succeeds();
    run.prints(&["corpus         corpus: ", "tokenizer      char, ", "bytes a token", "most frequent"]);
}

/// Before token files, a text took 25 times its size: this one would have needed 800 MB.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_long_text_takes_little_memory() {
    const MOST_KB: u64 = 200_000;
    let sandbox = Sandbox::with_own_cache();
    let text = corpus();
    sandbox.write("long.txt", text.repeat(32_000_000 / text.len()).replace('\n', " "));
    let mut command = sandbox.command(&["data", "prepare", "--corpus", "long.txt", "--vocab-size", "300"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        // The file is gone, or has no such line, once the process has ended.
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kilobytes = anonymous.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(kilobytes.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(status.success());
    assert!((1_000..MOST_KB).contains(&peak), "{peak} kB");
}

#[test]
fn stats_count_the_tokens_that_are_learned_and_the_documents_that_are_truncated() {
    let sandbox = Sandbox::new();
    // Characters, and the end of the text: 7, 10 and 11 tokens, of which 3, 2 and 9 are learned.
    let rows = [("abcd", "ef"), ("abcdefgh", "a"), ("ab", "abcdefgh")];
    let rows =
        rows.map(|(prompt, completion)| format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{completion}\"}}\n"));
    sandbox.write("train.jsonl", rows.concat());
    sandbox.write("valid.jsonl", &rows[0]);
    let corpus = "train=train.jsonl,validation=valid.jsonl";
    let stats = |block_size: &str, json: &[&str]| {
        let arguments = ["data", "stats", "--corpus", corpus, "--tokenizer", "char", "--block-size", block_size];
        sandbox.run(&[&arguments[..], json].concat()).succeeds()
    };
    let counts = |block_size| {
        let stats = stats(block_size, &["--json"]).json();
        ["learned_tokens", "longest_document", "truncated_documents", "left_out_documents"]
            .map(|key| stats[key].as_u64().unwrap())
    };
    // Of the second only the prompt fits 4 places.
    assert_eq!(counts("4"), [14, 11, 2, 1]);
    assert_eq!(counts("16"), [14, 11, 0, 0]);
    stats("4", &[]).prints(&["learned        14 of the training tokens, 50.0%", "truncated      2 documents"]);
}

#[test]
fn a_megabyte_without_a_blank_is_tokenized_in_seconds() {
    let sandbox = Sandbox::new();
    let mut state = 1_u32;
    let base = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b"ACGT"[(state >> 24) as usize % 4])
    };
    sandbox.write("dna.txt", (0..1_000_000).map(base).collect::<String>());
    let started = std::time::Instant::now();
    sandbox.run(&["data", "stats", "--corpus", "dna.txt", "--vocab-size", "300"]).succeeds();
    // One second; by the square of the length it would be minutes.
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn files_of_a_folder_that_are_no_text_are_skipped_and_all_named() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/a.md", corpus());
    let utf16: Vec<u8> = [0xFEFF].into_iter().chain("the duck".encode_utf16()).flat_map(u16::to_le_bytes).collect();
    std::fs::write(sandbox.path("notes/b.txt"), utf16).unwrap();
    for name in ["c.txt", "d.txt"] {
        std::fs::write(sandbox.path(format!("notes/{name}")), b"%PDF-1.4 \xe2\xe3\xcf\xd3 \xff\xfe\x00").unwrap();
    }
    let run = sandbox.run(&["data", "stats", "--corpus", "notes", "--tokenizer", "char", "--json"]).succeeds();
    let stats = run.json();
    let named = stats["undecodable"].to_string();
    assert!(stats["files"] == 2 && named.contains("c.txt") && named.contains("d.txt"), "{stats}");
}
