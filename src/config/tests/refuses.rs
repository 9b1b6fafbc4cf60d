//! What is refused, and the message that says so.

use std::path::Path;

use super::*;

#[test]
fn an_unknown_section() {
    let message = error_of(load("\n[trian]\nbatch_size = 1"));
    assert_has(&message, &["a.toml:2", "trian", "did you mean [train]"]);
    assert_has(&error_of(load("[zzzz]")), &["the sections are run, device"]);
}

#[test]
fn an_unknown_key() {
    let message = error_of(load("[train]\nlearning_rat = 1"));
    assert_has(&message, &["a.toml:2", "train.learning_rat:", "did you mean `train.learning_rate`"]);
    assert_has(&error_of(load("[train]\nbatch = 1")), &["did you mean `train.batch_size`"]);
    assert_has(&error_of(load("[log]\nzzzz = 1")), &["the keys of [log] are every"]);
}

#[test]
fn an_unknown_key_that_is_near_to_none_suggests_none() {
    for name in ["foo.bar", "foo.baz", "train.foo", "xyz.abc", "model.width", "data.path", "log.verbosity", "hello"] {
        let message = error_of(Layers::new().set(&format!("{name}=1")).and_then(Layers::build));
        assert!(message.contains("unknown key; the ") && !message.contains("did you mean"), "{name}: {message}");
    }
    for (name, key) in [("model.layers", "n_layer"), ("model.heads", "n_head"), ("train.lerning_rate", "learning_rate")]
    {
        let message = error_of(Layers::new().set(&format!("{name}=1")).and_then(Layers::build));
        assert_has(&message, &["did you mean", key]);
    }
}

#[test]
fn a_key_in_the_wrong_section_or_in_none() {
    assert_has(&error_of(load("[train]\ndropout = 0.1")), &["did you mean `model.dropout`"]);
    assert_has(&error_of(load("batch_size = 1")), &["did you mean `train.batch_size`", "[section]"]);
    assert_has(&error_of(load("train = 1")), &["write [train]"]);
}

#[test]
fn an_unknown_variable() {
    let layers = Layers::new().environment(variables(&[("RUSTYFLOW_TRAIN__LEARNING_RAT", "1")]));
    let message = error_of(layers.and_then(Layers::build));
    assert_has(&message, &["RUSTYFLOW_TRAIN__LEARNING_RAT:", "did you mean `RUSTYFLOW_TRAIN__LEARNING_RATE`"]);
}

#[test]
fn a_variable_with_one_underscore_too_few() {
    let layers = Layers::new().environment(variables(&[("RUSTYFLOW_TRAIN_LEARNING_RATE", "1")]));
    assert_has(&error_of(layers.and_then(Layers::build)), &["RUSTYFLOW_TRAIN__LEARNING_RATE"]);
}

#[test]
fn a_set_of_no_key_or_without_a_value() {
    let set = |assignment: &str| error_of(Layers::new().set(assignment).and_then(Layers::build));
    assert_has(&set("train.lerning_rate=1"), &["--set", "did you mean `train.learning_rate`"]);
    assert_has(&set("train.batch_size"), &["--set", "section.key=value"]);
}

#[test]
fn a_flag_for_no_key() {
    let layers = Layers::new().flag("--steps", "train.steps", 1);
    assert_has(&error_of(layers.and_then(Layers::build)), &["--steps", "train.max_steps"]);
}

#[test]
fn a_value_of_the_wrong_type() {
    let message = error_of(load("[model]\nn_layer = 2\nbias = \"yes\""));
    assert_eq!(message, "a.toml:3: model.bias: expected true or false, got the text \"yes\"");
    assert_has(&error_of(load("[model]\nn_layer = 1.5")), &["a.toml:2", "an integer", "got 1.5"]);
    assert_has(&error_of(load("[train]\nlearning_rate = \"fast\"")), &["a number", "\"fast\""]);
    assert_has(&error_of(load("[run]\nname = 5")), &["a quoted string", "got 5"]);
    assert_has(&error_of(load("[run]\nname = [1]")), &["got a list"]);
    assert_has(&error_of(load("[run]\nname.x = 1")), &["run.name", "got a table"]);
    assert_has(&error_of(load("[run]\nname = 2024-01-01")), &["got the date 2024-01-01"]);
    let message = error_of(Layers::new().set("model.bias=1").and_then(Layers::build));
    assert_eq!(message, "--set: model.bias: expected true or false, got 1");
}

#[test]
fn a_word_that_is_no_choice() {
    let message = error_of(load("[train]\nschedule = \"cosin\""));
    assert_has(&message, &["a.toml:2", "train.schedule", "cosine, linear, constant, wsd, plateau", "\"cosin\""]);
    assert_has(&error_of(load("[optimizer]\nkind = \"lamb\"")), &["adamw, adam, sgd, nag, rmsprop, lion, muon"]);
    assert_has(&error_of(load("[device]\nprecision = \"f64\"")), &["f32, mixed"]);
    for device in ["tpu", "gpu:", "gpu:x", "gpu:-1", "gpu:99999999999999999999"] {
        let message = error_of(load(&format!("[device]\nkind = \"{device}\"")));
        assert_has(&message, &["auto, cpu, gpu, gpu:N", device]);
    }
}

#[test]
fn heads_that_do_not_divide_the_channels() {
    let message = error_of(load("[model]\nn_embd = 130\nn_head = 4"));
    assert_has(&message, &["a.toml:2", "n_embd is 130", "n_head is 4", "make n_embd 128 or 132"]);
    assert_has(&error_of(load("[model]\nn_embd = 3\nn_head = 4")), &["make n_embd 4"]);
}

#[test]
fn values_that_do_not_fit_together_at_the_one_set_last() {
    let layers = Layers::new().toml_str("a.toml", "[model]\nn_embd = 64").unwrap();
    let message = error_of(layers.flag("--heads", "model.n_head", 3).unwrap().build());
    assert_has(&message, &["--heads: model.n_head:", "model.n_embd is 64 (a.toml:2)"]);
}

#[test]
fn sizes_of_zero() {
    for key in [
        "model.n_layer",
        "model.n_head",
        "model.n_embd",
        "model.block_size",
        "train.batch_size",
        "train.grad_accum_steps",
        "train.max_steps",
        "checkpoint.keep_last",
        "log.every",
        "generate.max_new_tokens",
    ] {
        let message = error_of(Layers::new().set(&format!("{key}=0")).and_then(Layers::build));
        assert_eq!(message, format!("--set: {key}: expected at least 1, got 0"));
    }
}

#[test]
fn a_vocabulary_filled_up_to_nothing() {
    for value in [0, 65_537] {
        let message = error_of(Layers::new().set(&format!("model.vocab_multiple={value}")).and_then(Layers::build));
        assert_eq!(message, format!("--set: model.vocab_multiple: expected 1 to 65536, got {value}"));
    }
}

#[test]
fn numbers_out_of_their_range() {
    for (key, values) in [
        ("data.validation_fraction", ["0.0", "1.0"]),
        ("model.dropout", ["-0.1", "1.0"]),
        ("model.embd_dropout", ["-0.1", "1.0"]),
        ("train.learning_rate", ["-0.001", "0.0"]),
        ("train.min_learning_rate", ["-1.0", "-0.1"]),
        ("train.plateau_factor", ["0.0", "1.0"]),
        ("train.epochs", ["0.0", "-1.0"]),
        ("train.grad_clip", ["-1.0", "-0.5"]),
        ("train.label_smoothing", ["-0.1", "1.0"]),
        ("train.ema_decay", ["-0.1", "1.0"]),
        ("generate.min_p", ["-0.1", "1.1"]),
        ("generate.repetition_penalty", ["0.0", "-1.0"]),
        ("generate.stop", ["[\"\"]", "[\"a\", \"\"]"]),
        ("optimizer.beta1", ["-0.1", "1.0"]),
        ("optimizer.beta2", ["-0.1", "1.0"]),
        ("optimizer.eps", ["0.0", "1e-60"]),
        ("optimizer.weight_decay", ["-0.1", "-1.0"]),
        ("optimizer.momentum", ["-0.1", "1.0"]),
        ("optimizer.alpha", ["-0.1", "1.0"]),
        ("optimizer.ns_steps", ["0", "100"]),
        ("optimizer.muon_learning_rate", ["-0.1", "-1.0"]),
        ("generate.temperature", ["-0.1", "-1.0"]),
        ("generate.top_p", ["0.0", "1.1"]),
    ] {
        for value in values {
            let message = error_of(Layers::new().set(&format!("{key}={value}")).and_then(Layers::build));
            assert_has(&message, &["--set", key, &format!("got {value}")]);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_or_too_large_for_32_bits() {
    for value in ["nan", "inf", "-inf", "1e39", "1e999"] {
        let message = error_of(load(&format!("[train]\nlearning_rate = {value}")));
        assert_has(&message, &["a.toml:2", "train.learning_rate", "32 bits"]);
    }
}

#[test]
fn whole_numbers_that_do_not_fit() {
    for value in ["-1", "4294967296", "9223372036854775807"] {
        let message = error_of(load(&format!("[train]\nbatch_size = {value}")));
        assert_has(&message, &["a.toml:2", "train.batch_size", "from 0 to 4294967295", value]);
    }
    let message = error_of(load("[run]\nseed = 99999999999999999999"));
    assert_has(&message, &["a.toml:2", "run.seed", "63 bits", "99999999999999999999"]);
    assert_has(&error_of(load("[run]\nseed = -1")), &["run.seed", "got -1"]);
}

#[test]
fn sizes_whose_product_is_absurd() {
    let message = error_of(load("[train]\nbatch_size = 4294967295"));
    assert_has(&message, &["a.toml:2", "train.batch_size", "tokens a step"]);
    let message = error_of(load("[model]\nn_embd = 4294967295\nn_head = 1\nn_layer = 4294967295"));
    assert_has(&message, &["a.toml:2", "parameters"]);
}

#[test]
fn a_minimum_above_the_learning_rate() {
    let message = error_of(load("[train]\nlearning_rate = 0.001\nmin_learning_rate = 0.01"));
    assert_has(&message, &["a.toml:3", "min_learning_rate is 0.01", "learning_rate is 0.001 (a.toml:2)"]);
}

#[test]
fn a_warm_up_that_never_ends() {
    let message = error_of(load("[train]\nmax_steps = 50\nwarmup_steps = 50"));
    assert_has(&message, &["a.toml:3", "warmup_steps is 50", "max_steps is 50 (a.toml:2)", "make warmup_steps 5"]);
    // Of epochs, once it is known how many steps they make.
    let decay = "[train]\nmax_steps = 50\nwarmup_steps = 20\nschedule = \"wsd\"\ndecay_steps = ";
    assert!(load(&format!("{decay}30")).is_ok());
    let message = error_of(load(&format!("{decay}31")));
    assert_has(&message, &["a.toml:5", "decay_steps is 31", "warmup_steps is 20 (a.toml:3)", "at most 30"]);
    let message = error_of(load("[train]\nschedule = \"plateau\"\neval_every = 0"));
    assert_has(&message, &["a.toml:3", "eval_every is 0", "schedule is plateau (a.toml:2)", "follows the validation"]);
    let layers = Layers::new().toml_str("a.toml", "[train]\nwarmup_steps = 50").unwrap();
    let mut resolved = layers.flag("--epochs", "train.epochs", 2).unwrap().build().unwrap();
    let message = resolved.fit_length(50).unwrap_err().to_string();
    let parts = ["--epochs: train.epochs:", "warmup_steps is 50 (a.toml:2)", "is 2 (--epochs), which makes 50 steps"];
    assert_has(&message, &[&parts[..], &["make warmup_steps 5"]].concat());
}

#[test]
fn a_bpe_vocabulary_smaller_than_its_bytes() {
    let message = error_of(load("[data]\nvocab_size = 256"));
    assert_has(&message, &["a.toml:2", "data.vocab_size", "at least 257", "got 256"]);
    assert!(load("[data]\ntokenizer = \"char\"\nvocab_size = 65").is_ok());
}

#[test]
fn a_run_name_that_is_a_path() {
    for name in ["a/b", "..", ".", "a\\b"] {
        let layers = Layers::new().flag("--name", "run.name", name);
        assert_has(&error_of(layers.and_then(Layers::build)), &["--name", "run.name", "one folder"]);
    }
}

#[test]
fn empty_names() {
    for key in ["run.dir", "data.corpus", "data.tokenizer"] {
        let message = error_of(Layers::new().set(&format!("{key}=")).and_then(Layers::build));
        assert_has(&message, &[key, "a name or a path"]);
    }
}

#[test]
fn too_many_threads() {
    assert_has(&error_of(load("[device]\nthreads = 100000")), &["at most 4096", "got 100000"]);
    assert_has(&error_of(load("[data]\nvocab_size = 0")), &["a.toml:2", "1 to 1048576", "got 0"]);
    assert_has(&error_of(load("[data]\nvocab_size = 4000000000")), &["a.toml:2", "1 to 1048576", "got 4000000000"]);
}

#[test]
fn a_missing_file() {
    let message = error_of(Layers::new().file(Path::new("no/such.toml")).and_then(Layers::build));
    assert_has(&message, &["cannot read no/such.toml"]);
}

#[test]
fn a_file_that_is_not_utf8() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.toml");
    std::fs::write(&path, b"# \xff").unwrap();
    let message = error_of(Layers::new().file(&path).and_then(Layers::build));
    assert_has(&message, &["a.toml", "byte 2 is not UTF-8"]);
}

#[test]
fn text_that_is_not_toml_with_its_line() {
    assert_has(&error_of(load("[run]\nseed = 1\nname = \n")), &["a.toml:3", "not valid TOML"]);
    assert_has(&error_of(load("[run]\nseed = 1\nseed = 2")), &["a.toml:3", "not valid TOML", "duplicate"]);
}

#[test]
fn what_updates_during_backward_cannot_be_combined_with() {
    for (setting, parts) in [
        ("train.grad_accum_steps=4", ["train.grad_accum_steps is 4", "a larger train.batch_size"]),
        ("train.shard_optimizer=true", ["train.shard_optimizer is true", "for one device"]),
        ("train.sync_every=5", ["train.sync_every is 5", "for one device"]),
    ] {
        for (own, told) in [
            ("train.update=layerwise", "train.update is layerwise"),
            ("train.offload=optimizer", "train.offload is optimizer"),
        ] {
            let layers = Layers::new().set(own).unwrap().set("device.precision=mixed").unwrap();
            let with = layers.clone().set("train.eval_every=0").unwrap().set(setting);
            let message = error_of(with.and_then(Layers::build));
            assert_has(&message, &[told]);
            assert_has(&message, &parts);
            layers.build().unwrap();
        }
    }
    let mixed = Layers::new().set("train.offload=optimizer").unwrap().set("device.precision=mixed").unwrap();
    let adapted = mixed.set("model.init=a").unwrap().set("lora.rank=8");
    let lora = error_of(adapted.and_then(Layers::build));
    assert_has(&lora, &["train.offload is optimizer", "lora.rank is 8", "lora.base_dtype saves memory"]);
    let f32 = error_of(Layers::new().set("train.offload=optimizer").and_then(Layers::build));
    assert_has(&f32, &["train.offload is optimizer", "device.precision is f32", "device.precision = \"mixed\""]);
}
