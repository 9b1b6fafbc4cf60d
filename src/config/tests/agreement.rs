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

/// With `UPDATE_DOCS=1` in the environment, writes the tables instead of checking them.
#[test]
fn the_tables_of_the_documentation_are_the_declarations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (mut written, mut section, mut is_in_table) = (String::new(), None, false);
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## `[") {
            section = name.strip_suffix("]`");
        }
        is_in_table &= line.starts_with("| `");
        if is_in_table {
            continue;
        }
        written += &format!("{line}\n");
        // The first table of a section has its keys.
        if line.starts_with("|---")
            && let Some(section) = section.take()
        {
            let keys = KEYS.iter().filter(|key| key.parts().0 == section);
            written.extend(keys.map(|key| key.markdown() + "\n"));
            is_in_table = true;
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let differs = page.lines().zip(written.lines()).find(|(before, now)| before != now);
    assert!(
        std::env::var_os("UPDATE_DOCS").is_some() || page == written,
        "docs/configuration.md is out of date, first at {differs:?}; write it again:\n\
         UPDATE_DOCS=1 cargo test --lib tables_of_the_documentation"
    );
    assert!(KEYS.iter().all(|key| written.contains(&key.markdown())), "a section has no table");
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
