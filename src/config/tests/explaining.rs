//! The text of a configuration in force.

use super::*;
use crate::config::keys::KEYS;

#[test]
fn what_is_written_loads_as_the_same_configuration() {
    let first = Layers::new()
        .toml_str("a\nb.toml", "[train]\nepochs = 2.5\nlearning_rate = 6e-4\n[optimizer]\neps = 1e-12")
        .unwrap()
        .set("device.kind=gpu:2")
        .unwrap()
        .flag("--prompt", "generate.prompt", "a\n\"b\"\\'''\u{7f}\u{0}\r #\t\u{1f600}\"\"\"")
        .unwrap()
        .flag("--seed", "run.seed", i64::MAX)
        .unwrap()
        .build()
        .unwrap();
    let again = Layers::new().toml_str("config.toml", &first.to_toml()).unwrap().build().unwrap();
    assert_eq!(first.config, again.config);
}

#[test]
fn the_defaults_load_as_the_defaults() {
    let text = Layers::new().build().unwrap().to_toml();
    assert_eq!(load(&text).unwrap().config, Config::default());
}

#[test]
fn every_value_has_its_origin_beside_it() {
    let text = Layers::new().toml_str("a.toml", "[log]\nevery = 5").unwrap().set("run.seed=1").unwrap();
    let text = text.build().unwrap().to_toml();
    assert_has(
        &text,
        &[
            "every = 5                  # from a.toml:2",
            "seed = 1      # from --set",
            "eps = 1e-8                     # default",
            "bias = true                      # default",
        ],
    );
    let values: Vec<_> = text.lines().filter(|line| line.contains(" = ")).collect();
    assert!(values.iter().all(|line| line.contains("  # ")), "{text}");
    assert_eq!(values.len(), KEYS.len() - 1, "all keys but epochs");
}

#[test]
fn a_run_without_a_name_is_named_after_corpus_model_and_device() {
    let name = |corpus: &str| {
        let mut config = Config::default();
        config.data.corpus = corpus.into();
        config.run_name("gpu")
    };
    assert_eq!(name("wikitext-2"), "wikitext-2-L4-H4-E128-gpu");
    assert_eq!(name("texts/my book.txt"), "my-book-L4-H4-E128-gpu");
    assert_eq!(name(".."), "corpus-L4-H4-E128-gpu");
    let mut config = Config::default();
    config.run.name = "first".into();
    assert_eq!(config.run_name("cpu"), "first");
}
