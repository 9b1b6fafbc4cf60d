//! Where a configuration's values come from, seen from outside.

use crate::sandbox::{Sandbox, TINY_RUN, corpus};

/// Every key with a value that is not its default (or that the test needs), and as written in the run's config.toml.
const EVERY_KEY: &[(&str, &str)] = &[
    ("run.dir", "out"),
    ("run.name", "named"),
    ("run.seed", "7"),
    ("device.kind", "cpu"),
    ("device.precision", "f32"),
    ("device.matmul_f32", "fma"),
    ("device.threads", "1"),
    ("device.allow_fallback", "true"),
    ("device.allow_software", "true"),
    ("data.corpus", "corpus.txt"),
    ("data.files", "[\"*.md\"]"),
    ("data.tokenizer", "char"),
    ("data.vocab_size", "300"),
    ("data.validation_fraction", "0.25"),
    ("data.chat_template", "chatml"),
    ("data.packing", "off"),
    ("model.init", ""),
    ("model.new_tokenizer", "false"),
    ("model.kind", "llama"),
    ("model.n_layer", "1"),
    ("model.n_head", "1"),
    ("model.n_embd", "8"),
    ("model.block_size", "8"),
    ("model.context", "12"),
    ("model.vocab_size", "304"),
    ("model.vocab_multiple", "8"),
    ("model.dropout", "0.1"),
    ("model.embd_dropout", "0.05"),
    ("model.bias", "false"),
    ("model.tie_embeddings", "false"),
    ("model.n_kv_head", "1"),
    ("model.head_dim", "6"),
    ("model.intermediate_size", "12"),
    ("model.qkv_bias", "true"),
    ("model.sliding_window", "5"),
    ("model.norm_eps", "0.001"),
    ("model.rope_theta", "500.0"),
    ("model.rope_scaling", "llama3"),
    ("model.rope_factor", "2.0"),
    ("model.rope_low_freq_factor", "1.5"),
    ("model.rope_high_freq_factor", "3.0"),
    ("model.rope_original_block_size", "16"),
    ("train.objective", "next_token"),
    ("train.batch_size", "2"),
    ("train.grad_accum_steps", "2"),
    ("train.max_steps", "3"),
    ("train.learning_rate", "0.02"),
    ("train.min_learning_rate", "0.01"),
    ("train.warmup_steps", "1"),
    ("train.schedule", "wsd"),
    ("train.decay_steps", "2"),
    ("train.plateau_factor", "0.5"),
    ("train.plateau_patience", "3"),
    ("train.eval_every", "2"),
    ("train.eval_batches", "1"),
    ("train.grad_clip", "0.5"),
    ("train.label_smoothing", "0.1"),
    ("train.ema_decay", "0.5"),
    ("train.recompute", "block"),
    ("train.recompute_blocks", "1"),
    ("train.update", "step"),
    ("train.offload", "none"),
    ("train.device_batch", "[2]"),
    ("train.comm", "host"),
    ("train.reduce_dtype", "f16"),
    ("train.shard_optimizer", "true"),
    ("train.sync_every", "0"),
    ("train.comm_timeout", "30.0"),
    ("preference.beta", "0.0"),
    ("preference.gamma", "1.0"),
    ("preference.label_smoothing", "0.0"),
    ("preference.sft_weight", "0.0"),
    ("preference.desirable_weight", "1.0"),
    ("preference.undesirable_weight", "1.0"),
    ("lora.rank", "0"),
    ("lora.alpha", "0.0"),
    ("lora.rslora", "false"),
    ("lora.dora", "false"),
    ("lora.dropout", "0.0"),
    ("lora.targets", "[\"all-linear\"]"),
    ("lora.modules_to_save", "[]"),
    ("lora.base_dtype", "f32"),
    ("optimizer.kind", "adam"),
    ("optimizer.beta1", "0.8"),
    ("optimizer.beta2", "0.9"),
    ("optimizer.eps", "0.001"),
    ("optimizer.weight_decay", "0.2"),
    ("optimizer.momentum", "0.5"),
    ("optimizer.alpha", "0.9"),
    ("optimizer.centered", "true"),
    ("optimizer.nesterov", "false"),
    ("optimizer.ns_steps", "4"),
    ("optimizer.adjust_lr", "original"),
    ("optimizer.muon_learning_rate", "0.02"),
    ("optimizer.state_dtype", "int8"),
    ("optimizer.group", "[{ match = \"*.weight\", lr_scale = 0.5 }]"),
    ("checkpoint.every", "2"),
    ("checkpoint.keep_last", "1"),
    ("checkpoint.keep_best", "false"),
    ("checkpoint.optimizer", "true"),
    ("guard.non_finite", "skip"),
    ("guard.max_skips", "4"),
    ("guard.spike_z", "6.0"),
    ("guard.spike_window", "20"),
    ("guard.max_rollbacks", "2"),
    ("guard.learning_rate_factor", "0.25"),
    ("guard.patience", "7"),
    ("log.every", "2"),
    ("log.samples", "false"),
    ("log.tensorboard", "true"),
    ("log.csv", "true"),
    ("log.file", "timings.txt"),
    ("generate.prompt", "the"),
    ("generate.max_new_tokens", "3"),
    ("generate.temperature", "0.7"),
    ("generate.top_k", "5"),
    ("generate.top_p", "0.9"),
    ("generate.min_p", "0.05"),
    ("generate.repetition_penalty", "1.2"),
    ("generate.stop", "[\"owl\"]"),
    ("generate.seed", "3"),
];

/// The run's config.toml holds every key with its value, and each comes from where `source` says.
fn assert_all_in_force(sandbox: &Sandbox, source: impl Fn(&str) -> String) {
    let text = sandbox.read("out/named/config.toml");
    let mut section = "";
    let mut seen = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let (assignment, comment) = line.split_once("  # ").unwrap_or_else(|| panic!("no comment in {line:?}"));
        let (key, value) = assignment.split_once(" = ").unwrap();
        let key = format!("{section}.{key}");
        let &(_, expected) = EVERY_KEY.iter().find(|(name, _)| *name == key).unwrap_or_else(|| panic!("add {key}"));
        assert_eq!(value.trim().trim_matches('"'), expected, "{key}");
        assert_eq!(comment.trim(), format!("from {}", source(&key)), "{key}");
        seen += 1;
    }
    assert_eq!(seen, EVERY_KEY.len());
    assert!(sandbox.read("timings.txt").contains("out/named") && !sandbox.exists("training_log.txt"));
}

#[test]
fn every_key_can_be_set_in_the_environment() {
    let sandbox = Sandbox::new();
    let variable = |key: &str| format!("RUSTYFLOW_{}", key.replace('.', "__").to_uppercase());
    let variables: Vec<(String, &str)> = EVERY_KEY.iter().map(|(key, value)| (variable(key), *value)).collect();
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    sandbox.run_with(&["train"], &variables).succeeds();
    assert_all_in_force(&sandbox, variable);
}

#[test]
fn every_key_can_be_set_with_set() {
    let sandbox = Sandbox::new();
    let assignments: Vec<String> = EVERY_KEY.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut args = vec!["train"];
    args.extend(assignments.iter().flat_map(|a| ["--set", a]));
    sandbox.run(&args).succeeds();
    assert_all_in_force(&sandbox, |_| "--set".into());
}

#[test]
fn every_key_can_be_set_in_a_flat_file() {
    let sandbox = Sandbox::new();
    let lines: String = EVERY_KEY.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    sandbox.write("my.env", lines);
    sandbox.run(&["train", "--config", "my.env"]).succeeds();
    let line = |key: &str| EVERY_KEY.iter().position(|(name, _)| *name == key).unwrap() + 1;
    assert_all_in_force(&sandbox, |key| format!("my.env:{}", line(key)));
}

#[test]
fn the_short_names_of_a_flat_file_mean_their_keys() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "config.env",
        "DATASET=corpus.txt\nMODEL_PATH=models/first\nSEQ_LEN=8\nEMBED_DIM=8\nNUM_HEADS=2\nNUM_LAYERS=1\n\
         BATCH_SIZE=4\nNUM_EPOCHS=0.1\nLEARNING_RATE=0.01\nTEMPERATURE=0.5\nTOP_P=0.9\ndata.tokenizer=word\n",
    );
    let run = sandbox.run(&["train", "--config", "config.env", "--device", "cpu", "--threads", "1"]);
    run.succeeds().prints(&["1 layer, 2 heads, width 8, context 8", "folder     models/first"]);
    assert!(sandbox.exists("models/first/checkpoints"));
}

#[test]
fn each_layer_overrides_those_below_it() {
    let sandbox = Sandbox::new();
    let seed = |file: bool, environment: bool, set: bool, flag: bool| {
        let _ = std::fs::remove_dir_all(sandbox.path("runs"));
        let text = crate::sandbox::TINY.replace("max_steps = 6", "max_steps = 1");
        sandbox.write("tiny.toml", if file { format!("{text}\n[run]\nseed = 1\n") } else { text });
        let mut args = vec!["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1"];
        args.extend(if set { &["--set", "run.seed=3"][..] } else { &[] });
        args.extend(if flag { &["--seed", "4"][..] } else { &[] });
        let variables = [("RUSTYFLOW_RUN__SEED", "2")];
        sandbox.run_with(&args, if environment { &variables } else { &[] }).succeeds();
        let text = sandbox.read(format!("{TINY_RUN}/config.toml"));
        let line = text.lines().find(|line| line.starts_with("seed = ")).expect("a seed").to_string();
        line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(seed(false, false, false, false), 1337);
    assert_eq!(seed(true, false, false, false), 1);
    assert_eq!(seed(true, true, false, false), 2);
    assert_eq!(seed(true, true, true, false), 3);
    assert_eq!(seed(true, true, true, true), 4);
}

#[test]
fn the_environment_reaches_generate_and_eval() {
    let sandbox = Sandbox::trained();
    let wrong = [("RUSTYFLOW_DEVICE__KIND", "gpu:77")];
    sandbox.run_with(&["generate"], &wrong).fails_with(&["gpu:77"]);
    sandbox.run_with(&["eval", "--text", "corpus.txt"], &wrong).fails_with(&["gpu:77"]);
    let text = |variables| sandbox.run_with(&["generate", "--device", "cpu", "-n", "40"], variables).succeeds().stdout;
    let likeliest = text(&[("RUSTYFLOW_GENERATE__TEMPERATURE", "0")]);
    assert_ne!(likeliest, text(&[]));
    assert_eq!(likeliest, sandbox.run(&["generate", "--device", "cpu", "-n", "40", "-t", "0"]).stdout);
}

#[test]
fn the_keys_that_are_set_most_have_flags() {
    let sandbox = Sandbox::new();
    sandbox.write("other.txt", corpus());
    sandbox.train(&["--corpus", "other.txt", "--max-steps", "3", "--name", "short"]).succeeds();
    let says = |run: &str, value: &str, flag: &str| {
        let config = sandbox.read(format!("runs/{run}/config.toml"));
        let found = config.lines().any(|line| line.starts_with(value) && line.ends_with(&format!("# from {flag}")));
        assert!(found, "{value} from {flag}\n{config}");
    };
    says("short", "corpus = \"other.txt\" ", "--corpus");
    says("short", "max_steps = 3 ", "--max-steps");
    says("short", "name = \"short\" ", "--name");
    sandbox.train(&["--epochs", "1.5", "--name", "passes"]).succeeds();
    says("passes", "epochs = 1.5 ", "--epochs");
    sandbox.train(&["--epochs", "0"]).fails_with(&["--epochs: train.epochs"]);
}

#[test]
fn common_keys_have_flags_and_the_file_needs_none() {
    let sandbox = Sandbox::new();
    let flags = "--tokenizer word --n-layer 2 --n-head 1 --n-embd 8 --block-size 4 --batch-size 2 --learning-rate 1e-4";
    let args = ["train", "tiny.toml", "--device", "cpu", "--threads", "1", "--name", "flags"];
    sandbox.run(&args.into_iter().chain(flags.split(' ')).collect::<Vec<_>>()).succeeds();
    let config = sandbox.read("runs/flags/config.toml");
    for (value, flag) in [
        ("corpus = \"corpus.txt\" ", "tiny.toml"),
        ("tokenizer = \"word\" ", "--tokenizer"),
        ("n_layer = 2 ", "--n-layer"),
        ("n_head = 1 ", "--n-head"),
        ("n_embd = 8 ", "--n-embd"),
        ("block_size = 4 ", "--block-size"),
        ("batch_size = 2 ", "--batch-size"),
        ("learning_rate = 1e-4 ", "--learning-rate"),
    ] {
        let found = config.lines().any(|line| line.starts_with(value) && line.contains(&format!("# from {flag}")));
        assert!(found, "{value} from {flag}\n{config}");
    }
    sandbox.train(&["--n-embd", "wide"]).fails_with(&["--n-embd: model.n_embd", "\"wide\""]);
    let both = sandbox.run(&["train", "tiny.toml", "--config", "tiny.toml"]);
    assert!(both.code == Some(2) && both.stderr.contains("cannot be used with"), "{both:?}");
}

#[test]
fn more_threads_than_help_are_refused() {
    let run = Sandbox::new().run(&["train", "tiny.toml", "--device", "cpu", "--threads", "4096"]);
    run.fails_with(&["device.threads is 4096", "this machine has ", "0 takes one per core (--threads)"]);
}

#[test]
fn former_names_are_read_and_the_new_ones_named() {
    let sandbox = Sandbox::new();
    let variable = [("RUSTYFLOW_DEVICE__F32_PRODUCTS", "fma")];
    let args = ["train", "--config", "tiny.toml", "--device", "cpu", "--threads", "1", "--max-steps", "1"];
    let run = sandbox.run_with(&args, &variable).succeeds();
    assert_eq!(run.stderr.matches("RUSTYFLOW_DEVICE__MATMUL_F32").count(), 1, "{run:?}");
    let old_flag = ["--f32-products", "halves", "--name", "old"];
    let run = sandbox.run(&[&args[..], &old_flag].concat()).succeeds();
    assert!(run.stderr.contains("--f32-products is called --matmul-f32 now"), "{run:?}");
    assert!(run.stderr.contains("halves is written split-fp16 now"), "{run:?}");
    assert!(sandbox.read("runs/old/config.toml").contains("matmul_f32 = \"split-fp16\""));
    let run = sandbox.run(&[&args[..], &old_flag, &["--matmul-f32", "fma"]].concat());
    assert!(run.code == Some(2) && run.stderr.contains("cannot be used with"), "{run:?}");
}

#[test]
fn show_says_what_is_in_force_and_where_it_comes_from() {
    let sandbox = Sandbox::new();
    let args = ["config", "show", "tiny.toml", "--max-steps", "7", "--set", "model.n_head=1"];
    let run = sandbox.run(&args).succeeds();
    run.prints(&[
        "[model]\n",
        "n_head = 1",
        "# from --set",
        "max_steps = 7",
        "# from --max-steps",
        "# from tiny.toml:6",
    ]);
    let json = sandbox.run(&[&args[..], &["--json"]].concat()).succeeds().json();
    assert_eq!(json["train"]["max_steps"], serde_json::json!({ "value": 7, "from": "--max-steps" }));
    assert!(!sandbox.exists("runs"));
}

#[test]
fn init_writes_a_file_that_trains_and_never_writes_over_one() {
    let sandbox = Sandbox::new();
    sandbox.run(&["config", "init", "my.toml"]).succeeds().prints(&["rustyflow train my.toml"]);
    let text = sandbox.read("my.toml");
    assert!(text.contains("#n_layer = 4\n") && text.contains("# Transformer blocks, or recurrent layers."), "{text}");
    sandbox.run(&["config", "show", "my.toml"]).succeeds().prints(&["n_layer = 4"]);
    sandbox.write("my.toml", "mine");
    let run = sandbox.run(&["config", "init", "my.toml"]);
    run.fails_with(&["my.toml", "exists and is not overwritten"]);
    assert_eq!(sandbox.read("my.toml"), "mine");
}

#[test]
fn the_schema_is_json() {
    let schema = Sandbox::new().run(&["config", "schema"]).succeeds().stdout;
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["properties"]["train"]["properties"]["schedule"]["enum"][0], "cosine");
}

#[test]
fn what_is_wrong_on_the_command_line_exits_with_2_and_in_a_file_with_1() {
    let sandbox = Sandbox::new();
    let wrong = |set: &str| sandbox.train(&["--set", set]);
    for set in ["train.lr=3e-4", "lr=3e-4", "train.learning_rate=-1", "train.learning_rate", "train.batch_size=many"] {
        let run = wrong(set);
        assert_eq!(run.code, Some(2), "{set}: {run:?}");
    }
    wrong("train.lr=3e-4").fails_with(&["--set: train.lr: unknown key, did you mean `train.learning_rate`?"]);
    sandbox.write("tiny.toml", "[train]\nlearning_rate = -1\n");
    let run = sandbox.train(&[]).fails_with(&["tiny.toml:2"]);
    assert_eq!(run.code, Some(1), "{run:?}");
}

#[test]
fn a_folder_or_a_text_in_the_place_of_a_configuration_is_trained_on() {
    let sandbox = Sandbox::new();
    sandbox.write("notes/a.md", corpus());
    sandbox.write("notes/b.md", corpus());
    let small = "data.tokenizer=char model.n_layer=1 model.n_head=2 model.n_embd=16 model.block_size=16 \
                 train.batch_size=2 train.max_steps=2 generate.max_new_tokens=4";
    let small: Vec<&str> = small.split_whitespace().flat_map(|s| ["--set", s]).collect();
    let train = |args: &[&str]| sandbox.run(&[&["train", "--device", "cpu", "--threads", "1"], args, &small].concat());
    train(&["notes"]).succeeds().prints(&["corpus     notes, ", "text       2 files", "the built-in quickstart"]);
    train(&["corpus.txt"]).succeeds().prints(&["corpus     corpus, "]);
    train(&["notes", "--config", "tiny.toml"]).succeeds().prints(&["corpus     notes, "]);
    sandbox.write("journal", corpus());
    let run = train(&["journal"]).succeeds();
    assert!(
        run.stderr.contains("note: journal is read as a text to train on; a configuration ends in .toml"),
        "{run:?}"
    );
    sandbox.write("rows.json", format!("[{}]", serde_json::json!({"text": corpus()})));
    let run = train(&["rows.json"]).succeeds();
    assert!(!run.stderr.contains("is read as a text"), "{run:?}");
    sandbox.write("settings", "[data]\ncorpus = \"corpus.txt\"\n");
    train(&["settings"]).succeeds().prints(&["corpus     corpus, "]);
    let run = train(&["notes", "--corpus", "corpus.txt"]).fails_with(&["both name the text"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    train(&["notse"]).fails_with(&["notse: no such file or folder", "a configuration (.toml) or a text"]);
    let run = sandbox.runs()[0].clone();
    train(&[&format!("runs/{run}")]).fails_with(&["is the folder of a run", "--resume"]);
    train(&[&format!("runs/{run}/checkpoints/step-000002")]).fails_with(&["is the folder of a model", "--init"]);
    sandbox.run(&["data", "stats", "notes"]).succeeds().prints(&["corpus         notes: 2 files"]);
}
