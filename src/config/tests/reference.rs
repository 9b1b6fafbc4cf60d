//! The file to begin with and the schema have every key, as the structs have it.

use super::*;
use crate::config::keys::KEYS;

#[test]
fn the_template_changes_nothing() {
    assert_eq!(load(&template()).unwrap().config, Config::default());
}

#[test]
fn every_line_of_the_template_can_be_taken_into_force_and_gives_the_default() {
    let template = template();
    let set = template.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') && !key.ends_with('=') => format!("{key}\n"),
        _ => format!("{line}\n"),
    });
    let resolved = load(&set.collect::<String>()).unwrap();
    assert_eq!(resolved.config, Config::default());
    let derived = ["train.epochs", "train.min_learning_rate", "model.embd_dropout"];
    for key in KEYS.iter().filter(|key| !derived.contains(&key.name)) {
        assert!(matches!(resolved.origin(key.name), Origin::File { .. }), "{}", key.name);
    }
}

#[test]
fn the_schema_has_every_key_with_its_default() {
    let schema = json_schema();
    let defaults = serde_json::to_value(Config::default()).unwrap();
    for key in KEYS {
        let (section, name) = key.parts();
        let of_key = &schema["properties"][section]["properties"][name];
        let has_type = of_key["type"].is_string() || of_key["anyOf"].is_array();
        assert!(has_type && of_key["description"].is_string(), "{}: {of_key}", key.name);
        if key.name != "train.min_learning_rate" && key.name != "model.embd_dropout" {
            assert_eq!(of_key["default"], defaults[section][name], "{}", key.name);
        }
    }
    let of_train = |name: &str| &schema["properties"]["train"]["properties"][name];
    assert_eq!(of_train("batch_size")["minimum"], 1);
    assert_eq!(of_train("ema_decay")["exclusiveMaximum"], 1);
    assert_eq!(of_train("plateau_factor")["exclusiveMinimum"], 0);
    // What no key has is an error, for editors too.
    let sections = keys::SECTIONS.iter().map(|section| &schema["properties"][section]);
    assert!([&schema].into_iter().chain(sections).all(|object| object["additionalProperties"] == false), "{schema}");
    // And `[recipe]`.
    assert_eq!(schema["properties"].as_object().unwrap().len(), keys::SECTIONS.len() + 1);
}
