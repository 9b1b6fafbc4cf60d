//! `rustyflow generate`: how tokens are chosen, where a text ends, and several at once.

use crate::sandbox::{Run, Sandbox, TINY_RUN, has_gpu, json_lines};

fn generate(sandbox: &Sandbox, further: &[&str]) -> Run {
    let args = ["generate", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "-n", "30"];
    sandbox.run(&[&args, further].concat())
}

/// The text without the end of its last line.
fn text(sandbox: &Sandbox, further: &[&str]) -> String {
    let run = generate(sandbox, further).succeeds();
    run.stdout.strip_suffix('\n').expect("a line").to_string()
}

#[test]
fn nothing_of_a_stop_string_or_after_it_is_printed() {
    let sandbox = Sandbox::trained();
    let whole = text(&sandbox, &["--prompt", "the"]);
    // One character a token: each of these comes in parts.
    let (_, written) = whole.split_at(3);
    let stop: String = written.chars().skip(7).take(3).collect();
    let end = 3 + written.find(&stop).unwrap();
    assert_eq!(text(&sandbox, &["--prompt", "the", "--stop", "no such text", "--stop", &stop]), whole[..end]);
    let json = generate(&sandbox, &["--prompt", "the", "--stop", &stop, "--json"]).succeeds().json();
    assert_eq!((&json["text"], &json["stopped"]), (&whole[..end].into(), &true.into()));
    assert!(json["new_tokens"].as_u64().unwrap() < 30, "{json}");
    // Not in the prompt; and what the run or the environment says holds too.
    assert_eq!(text(&sandbox, &["--prompt", "the", "--stop", "the"]).find("the"), Some(0));
    let args = ["generate", "--device", "cpu", "--threads", "1", "--model", TINY_RUN, "-n", "30", "--prompt", "the"];
    let list = format!("[{stop:?}]");
    let run = sandbox.run_with(&args, &[("RUSTYFLOW_GENERATE__STOP", list.as_str())]).succeeds();
    assert_eq!(run.stdout.trim_end_matches('\n'), whole[..end].trim_end_matches('\n'));
    generate(&sandbox, &["--stop", ""]).fails_with(&["--stop", "ends every text"]);
}

#[test]
fn a_token_that_ends_a_text_ends_it_and_no_special_token_is_printed() {
    let sandbox = Sandbox::new();
    sandbox.write("rows.jsonl", "{\"prompt\": \"the\", \"completion\": \" end\"}\n".repeat(40));
    sandbox.train(&["--corpus", "rows.jsonl", "--name", "rows", "--max-steps", "1"]).succeeds();
    let args = ["generate", "--model", "runs/rows", "--device", "cpu", "-n", "30", "--prompt", "the"];
    let run = |further: &[&str]| sandbox.run(&[&args[..], further].concat()).succeeds();
    let ends = ["--logit-bias", "<|endoftext|>=1000"];
    assert_eq!(run(&ends).stdout, "the\n");
    assert_eq!(run(&[&ends[..], &["--special-tokens"]].concat()).stdout, "the<|endoftext|>\n");
    let json = run(&[&ends[..], &["--json"]].concat()).json();
    assert_eq!((&json["end"], &json["new_tokens"], &json["stopped"]), (&"end_of_text".into(), &1.into(), &true.into()));
    let several = json_lines(&run(&[&ends[..], &["--json", "--samples", "2"]].concat()).stdout);
    assert_eq!((&several[1]["end"], &several[1]["text"]), (&"end_of_text".into(), &"the".into()));
    let never = run(&["--logit-bias", "<|endoftext|>=-inf", "--json"]).json();
    assert_eq!(
        (&never["end"], &never["new_tokens"], &never["stopped"]),
        (&"max_tokens".into(), &30.into(), &false.into())
    );
    // Also what the model's own file says, as for chat: here a letter.
    let checkpoint = "runs/rows/checkpoints/step-000001";
    std::fs::remove_file(sandbox.path(format!("{checkpoint}/manifest.json"))).unwrap();
    let e = " dehnt".find('e').unwrap();
    sandbox.write(format!("{checkpoint}/generation_config.json"), format!("{{\"eos_token_id\": [{e}]}}"));
    let of_letter = ["--model", checkpoint, "--logit-bias", "e=1000", "--json"];
    let json =
        sandbox.run(&[&["generate", "--device", "cpu", "--prompt", "the"], &of_letter[..]].concat()).succeeds().json();
    assert_eq!((&json["end"], &json["new_tokens"], &json["text"]), (&"end_of_text".into(), &1.into(), &"the".into()));
}

#[test]
fn the_sample_of_a_run_ends_at_its_stop_string() {
    let sandbox = Sandbox::new();
    sandbox.train(&["--set", "generate.stop=[\" \"]", "--set", "generate.max_new_tokens=200"]).succeeds();
    let sample = sandbox.read(format!("{TINY_RUN}/samples.txt"));
    assert!(!sample.trim_end().contains(' ') && sample.len() < 150, "{sample:?}");
    let last = sandbox.read(format!("{TINY_RUN}/last"));
    let generation = sandbox.read(format!("{TINY_RUN}/checkpoints/{}/generation_config.json", last.trim()));
    assert!(!generation.contains("min_p") && !generation.contains("repetition_penalty"), "{generation}");
}

#[test]
fn min_p_penalties_and_biases_choose_tokens() {
    let sandbox = Sandbox::trained();
    let greedy = text(&sandbox, &["-t", "0"]);
    assert_ne!(text(&sandbox, &[]), greedy);
    assert_eq!(text(&sandbox, &["--min-p", "1"]), greedy, "only the likeliest is as likely as itself");
    assert_ne!(text(&sandbox, &["-t", "0", "--repetition-penalty", "3"]), greedy);
    assert_eq!(text(&sandbox, &["-t", "0", "--repetition-penalty", "1"]), greedy);
    // By its text, by its number, and in quotes: ids follow code points, of which the corpus has the line break first.
    assert_eq!(text(&sandbox, &["--logit-bias", "w=1000"]), "w".repeat(30));
    assert_eq!(text(&sandbox, &["--logit-bias", "0=1000"]), "\n".repeat(30));
    assert_eq!(text(&sandbox, &["--logit-bias", "\"w\"=1000"]), "w".repeat(30));
    let never = text(&sandbox, &["--logit-bias", "e=-inf", "--logit-bias", "t=-inf"]);
    assert!(!never.contains(['e', 't']), "{never}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let sandbox = Sandbox::trained();
    for (options, told) in [
        (["--min-p", "1.5"], "min-p is 1.5"),
        (["--repetition-penalty", "0"], "repetition penalty is 0"),
        (["--logit-bias", "13"], "--logit-bias 13: expected TOKEN=BIAS"),
        (["--logit-bias", "13=much"], "\"much\" is not a number"),
        (["--logit-bias", "the=1"], "--logit-bias the=1: \"the\" is 3 tokens"),
        (["--logit-bias", "999=1"], "logit bias 999=1; expected a token below"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
    ] {
        generate(&sandbox, &options).fails_with(&[told]);
    }
    let all: Vec<String> = (0..100).map(|id| format!("{id}=-inf")).collect();
    let tokens = corpus_tokens();
    let all: Vec<&str> = all[..tokens].iter().flat_map(|bias| ["--logit-bias", bias]).collect();
    generate(&sandbox, &all).fails_with(&["exclude every token"]);
}

/// Different characters of the corpus.
fn corpus_tokens() -> usize {
    crate::sandbox::corpus().chars().collect::<std::collections::BTreeSet<char>>().len()
}

#[test]
fn samples_are_the_texts_of_the_next_seeds() {
    let sandbox = Sandbox::trained();
    let run = generate(&sandbox, &["--prompt", "the", "--seed", "5", "--samples", "3", "--json"]).succeeds();
    let lines = json_lines(&run.stdout);
    assert_eq!(lines.len(), 4);
    for (i, line) in lines[..3].iter().enumerate() {
        let seed = (5 + i).to_string();
        assert_eq!(line["text"], text(&sandbox, &["--prompt", "the", "--seed", &seed]), "sample {i}");
        assert_eq!((&line["kind"], &line["sample"]), (&"text".into(), &(i + 1).into()));
    }
    let total = &lines[3];
    assert_eq!((&total["kind"], &total["texts"], &total["new_tokens"]), (&"total".into(), &3.into(), &90.into()));
    assert_eq!(total["prompt_tokens"], 9);
    assert!(total["tokens_per_s"].as_f64().unwrap() > 0.0);
    let shown = generate(&sandbox, &["--prompt", "the", "--seed", "5", "--samples", "2"]).succeeds();
    shown.prints(&["== prompt 1 of 1, sample 1 of 2 ==\nthe", "sample 2 of 2 ==\nthe"]);
}

#[test]
fn prompts_of_a_file_are_continued_as_each_would_be_alone() {
    let sandbox = Sandbox::trained();
    // Of several lengths, so that there are several batches, and one longer than the context.
    let prompts = ["the", "owl", "the hen greets", "a", "the fox follows the dog"];
    sandbox.write("prompts.txt", prompts.join("\n") + "\n\n");
    let as_json = prompts.map(|prompt| format!("{{\"prompt\": {prompt:?}, \"more\": 1}}\n"));
    sandbox.write("prompts.jsonl", as_json.concat() + "\"the\"\n");
    for (file, count) in [("prompts.txt", 5), ("prompts.jsonl", 6)] {
        let run = generate(&sandbox, &["--prompts", file, "--json"]).succeeds();
        assert!(run.stderr.contains("the prompt has 23 tokens, the model's context 16"), "{}", run.stderr);
        let lines = json_lines(&run.stdout);
        assert_eq!(lines.len(), count + 1);
        for (i, (line, prompt)) in lines.iter().zip(prompts).enumerate() {
            assert_eq!(line["text"], text(&sandbox, &["--prompt", prompt]), "{file}: {prompt}");
            assert_eq!(line["prompt"], i + 1);
        }
    }
    sandbox.write("bad.jsonl", "\"the\"\n\n{\"text\": 1}\n");
    generate(&sandbox, &["--prompts", "bad.jsonl"]).fails_with(&["bad.jsonl:3: expected {\"prompt\""]);
    sandbox.write("bad.jsonl", "\"the\"\n{\n");
    generate(&sandbox, &["--prompts", "bad.jsonl"]).fails_with(&["bad.jsonl:2: expected {\"prompt\""]);
    sandbox.write("empty.txt", "\n \n");
    generate(&sandbox, &["--prompts", "empty.txt"]).fails_with(&["empty.txt: has no prompt"]);
}

#[test]
fn a_gpu_writes_the_same_text_and_nearly_the_same_in_f16() {
    if !has_gpu() {
        return;
    }
    let sandbox = Sandbox::trained();
    let on_gpu = |further: &[&str]| {
        let args = ["generate", "--device", "gpu", "--allow-software-gpu", "--model", TINY_RUN, "-n", "30"];
        sandbox.run(&[&args, further].concat()).succeeds().stdout
    };
    for sampling in [&["-t", "0"][..], &["--top-k", "5", "--top-p", "0.9", "--repetition-penalty", "1.2"]] {
        assert_eq!(on_gpu(sampling).trim_end(), text(&sandbox, sampling).trim_end(), "{sampling:?}");
    }
    let two = [&["--samples", "2", "--json"][..], &["--stop", " "]].concat();
    let lines = |run: &str| json_lines(run).into_iter().map(|line| line["text"].clone()).collect::<Vec<_>>();
    assert_eq!(lines(&on_gpu(&two)), lines(&generate(&sandbox, &two).succeeds().stdout));
    // Rounded, but of a model that has learnt letters and words.
    let half = on_gpu(&["-t", "0", "--dtype", "f16"]);
    assert_eq!(half[..8], text(&sandbox, &["-t", "0"])[..8]);
    sandbox.run(&["generate", "--device", "cpu", "--model", TINY_RUN, "--dtype", "f16"]).fails_with(&[
        "--dtype f16",
        "the CPU computes with 32-bit floats",
        "--device gpu",
    ]);
}
