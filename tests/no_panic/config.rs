//! Configurations that nobody can mean.

use super::data::NOWHERE;
use super::{Defined, HUGE, Refused, Row};
use rustyflow::config::{Config, Layers, MatmulF32, Recipe, Resolved, current_word};
use rustyflow::{Error, Result};
use std::path::Path;

fn defaults() -> Result<Resolved> {
    Layers::new().build()
}

fn recipe() -> Result<Recipe> {
    Recipe::of_text("test", "[recipe]\nabout = \"\"\nvalidation_loss = 1.0\ntolerance = 0.1\n")
}

pub fn rows() -> Vec<Row> {
    vec![
        ("Layers::toml_str", Refused, |_| Layers::new().toml_str("", "[train").map(drop)),
        ("Layers::toml_str", Refused, |_| Layers::new().toml_str("", "[train]\nbatch_size = -1").map(drop)),
        ("Layers::file", Refused, |_| Layers::new().file(Path::new(NOWHERE)).map(drop)),
        ("Layers::environment", Refused, |_| {
            Layers::new().environment([("RUSTYFLOW___".into(), "1".into())].into_iter()).map(drop)
        }),
        ("Layers::set", Refused, |_| Layers::new().set("").map(drop)),
        ("Layers::set", Refused, |_| Layers::new().set("=").map(drop)),
        ("Layers::set", Refused, |_| Layers::new().set("train.batch_size=1e400").map(drop)),
        ("Layers::flag", Refused, |_| Layers::new().flag("--flag", "no.key", f64::NAN).map(drop)),
        ("Recipe::of_file", Refused, |_| Recipe::of_file(Path::new(NOWHERE)).map(drop)),
        ("Recipe::of_text", Refused, |_| Recipe::of_text("", "[recipe]").map(drop)),
        ("Recipe::is_met_by", Refused, |_| match recipe()?.is_met_by(f64::NAN) {
            true => Ok(()),
            false => Err(Error::Invalid("it is not".into())),
        }),
        ("Resolved::origin", Defined, |_| {
            assert!(defaults()?.origin("no.key").is_default());
            Ok(())
        }),
        ("Resolved::resolve_matmul_f32", Defined, |_| {
            defaults()?.resolve_matmul_f32(MatmulF32::Auto, "");
            Ok(())
        }),
        ("Resolved::resolve_device_batch", Defined, |_| {
            defaults()?.resolve_device_batch(vec![0, HUGE], "");
            Ok(())
        }),
        ("Resolved::derive", Defined, |_| {
            defaults()?.derive("no.key", "", |_| ());
            Ok(())
        }),
        ("Resolved::is_auto", Defined, |_| {
            assert!(!defaults()?.is_auto("no.key"));
            Ok(())
        }),
        ("Resolved::settle", Defined, |_| {
            defaults()?.settle("no.key", "", |config| config.train.batch_size = HUGE);
            Ok(())
        }),
        ("TrainConfig::recomputed_blocks", Defined, |_| {
            let mut train = defaults()?.config.train;
            train.recompute_blocks = HUGE;
            assert_eq!([train.recomputed_blocks(HUGE), train.recomputed_blocks(0)], [0, 0]);
            Ok(())
        }),
        ("Resolved::follow_model", Refused, |_| {
            let mut resolved = Layers::new().set("model.n_layer=3")?.build()?;
            let other = Config::default().model;
            resolved.follow_model(other, "there")
        }),
        ("Resolved::fit_length", Defined, |_| defaults()?.fit_length(HUGE)),
        ("Resolved::fit_length", Refused, |_| Layers::new().set("train.warmup_steps=9")?.build()?.fit_length(0)),
        ("Config::run_name", Defined, |_| {
            let mut config = Config::default();
            config.data.corpus = "..".into();
            assert!(!config.run_name("").is_empty());
            Ok(())
        }),
        ("Config::changes", Defined, |_| {
            assert!(Config::default().changes(&Config::default())?.is_empty());
            Ok(())
        }),
        ("Config::changes", Refused, |_| {
            let mut config = Config::default();
            config.train.batch_size = HUGE;
            Config::default().changes(&config).map(drop)
        }),
        ("current_word", Defined, |_| {
            assert!(current_word("", "").is_none());
            Ok(())
        }),
    ]
}
