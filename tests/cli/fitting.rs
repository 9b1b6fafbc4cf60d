//! Runs and the memory that there is: what fits, what is computed in passes, and what is refused; the sizes that a run
//! that begins with a model chooses for itself.

use crate::sandbox::{Run, Sandbox, TINY, TINY_RUN, json_lines};
use serde_json::{Value, json};

const ON_CPU: [&str; 4] = ["--device", "cpu", "--max-steps", "2"];

/// A run of this name on so many MiB of memory.
fn train_within(sandbox: &Sandbox, mib: &str, further: &[&str]) -> Run {
    let args = [&["train", "--config", "tiny.toml", "--json"], &ON_CPU[..], further].concat();
    sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", mib)])
}

fn notes(run: &Run) -> String {
    let lines = json_lines(&run.stdout);
    lines.iter().filter_map(|line| line["text"].as_str().map(str::to_string)).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_batch_beyond_the_memory_of_the_machine_is_computed_in_passes_with_the_same_losses() {
    let sandbox = Sandbox::new();
    let wide = ["--batch-size", "256", "--set", "model.block_size=32", "--set", "log.samples=false"];
    let whole = train_within(&sandbox, "4000", &[&wide[..], &["--name", "whole"]].concat()).succeeds();
    assert!(!notes(&whole).contains("passes"), "{}", notes(&whole));
    let plan = |mib: &str| {
        let args = [&["plan", "tiny.toml", "--json"], &ON_CPU[..], &wide].concat();
        sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", mib)])
    };
    let all = plan("4000").succeeds().json();
    assert_eq!(all["passes"], 1);
    // What is there beside the batch is about 8 MiB.
    let mib = (all["host_bytes"].as_u64().unwrap() >> 20) / 2 + 4;
    let parts = train_within(&sandbox, &mib.to_string(), &[&wide[..], &["--name", "parts"]].concat()).succeeds();
    let told = notes(&parts);
    for part in ["batches of 256 x 32 tokens need ", "this machine has ", "passes of "] {
        assert!(told.contains(part), "{part:?} is missing in {told}");
    }
    for kind in ["train", "eval"] {
        let (whole, parts) = (sandbox.losses("runs/whole", kind), sandbox.losses("runs/parts", kind));
        assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5), "{kind}: {whole:?} {parts:?}");
    }
    let planned = plan(&mib.to_string()).succeeds().json();
    assert!(planned["passes"].as_u64() > Some(1) && planned["does_not_fit"].is_null(), "{planned}");
}

#[test]
fn a_run_beyond_the_memory_is_refused_before_it_begins_with_values_that_fit() {
    let sandbox = Sandbox::new();
    let long = ["--set", "model.block_size=2048"];
    let told = [
        "training does not fit the memory",
        "one sequence of 2048 tokens",
        "model.block_size = ",
        "1.00 MiB available",
    ];
    let refused = train_within(&sandbox, "1", &long).fails_with(&told);
    assert!(sandbox.runs().is_empty());
    // What is advised is taken.
    let rows = refused.stderr.split("model.block_size = ").nth(1).unwrap();
    let rows: String = rows.chars().take_while(char::is_ascii_digit).collect();
    train_within(&sandbox, "1", &["--set", &format!("model.block_size={rows}"), "--batch-size", "1"]).succeeds();
    let plan = [&["plan", "tiny.toml"], &ON_CPU[..], &long].concat();
    let plan = sandbox.run_with(&plan, &[("RUSTYFLOW_HOST_MEMORY", "1")]);
    plan.ends_with(1).prints(&["fits       no: training does not fit the memory", "none fits"]);
    let wrong = train_within(&sandbox, "lots", &[]);
    wrong.fails_with(&["RUSTYFLOW_HOST_MEMORY=lots", "MiB"]);
}

/// A model with a context of 256 in [`TINY_RUN`], and questions in `chat.jsonl`, the longest of 70 letters.
fn with_a_model() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("tiny.toml", TINY.replace("block_size = 16", "block_size = 256"));
    sandbox.train(&["--max-steps", "1", "--batch-size", "2"]).succeeds();
    let line = |i: usize| json!({ "prompt": "the fox ".repeat(1 + i % 8), "completion": " sees" }).to_string();
    sandbox.write("chat.jsonl", (0..40).map(line).collect::<Vec<_>>().join("\n"));
    sandbox
}

fn fine_tune(sandbox: &Sandbox, further: &[&str]) -> Run {
    let args = ["train", "--init", TINY_RUN, "--corpus", "chat.jsonl", "--name", "on", "--json"];
    sandbox.run(&[&args[..], &ON_CPU, further].concat())
}

fn line_of(sandbox: &Sandbox, key: &str) -> String {
    let config = sandbox.read("runs/on/config.toml");
    config.lines().find(|line| line.split(' ').next() == Some(key)).expect(key).to_string()
}

#[test]
fn one_long_document_does_not_make_every_row_as_long() {
    let sandbox = with_a_model();
    let line = |i: usize| json!({ "prompt": "the fox ".repeat(if i == 70 { 25 } else { 1 }), "completion": " sees" });
    sandbox.write("chat.jsonl", (0..150).map(|i| line(i).to_string()).collect::<Vec<_>>().join("\n"));
    let told = notes(&fine_tune(&sandbox, &[]).succeeds());
    let row = "model.block_size = 64 (99th percentile of document lengths; 1 of 150 documents are longer)";
    assert!(told.contains(row), "{told}");
}

#[test]
fn rows_of_a_fine_tuned_model_are_as_long_as_its_documents_and_its_context_stays() {
    let sandbox = with_a_model();
    let told = notes(&fine_tune(&sandbox, &[]).succeeds());
    let row = "batches: model.block_size = 128 (what the longest document needs), train.batch_size = 16";
    assert!(told.contains(row) && told.contains("rows of 128 tokens"), "{told}");
    assert!(line_of(&sandbox, "block_size").ends_with("# default: what the longest document needs"));
    assert!(line_of(&sandbox, "batch_size").ends_with("# default: 16 fit the memory"));
    assert!(line_of(&sandbox, "context").contains("= 256 "));
    let checkpoint = "runs/on/checkpoints/step-000002";
    let read = |name: &str| -> Value { serde_json::from_str(&sandbox.read(format!("{checkpoint}/{name}"))).unwrap() };
    assert_eq!(
        (&read("config.json")["n_positions"], &read("tokenizer_config.json")["model_max_length"]),
        (&256.into(), &256.into())
    );
    let eval = |more: &[&str]| {
        let args = ["eval", "--model", "runs/on", "--text", "corpus.txt", "--device", "cpu"];
        sandbox.run(&[&args[..], more].concat()).succeeds()
    };
    eval(&[]).prints(&["context 128, stride 128"]);
    eval(&["--context", "256"]).prints(&["context 256, stride 256"]);
    // A resumed run keeps its sizes.
    let resume = ["train", "--resume", "runs/on", "--max-steps", "3", "--device", "cpu", "--json"];
    let told = notes(&sandbox.run(&resume).succeeds());
    assert!(!told.contains("batches: ") && line_of(&sandbox, "block_size").contains("= 128 "), "{told}");
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn a_fine_tuned_model_gets_the_batch_that_fits_and_as_many_sequences_a_step() {
    let sandbox = with_a_model();
    let plan_within = |mib: &str, further: &[&str]| {
        let args = ["plan", "--init", TINY_RUN, "--corpus", "chat.jsonl", "--json", "--device", "cpu"];
        sandbox.run_with(&[&args[..], further].concat(), &[("RUSTYFLOW_HOST_MEMORY", mib)]).succeeds().json()
    };
    let all = plan_within("4000", &[]);
    assert_eq!(
        (&all["batch_size"], &all["block_size"], &all["tokens_per_step"]),
        (&16.into(), &128.into(), &2048.into())
    );
    let mib = (all["host_bytes"].as_u64().unwrap() >> 20).to_string();
    let less = plan_within(&mib, &[]);
    assert!(less["batch_size"].as_u64() < Some(16) && less["tokens_per_step"] == 2048, "{less}");
    assert_eq!(less["passes"], 1);
    let note = less["notes"][0].as_str().unwrap();
    assert!(note.contains("train.grad_accum_steps = ") && note.contains("fits "), "{note}");
    // Processes have the same batch, whatever memory each has.
    let networked = plan_within(&mib, &["--ranks", "2", "--network", "25Gbps"]);
    assert_eq!((&networked["batch_size"], &networked["tokens_per_step"]), (&16.into(), &2048.into()));
    // What is set is taken.
    let set = ["--batch-size", "3", "--block-size", "64"];
    let told = notes(&fine_tune(&sandbox, &set).succeeds());
    assert!(!told.contains("batches: ") && line_of(&sandbox, "batch_size").contains("= 3 "), "{told}");
}

#[test]
fn adapters_leave_the_context_of_the_model_that_they_are_merged_with() {
    let sandbox = with_a_model();
    fine_tune(&sandbox, &["--set", "lora.rank=2"]).succeeds();
    assert!(line_of(&sandbox, "block_size").contains("= 128 "));
    sandbox.run(&["merge", "runs/on", "--output", "merged", "--device", "cpu"]).succeeds();
    let config: Value = serde_json::from_str(&sandbox.read("merged/config.json")).unwrap();
    assert_eq!(config["n_positions"], 256);
    let tokenizer: Value = serde_json::from_str(&sandbox.read("merged/tokenizer_config.json")).unwrap();
    assert_eq!(tokenizer["model_max_length"], 256);
}

#[test]
fn another_tokenizer_is_refused_unless_it_is_asked_for() {
    let sandbox = with_a_model();
    let bpe = ["--tokenizer", "bpe", "--set", "data.vocab_size=300"];
    fine_tune(&sandbox, &bpe).fails_with(&[
        "--tokenizer: data.tokenizer: is not the tokenizer of the model",
        "--new-tokenizer",
        "start at random",
    ]);
    // One of fewer tokens, which the embedding would have rows for.
    let told = ["--tokenizer: data.tokenizer: is not the tokenizer of the model", " has the id "];
    fine_tune(&sandbox, &["--tokenizer", "char"]).fails_with(&told);
    let refused = ["plan", "--init", TINY_RUN, "--corpus", "chat.jsonl", "--device", "cpu"];
    sandbox.run(&[&refused[..], &bpe].concat()).fails_with(&["data.tokenizer", "--new-tokenizer"]);
    // Of a chat model, whose template goes with its tokenizer.
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    sandbox.write("messages.jsonl", row);
    sandbox.write(format!("{TINY_RUN}/checkpoints/step-000001/chat_template.jinja"), "{{ messages[0].content }}");
    let chat = ["train", "--init", TINY_RUN, "--corpus", "messages.jsonl", "--device", "cpu"];
    sandbox.run(&[&chat[..], &bpe].concat()).fails_with(&["needs a chat template", "leave data.tokenizer out"]);
    // The same under another path.
    let own = sandbox.read(format!("{TINY_RUN}/checkpoints/step-000001/tokenizer.json"));
    sandbox.write("elsewhere/tokenizer.json", own);
    fine_tune(&sandbox, &["--tokenizer", "elsewhere/tokenizer.json"]).succeeds();
    let asked = [&bpe[..], &["--new-tokenizer"]].concat();
    let adapters = [&asked[..], &["--set", "lora.rank=2"]].concat();
    fine_tune(&sandbox, &adapters).fails_with(&["model.new_tokenizer", "lora.rank"]);
}

#[test]
fn a_run_with_a_new_tokenizer_has_a_row_for_each_of_its_tokens_and_is_resumed_without_the_model() {
    let sandbox = with_a_model();
    let asked = ["--tokenizer", "bpe", "--set", "data.vocab_size=300", "--new-tokenizer"];
    let run = fine_tune(&sandbox, &asked).succeeds();
    assert!(notes(&run).contains("new tokenizer"), "{}", notes(&run));
    assert!(line_of(&sandbox, "new_tokenizer").contains("= true "));
    let config: Value = serde_json::from_str(&sandbox.read("runs/on/checkpoints/step-000002/config.json")).unwrap();
    let rows = config["vocab_size"].as_u64().unwrap();
    assert!((257..=300).contains(&rows), "{rows}");
    std::fs::remove_dir_all(sandbox.path(TINY_RUN)).unwrap();
    let resume = ["train", "--resume", "runs/on", "--max-steps", "3", "--device", "cpu"];
    sandbox.run(&resume).succeeds().prints(&["resumed    after step 2"]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn as_few_blocks_are_recomputed_as_the_memory_allows() {
    let sandbox = Sandbox::new();
    let deep = ["--batch-size", "64", "--set", "model.n_layer=6", "--set", "model.block_size=32"];
    let plan = |mib: &str, recompute: &str| {
        let recompute = format!("train.recompute={recompute}");
        let args = [&["plan", "tiny.toml", "--json"], &ON_CPU[..], &deep, &["--set", &recompute]].concat();
        sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", mib)]).succeeds().json()
    };
    let bytes = |recompute| plan("4000", recompute)["host_bytes"].as_u64().unwrap();
    let [none, attention, block] = ["none", "attention", "block"].map(bytes);
    assert!(block < attention && attention < none, "{block} {attention} {none}");
    assert_eq!(plan("4000", "auto")["recompute_flops_per_step"], 0.0);
    // Of what is there nine tenths are taken.
    let mib = ((none + block) * 10 / 18) >> 20;
    let auto = ["--set", "train.recompute=auto", "--name", "auto"];
    let run = train_within(&sandbox, &mib.to_string(), &[&deep[..], &auto].concat()).succeeds();
    let config = sandbox.read("runs/auto/config.toml");
    let line = |key: &str| config.lines().find(|line| line.starts_with(&format!("{key} = "))).expect(key).to_string();
    let blocks: usize = line("recompute_blocks").split(' ').nth(2).unwrap().parse().unwrap();
    assert!((1..6).contains(&blocks) && line("recompute").contains("# auto: as few blocks"), "{config}");
    let told = notes(&run);
    assert!(told.contains(&format!("train.recompute = \"block\" of {blocks} of 6 blocks")), "{told}");
    assert!(!told.contains("passes"), "it fits: {told}");
    let plan = sandbox.run(&[&["plan", "tiny.toml"], &ON_CPU[..], &deep].concat()).succeeds();
    plan.prints(&[
        "savings    with train.recompute = \"attention\"",
        "train.recompute = \"block\"",
        "and  optimizer.state_dtype = \"int8\"",
    ]);
}

#[test]
#[ignore = "slow: scripts/test.sh --full"]
fn the_largest_batch_that_fits_is_taken_where_it_is_auto() {
    let sandbox = Sandbox::new();
    let auto = ["--batch-size", "auto", "--set", "model.block_size=32"];
    sandbox.run(&["config", "show", "tiny.toml", "--set", "train.batch_size=auto"]).succeeds().prints(&["= \"auto\""]);
    let plan = |mib: &str, batch: &[&str]| {
        let args = [&["plan", "tiny.toml", "--json", "--set", "model.block_size=32"], &ON_CPU[..], batch].concat();
        sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", mib)]).succeeds().json()
    };
    let [small, large] = ["12", "14"].map(|mib| plan(mib, &auto[..2])["batch_size"].as_u64().unwrap());
    assert!(1 < small && small < large, "{small} {large}");
    // A larger one is computed in passes.
    let passes = |batch: u64| plan("12", &["--batch-size", &batch.to_string()])["passes"].as_u64().unwrap();
    assert_eq!([passes(small), passes(small + 1)], [1, 2]);
    train_within(&sandbox, "12", &[&auto[..], &["--name", "on"]].concat()).succeeds();
    let line = line_of(&sandbox, "batch_size");
    assert!(
        line.contains(&format!("= {small} ")) && line.contains("# auto: the largest that fits the memory"),
        "{line}"
    );
    let told = notes(&sandbox.run(&["train", "--resume", "runs/on", "--max-steps", "3", "--json"]).succeeds());
    assert!(!told.contains("batches: "), "{told}");
    // As it began.
    let again = ["train", "--resume", "runs/on", "--max-steps", "4", "--set", "train.batch_size=auto"];
    sandbox.run(&again).succeeds();
    // Rows are divided as the devices are, and the largest part fits.
    let parts = ["--batch-size", "auto", "--device", "cpu,cpu", "--set", "train.device_batch=3,1"];
    let args =
        [&["plan", "tiny.toml", "--json", "--set", "model.block_size=32", "--max-steps", "2"], &parts[..]].concat();
    let plan = sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", "24")]).succeeds().json();
    assert!(plan["batch_size"].as_u64().unwrap().is_multiple_of(4) && plan["passes"] == 1, "{plan}");
}

#[test]
fn what_auto_cannot_be_is_refused_where_it_was_set() {
    let sandbox = Sandbox::new();
    let plan = |further: &[&str]| sandbox.run(&[&["plan", "tiny.toml"], &ON_CPU[..], further].concat());
    let auto = ["--set", "train.batch_size=auto", "--ranks", "4", "--network", "25Gbps"];
    plan(&auto).fails_with(&["--set", "train.batch_size", "several processes cannot agree on: set a value"]);
    let blocks = ["--set", "train.recompute_blocks=1"];
    plan(&blocks).fails_with(&["train.recompute_blocks is 1, which only train.recompute = \"block\" has"]);
    let many = ["--set", "train.recompute_blocks=9", "--set", "train.recompute=block"];
    plan(&many).fails_with(&["train.recompute_blocks", "is 9, and the model has 1 blocks"]);
}

#[test]
fn a_batch_that_does_not_fit_in_the_one_pass_of_layerwise_updates_is_refused() {
    let sandbox = Sandbox::new();
    let layerwise = ["--set", "train.update=layerwise", "--set", "model.block_size=32", "--set", "log.samples=false"];
    let wide = [&["--batch-size", "256"], &layerwise[..]].concat();
    let plan = |mib: &str, further: &[&str]| {
        let args = [&["plan", "tiny.toml", "--json"], &ON_CPU[..], further].concat();
        sandbox.run_with(&args, &[("RUSTYFLOW_HOST_MEMORY", mib)])
    };
    let all = plan("4000", &wide).succeeds().json();
    let mib = ((all["host_bytes"].as_u64().unwrap() >> 20) / 2 + 4).to_string();
    let told =
        ["a batch of 256 x 32 tokens needs", "\"layerwise\" computes it in one pass", "a smaller train.batch_size"];
    train_within(&sandbox, &mib, &wide).fails_with(&told);
    assert!(sandbox.runs().is_empty());
    let planned = plan(&mib, &wide).json();
    assert!(
        planned["does_not_fit"].as_str().is_some_and(|why| told.iter().all(|part| why.contains(part))),
        "{planned}"
    );
    // What is advised is taken.
    let largest = planned["largest_batch_size"].as_u64().unwrap();
    assert!((2..256).contains(&largest), "{planned}");
    let run = train_within(&sandbox, &mib, &[&["--batch-size", "auto"], &layerwise[..]].concat()).succeeds();
    assert!(!notes(&run).contains("passes"), "{}", notes(&run));
    let summed = ["updates parameters before gradients are summed", "train.update = \"step\""];
    plan("4000", &[&layerwise[..], &["--ranks", "2"]].concat()).fails_with(&summed);
    let two = ["train", "--config", "tiny.toml", "--device", "cpu,cpu", "--threads", "1", "--max-steps", "2"];
    sandbox.run(&[&two[..], &layerwise[..]].concat()).fails_with(&summed);
}
