//! Differences between two configurations, and the keys that may change when a run is resumed.

use super::explain::written;
use super::keys::KEYS;
use super::schema::Config;
use crate::error::{Error, Result};
use toml::{Table, Value};

/// A key with two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// `section.key`
    pub key: &'static str,
    /// The old value as TOML, or `unset`.
    pub before: String,
    pub after: String,
}

/// Keys and sections that may change when a run is resumed: length, learning rate, reports, checkpoints, and devices.
/// Changing any other key would invalidate the steps computed so far. A new key is refused until it is listed here.
const CHANGEABLE: &[&str] = &[
    "run.dir",
    "device.kind",
    "device.matmul_f32",
    "device.threads",
    "device.allow_fallback",
    "device.allow_software",
    // A text may have moved; that it is the same text is checked by its hash.
    "data.corpus",
    "train.max_steps",
    "train.epochs",
    "train.learning_rate",
    "train.min_learning_rate",
    "train.warmup_steps",
    "train.schedule",
    "train.decay_steps",
    "train.plateau_factor",
    "train.plateau_patience",
    "train.eval_every",
    "train.eval_batches",
    "train.grad_clip",
    "train.recompute",
    "train.recompute_blocks",
    "train.update",
    "train.offload",
    "train.device_batch",
    "train.comm",
    "train.reduce_dtype",
    "train.shard_optimizer",
    "train.comm_timeout",
    "optimizer.muon_learning_rate",
    "optimizer.state_dtype",
    "checkpoint",
    "guard",
    "log",
    "generate",
];

impl Change {
    /// Whether it is allowed on resume.
    pub fn is_allowed_on_resume(&self) -> bool {
        let section = self.key.split('.').next().unwrap_or_default();
        CHANGEABLE.contains(&self.key) || CHANGEABLE.contains(&section)
    }
}

impl Config {
    /// The differences of `after`, in the order of the schema.
    ///
    /// # Errors
    /// If a number exceeds TOML's 2^63 - 1.
    pub fn changes(&self, after: &Config) -> Result<Vec<Change>> {
        let table = |config| {
            Table::try_from(config).map_err(|e| Error::Invalid(format!("a configuration cannot be compared: {e}")))
        };
        let [before, after] = [table(self)?, table(after)?];
        let text = |value: Option<&Value>| value.map_or("unset".into(), written);
        let mut changes = Vec::new();
        for key in KEYS {
            let (section, name) = key.parts();
            let [before, after] = [&before, &after].map(|table| table.get(section).and_then(|s| s.get(name)));
            if before != after {
                changes.push(Change { key: key.name, before: text(before), after: text(after) });
            }
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_and_judged_key_by_key() {
        let before = Config::default();
        let mut after = before.clone();
        assert_eq!(before.changes(&after).unwrap(), []);
        after.model.n_embd = 64;
        after.train.max_steps = None;
        after.train.epochs = Some(2.0);
        after.log.every = 7;
        let changes = before.changes(&after).unwrap();
        let told: Vec<(&str, &str, &str, bool)> =
            changes.iter().map(|c| (c.key, &*c.before, &*c.after, c.is_allowed_on_resume())).collect();
        assert_eq!(
            told,
            [
                ("model.n_embd", "128", "64", false),
                ("train.max_steps", "1000", "unset", true),
                ("train.epochs", "unset", "2.0", true),
                ("log.every", "10", "7", true),
            ]
        );
    }

    #[test]
    fn the_documentation_lists_what_may_change() {
        let page = include_str!("../../docs/configuration.md");
        let (_, section) = page.split_once("## Resuming with other values").expect("the section");
        let section = section.split("\n## ").next().unwrap();
        for name in CHANGEABLE {
            let written = if name.contains('.') { format!("`{name}`") } else { format!("`[{name}]`") };
            assert!(section.contains(&written), "docs/configuration.md lacks {written}");
        }
        let exists = |name: &str| KEYS.iter().any(|key| key.name == name || key.parts().0 == name);
        assert!(CHANGEABLE.iter().all(|name| exists(name)));
    }
}
