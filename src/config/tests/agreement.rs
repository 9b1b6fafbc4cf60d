//! The schema, its list of keys, the documentation and the files in `configs/` say the same.

use std::path::{Path, PathBuf};

use super::*;
use crate::config::keys::KEYS;

#[test]
fn the_list_of_keys_is_the_fields_of_the_structs_in_their_order() {
    let mut config = Config::default();
    config.train.epochs = Some(1.0);
    let table = toml::Table::try_from(config).unwrap();
    let fields: Vec<String> = table
        .iter()
        .flat_map(|(section, keys)| keys.as_table().unwrap().keys().map(move |key| format!("{section}.{key}")))
        .collect();
    assert_eq!(fields, KEYS.iter().map(|key| key.name).collect::<Vec<_>>());
    assert_eq!(table.keys().collect::<Vec<_>>(), keys::SECTIONS);
}

#[test]
fn every_key_is_in_the_documentation() {
    let page = include_str!("../../../docs/configuration.md");
    for key in KEYS {
        assert!(page.contains(&format!("| `{}` |", key.name)), "docs/configuration.md lacks {}", key.name);
    }
}

#[test]
fn the_documentation_names_the_defaults() {
    let page = include_str!("../../../docs/configuration.md");
    let table = toml::Table::try_from(Config::default()).unwrap();
    let derived = ["train.epochs", "train.min_learning_rate", "model.embd_dropout"];
    for key in KEYS.iter().filter(|key| !derived.contains(&key.name)) {
        let (section, name) = key.parts();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", key.name))).unwrap();
        let written = row.split('|').nth(3).unwrap().split('`').nth(1).unwrap();
        let value: toml::Value = written.parse().unwrap();
        assert_eq!(value, table[section][name], "{}", key.name);
    }
}

#[test]
fn every_file_in_configs_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 6, "{files:?}");
    for path in files {
        let resolved = Layers::new().file(&path).and_then(Layers::build).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(load(&resolved.to_toml()).unwrap().config, resolved.config, "{}", path.display());
    }
}

#[test]
fn the_quickstart_is_a_configuration() {
    assert!(load(QUICKSTART).is_ok());
}

#[test]
fn the_files_in_configs_state_only_what_differs_from_the_defaults() {
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    for path in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")).unwrap() {
        let path = path.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let resolved = Layers::new().file(&path).and_then(Layers::build).unwrap();
        let table = toml::Table::try_from(&resolved.config).unwrap();
        for key in KEYS.iter().filter(|key| matches!(resolved.origin(key.name), Origin::File { .. })) {
            let (section, name) = key.parts();
            let default = defaults[section].get(name);
            assert_ne!(Some(&table[section][name]), default, "{}: {}", path.display(), key.name);
        }
    }
}
