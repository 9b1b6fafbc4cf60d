//! Which value wins.

use super::*;

#[test]
fn nothing_given_is_the_defaults() {
    let resolved = Layers::new().build().unwrap();
    assert_eq!(resolved.config, Config::default());
    assert_eq!(resolved.origin("model.n_layer"), &Origin::Default);
}

#[test]
fn each_layer_wins_over_the_ones_below_whatever_the_order_of_calls() {
    let file = "[model]\nn_layer = 1\nn_head = 1\nblock_size = 1\nn_embd = 8\n";
    let resolved = Layers::new()
        .flag("--layers", "model.n_layer", 4)
        .unwrap()
        .set("model.n_layer=3")
        .unwrap()
        .set("model.n_head=2")
        .unwrap()
        .environment(variables(&[
            ("RUSTYFLOW_MODEL__N_LAYER", "2"),
            ("RUSTYFLOW_MODEL__N_HEAD", "8"),
            ("RUSTYFLOW_MODEL__BLOCK_SIZE", "7"),
        ]))
        .unwrap()
        .toml_str("a.toml", file)
        .unwrap()
        .build()
        .unwrap();
    let model = &resolved.config.model;
    assert_eq!((model.n_layer, model.n_head, model.block_size, model.n_embd), (4, 2, 7, 8));
    let origins = ["n_layer", "n_head", "block_size", "n_embd", "dropout"]
        .map(|key| resolved.origin(&format!("model.{key}")).to_string());
    assert_eq!(origins, ["--layers", "--set", "RUSTYFLOW_MODEL__BLOCK_SIZE", "a.toml:5", "default"]);
}

#[test]
fn of_two_files_the_later_wins() {
    let layers = Layers::new().toml_str("a.toml", "[log]\nevery = 1").unwrap();
    let resolved = layers.toml_str("b.toml", "[log]\nevery = 2").unwrap().build().unwrap();
    assert_eq!(resolved.config.log.every, 2);
    assert_eq!(resolved.origin("log.every").to_string(), "b.toml:2");
}

#[test]
fn epochs_of_a_higher_layer_replace_max_steps() {
    let layers = Layers::new().toml_str("a.toml", "[train]\nmax_steps = 50\nwarmup_steps = 5").unwrap();
    let resolved = layers.set("train.epochs=1.5").unwrap().build().unwrap();
    assert_eq!(resolved.config.train.length(), TrainLength::Epochs(1.5));
    assert_eq!(resolved.config.train.max_steps, None);
    assert!(!resolved.origins.contains_key("train.max_steps"));
}

#[test]
fn max_steps_of_a_higher_layer_replace_epochs() {
    let layers = Layers::new().toml_str("a.toml", "[train]\nepochs = 2").unwrap();
    let resolved = layers.flag("--steps", "train.max_steps", 50usize).unwrap().build().unwrap();
    assert_eq!(resolved.config.train.length(), TrainLength::Steps(50));
    assert_eq!(resolved.config.train.epochs, None);
}

#[test]
fn epochs_and_max_steps_of_one_layer_are_refused() {
    let message = error_of(load("[train]\nmax_steps = 500\nepochs = 2"));
    assert_has(&message, &["a.toml:3", "train.epochs", "train.max_steps", "a.toml:2", "only one"]);
    let layers = Layers::new().set("train.epochs=2").unwrap().set("train.max_steps=5").unwrap();
    assert_has(&error_of(layers.build()), &["--set: train.epochs"]);
}

#[test]
fn min_learning_rate_follows_the_learning_rate() {
    let resolved = load("[train]\nlearning_rate = 0.5").unwrap();
    assert_eq!(resolved.config.train.min_learning_rate, 0.05);
    assert_eq!(resolved.origin("train.min_learning_rate").to_string(), "default: a tenth of learning_rate");
    let resolved = load("[train]\nschedule = \"wsd\"").unwrap();
    assert_eq!(resolved.config.train.min_learning_rate, 0.0);
    let origin = resolved.origin("train.min_learning_rate").to_string();
    assert_eq!(origin, "default: none, for train.schedule is wsd");
}

#[test]
fn momentum_follows_the_optimizer() {
    let of = |text: &str| load(text).unwrap().config.optimizer.momentum;
    assert_eq!(of("optimizer.kind = \"sgd\""), 0.9);
    assert_eq!(of("optimizer.kind = \"muon\""), 0.95);
    assert_eq!(of("[optimizer]\nkind = \"muon\"\nmomentum = 0.9"), 0.9);
    assert_eq!(of("optimizer.kind = \"nag\""), 0.9);
    assert_eq!(of("optimizer.kind = \"rmsprop\""), 0.0);
    assert_eq!(of("[optimizer]\nkind = \"rmsprop\"\nmomentum = 0.9"), 0.9);
}

#[test]
fn beta2_follows_the_optimizer() {
    let of = |text: &str| load(text).unwrap().config.optimizer.beta2;
    assert_eq!(of("optimizer.kind = \"muon\""), 0.95);
    assert_eq!(of("optimizer.kind = \"lion\""), 0.99);
    assert_eq!(of("[optimizer]\nkind = \"lion\"\nbeta2 = 0.95"), 0.95);
}

#[test]
fn the_dropout_of_embeddings_follows_that_of_the_model() {
    let resolved = load("[model]\ndropout = 0.2").unwrap();
    assert_eq!(resolved.config.model.embd_dropout, 0.2);
    assert_eq!(resolved.origin("model.embd_dropout").to_string(), "default: that of model.dropout");
    assert_eq!(load("[model]\ndropout = 0.2\nembd_dropout = 0").unwrap().config.model.embd_dropout, 0.0);
}

#[test]
fn a_short_run_shortens_the_default_warm_up() {
    let resolved = load("[train]\nmax_steps = 20").unwrap();
    assert_eq!(resolved.config.train.warmup_steps, 2);
    assert_eq!(load("[train]\nmax_steps = 5000").unwrap().config.train.warmup_steps, 100);
}

#[test]
fn a_short_run_is_evaluated_five_times() {
    let of = |text: &str| load(text).unwrap();
    let resolved = of("[train]\nmax_steps = 100");
    assert_eq!(resolved.config.train.eval_every, 20);
    assert_eq!(resolved.origin("train.eval_every").to_string(), "default: a fifth of max_steps");
    assert_eq!(of("[train]\nmax_steps = 3").config.train.eval_every, 1);
    assert_eq!(of("[train]\nmax_steps = 5000").config.train.eval_every, 200);
    assert_eq!(of("[train]\nmax_steps = 100\neval_every = 0").config.train.eval_every, 0, "what was set stays");
    let apart = of("[train]\nmax_steps = 100\nsync_every = 8\n[checkpoint]\nevery = 8");
    assert_eq!(apart.config.train.eval_every, 16, "a multiple of sync_every");
    let mut epochs = of("[train]\nepochs = 2");
    epochs.fit_length(50).unwrap();
    assert_eq!(epochs.config.train.eval_every, 10);
    assert_eq!(epochs.origin("train.eval_every").to_string(), "default: a fifth of the steps of epochs");
}

#[test]
fn values_of_a_run_that_nobody_set_follow_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let run = load("[train]\nmax_steps = 100\nlearning_rate = 0.01").unwrap();
    let again = |text: &str, set: &str| {
        std::fs::write(&path, text).unwrap();
        Layers::new().file(&path).unwrap().set(set).unwrap().build()
    };
    let text = run.to_toml();
    assert_eq!(again(&text, "log.every=10").unwrap().config, run.config);
    let lower = again(&text, "train.learning_rate=1e-4").unwrap();
    assert_eq!(lower.config.train.min_learning_rate, 1e-4 / 10.0);
    let longer = again(&text, "train.max_steps=200").unwrap().config.train;
    assert_eq!((longer.eval_every, longer.warmup_steps), (40, 10));
    assert_eq!(again(&text, "train.max_steps=8").unwrap().config.train.warmup_steps, 0, "it would never end");
    // A value that was edited since is one that somebody set.
    let edited = text.replace("min_learning_rate = 0.001 ", "min_learning_rate = 0.002 ");
    assert_ne!(edited, text);
    assert_eq!(again(&edited, "log.every=10").unwrap().config.train.min_learning_rate, 0.002);
    let message = error_of(again(&edited, "train.learning_rate=1e-4"));
    assert_has(&message, &["--set", "min_learning_rate is 0.002"]);
}

#[test]
fn few_steps_of_epochs_shorten_the_default_warm_up() {
    let mut resolved = load("[train]\nepochs = 2").unwrap();
    resolved.fit_length(2000).unwrap();
    assert_eq!(resolved.config.train.warmup_steps, 100);
    assert_eq!(resolved.origin("train.warmup_steps").to_string(), "default");
    resolved.fit_length(103).unwrap();
    assert_eq!(resolved.config.train.warmup_steps, 10);
    assert_eq!(resolved.origin("train.warmup_steps").to_string(), "default: a tenth of the steps of epochs");
    let mut set = load("[train]\nepochs = 2\nwarmup_steps = 50").unwrap();
    set.fit_length(51).unwrap();
    assert_eq!(set.config.train.warmup_steps, 50, "what was set stays");
}

#[test]
fn other_variables_are_passed_over() {
    let others = variables(&[
        ("RUSTYFLOW_GPU_DEVICE", "1"),
        ("RUSTYFLOW_GPU_LIMITS", "x"),
        ("RUSTYFLOW_GPU_BUFFER", "x"),
        ("RUSTYFLOW_REQUIRE_GPU", "1"),
        ("RUSTYFLOW_CACHE_DIR", "/tmp"),
        ("SOME__THING", "1"),
    ]);
    assert_eq!(Layers::new().environment(others).unwrap().build().unwrap().config, Config::default());
}

#[test]
fn a_whole_number_is_fine_where_a_real_one_is_expected() {
    assert_eq!(load("[train]\ngrad_clip = 1").unwrap().config.train.grad_clip, 1.0);
    let config = Layers::new().set("train.epochs=3").unwrap().build().unwrap().config;
    assert_eq!(config.train.epochs, Some(3.0));
}

#[test]
fn set_takes_toml_values_and_bare_words() {
    let set = |assignment: &str| Layers::new().set(assignment).unwrap().build().unwrap().config;
    assert_eq!(set("device.kind=gpu:1").device.kind, DeviceKind::Gpu(Some(1)).into());
    assert_eq!(set("device.kind=\"cpu\"").device.kind, DeviceKind::Cpu.into());
    assert_eq!(set("generate.prompt=Once upon = a time").generate.prompt, "Once upon = a time");
    assert_eq!(set("generate.prompt=\"a\\nb\"").generate.prompt, "a\nb");
    assert_eq!(set("generate.prompt=").generate.prompt, "");
    assert_eq!(set("run.name=2024").run.name, "2024");
    assert!(!set(" model.bias = false ").model.bias);
    assert_eq!(set("train.learning_rate=.5").train.learning_rate, 0.5);
    assert_eq!(set("train.max_steps=10_000").train.max_steps, Some(10_000));
}

#[test]
fn a_flag_takes_text_literally() {
    let layers = Layers::new().flag("--prompt", "generate.prompt", "\"Hello\"").unwrap();
    assert_eq!(layers.build().unwrap().config.generate.prompt, "\"Hello\"");
}

#[test]
fn a_file_is_read_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    // Which is no TOML.
    let flat = "export log.every=3";
    for (name, text) in [("a.toml", "[log]\nevery = 3"), (".env", flat), ("x.ENV", flat), (".env.gpu", flat)] {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        let resolved = Layers::new().file(&path).unwrap().build().unwrap();
        assert_eq!(resolved.config.log.every, 3, "{name}");
    }
}
