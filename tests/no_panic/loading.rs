//! Opening devices for a run, and what is loaded to be used: devices that are not there, folders that hold no model.

use super::data::{NOWHERE, tokenizer};
use super::models::{model, small};
use super::{Defined, HUGE, Refused, Row};
use rustyflow::comm::Launch;
use rustyflow::config::{Layers, Resolved, WeightDtype};
use rustyflow::ops::Effort;
use rustyflow::train::{self, Opening, Prompt};
use rustyflow::{Device, Result};
use std::path::Path;
use std::time::Duration;

const OPENING: Opening = Opening { cache: None, note: &|_| () };

fn nowhere() -> &'static Path {
    Path::new(NOWHERE)
}

fn resolved(lines: &str) -> Result<Resolved> {
    Layers::new().toml_str("test.toml", lines)?.build()
}

pub fn rows() -> Vec<Row> {
    [devices(), models()].concat()
}

fn devices() -> Vec<Row> {
    vec![
        ("Opening::open", Refused, |_| {
            OPENING.open(&resolved("[device]\nkind = \"cpu,cpu\"\n")?.config.device).map(drop)
        }),
        ("Opening::open_autotuned", Refused, |_| {
            OPENING.open_autotuned(&resolved("[device]\nkind = \"cpu,cpu\"\n")?.config.device).map(drop)
        }),
        ("Opening::tune", Refused, |_| {
            let config = &resolved("[device]\nkind = \"cpu\"\n")?.config.device;
            OPENING.tune(config, &Effort::lasting(Duration::MAX)).map(drop)
        }),
        ("Opening::open_for_run", Refused, |_| {
            let mut resolved = resolved("[device]\nkind = \"cpu\"\n")?;
            resolved.config.device.threads = HUGE;
            OPENING.open_for_run(&mut resolved, None, true).map(drop)
        }),
        ("choose_of_machine", Defined, |_| {
            for launch in [None, Some(Launch { process: HUGE, processes: 0, local: HUGE, on_machine: HUGE })] {
                train::choose_of_machine(&mut resolved("")?.config.device, launch);
            }
            Ok(())
        }),
        ("resolve_matmul_f32", Defined, |d| {
            train::resolve_matmul_f32(&mut resolved("")?, d);
            Ok(())
        }),
    ]
}

fn models() -> Vec<Row> {
    vec![
        ("find_init", Refused, |_| train::find_init(&mut resolved("[model]\ninit = \"nobody/has-this-model\"\n")?)),
        ("initial_training", Refused, |d| {
            let config = resolved("[model]\ninit = \"nobody/has-this-model\"\n")?.config;
            train::initial_training(&config, d).map(drop)
        }),
        ("find_model", Refused, |_| train::find_model(nowhere(), &|_| ()).map(drop)),
        ("trained_with", Defined, |_| train::trained_with(nowhere()).map(drop)),
        ("trained_on", Defined, |_| train::trained_on(nowhere()).map(drop)),
        ("trained_rows", Defined, |_| train::trained_rows(nowhere()).map(drop)),
        ("generates_with", Defined, |_| train::generates_with(nowhere()).map(drop)),
        ("load_model", Refused, |d| train::load_model(WeightDtype::F32, nowhere(), d).map(drop)),
        ("move_model", Defined, |d| train::move_model(&mut *model(&small(), &Device::Cpu)?, WeightDtype::F32, d)),
        ("check_f16_weights", Refused, |_| train::check_f16_weights(&Device::Cpu)),
        ("corpus_for_model", Refused, |_| {
            let data = resolved(&format!("[data]\ncorpus = \"{NOWHERE}/text.txt\"\n"))?.config.data;
            train::corpus_for_model(&data, f64::NAN, nowhere(), None, nowhere()).map(drop)
        }),
        ("Prompt::new", Refused, |_| Prompt::new("\u{1f980}", &tokenizer()?, &small()).map(drop)),
    ]
}
