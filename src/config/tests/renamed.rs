//! Former names of keys and words, which one version still reads.

use super::*;
use crate::config::keys::{KEYS, OTHER_NAMES, RENAMED_KEYS, RENAMED_WORDS};

/// The value, and what was warned of.
fn outcome(layers: Result<Layers>) -> (MatmulF32, Vec<String>) {
    let resolved = layers.and_then(Layers::build).unwrap();
    (resolved.config.device.matmul_f32, resolved.warnings)
}

fn env(text: &str) -> Result<Layers> {
    env_file::read("a.env", text).map(Layers::from_layer)
}

#[test]
fn a_former_key_is_read_wherever_it_is_written_and_the_new_one_is_named() {
    let environment = variables(&[("RUSTYFLOW_DEVICE__F32_PRODUCTS", "fma")]);
    for (layers, place, new) in [
        (Layers::new().toml_str("a.toml", "[device]\nf32_products = \"fma\""), "a.toml:2", "device.matmul_f32"),
        (env("device.f32_products=fma"), "a.env:1", "device.matmul_f32"),
        (env("\nRUSTYFLOW_DEVICE__F32_PRODUCTS=fma"), "a.env:2", "device.matmul_f32"),
        (Layers::new().environment(environment), "RUSTYFLOW_DEVICE__F32_PRODUCTS", "RUSTYFLOW_DEVICE__MATMUL_F32"),
        (Layers::new().set("device.f32_products=fma"), "--set", "device.matmul_f32"),
    ] {
        let (value, warnings) = outcome(layers);
        assert_eq!((value, warnings.len()), (MatmulF32::Fma, 1), "{place}: {warnings:?}");
        assert_has(&warnings[0], &[place, "device.f32_products is called ", new, "next version"]);
    }
}

#[test]
fn another_name_of_a_key_is_read_as_its_own_without_a_warning() {
    let environment = variables(&[("RUSTYFLOW_TRAIN__PRECISION", "mixed")]);
    for layers in [
        Layers::new().toml_str("a.toml", "[train]\nprecision = \"mixed\""),
        env("RUSTYFLOW_TRAIN__PRECISION=mixed"),
        Layers::new().environment(environment),
        Layers::new().set("train.precision=mixed"),
    ] {
        let resolved = layers.and_then(Layers::build).unwrap();
        assert_eq!((resolved.config.device.precision, resolved.warnings), (Precision::Mixed, vec![]));
    }
    let twice = load("[device]\nprecision = \"f32\"\n[train]\nprecision = \"mixed\"");
    assert_has(&error_of(twice), &["device.precision", "is set twice, first at a.toml:2"]);
}

#[test]
fn a_former_word_is_read_under_either_key() {
    for assignment in ["device.matmul_f32=halves", "device.f32_products=halves"] {
        let (value, warnings) = outcome(Layers::new().set(assignment));
        assert_eq!(value, MatmulF32::SplitFp16, "{assignment}");
        let about_the_word = warnings.last().unwrap();
        assert_has(
            about_the_word,
            &["--set: device.matmul_f32 = \"halves\" is written \"split-fp16\" now", "next version"],
        );
    }
    let flag = Layers::new().flag("--matmul-f32", "device.matmul_f32", "halves");
    assert_eq!(outcome(flag).0, MatmulF32::SplitFp16);
}

#[test]
fn what_is_written_as_it_should_be_warns_of_nothing() {
    let layers = Layers::new().toml_str("a.toml", "[device]\nmatmul_f32 = \"split-fp16\"\n[run]\nname = \"halves\"");
    let (value, warnings) = outcome(layers);
    assert_eq!((value, warnings), (MatmulF32::SplitFp16, vec![]));
}

#[test]
fn a_key_under_both_names_in_one_layer_is_refused() {
    let toml = Layers::new().toml_str("a.toml", "[device]\nmatmul_f32 = \"fma\"\nf32_products = \"halves\"");
    let both = variables(&[("RUSTYFLOW_DEVICE__F32_PRODUCTS", "fma"), ("RUSTYFLOW_DEVICE__MATMUL_F32", "fma")]);
    for layers in [toml, env("device.matmul_f32=fma\ndevice.f32_products=fma"), Layers::new().environment(both)] {
        assert_has(&error_of(layers.and_then(Layers::build)), &["device.matmul_f32", "is set twice, first at "]);
    }
}

#[test]
fn every_former_name_leads_to_one_that_exists() {
    let exists = |name: &str| KEYS.iter().any(|key| key.name == name);
    for (former, name) in RENAMED_KEYS.iter().chain(OTHER_NAMES) {
        assert!(!exists(former) && exists(name), "{former}");
    }
    for (name, former, word) in RENAMED_WORDS {
        let key = KEYS.iter().find(|key| key.name == *name).unwrap();
        let takes = |word: &str| key.kind.check(toml::Value::String(word.into())).is_ok();
        assert!(!takes(former) && takes(word), "{name} = {former}");
    }
}

#[test]
fn auto_is_resolved_once_and_read_again_as_what_it_came_to() {
    let mut resolved = Layers::new().set("device.matmul_f32=auto").unwrap().build().unwrap();
    resolved.resolve_matmul_f32(MatmulF32::SplitFp16, "measured");
    let text = resolved.to_toml();
    assert_has(&text, &["matmul_f32 = \"split-fp16\"", "# auto: measured"]);
    let mut resumed = load(&text).unwrap();
    resumed.resolve_matmul_f32(MatmulF32::Fma, "measured anew");
    assert_eq!(resumed.config.device.matmul_f32, MatmulF32::SplitFp16);
}
