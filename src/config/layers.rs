//! Merges the layers into the typed configuration.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use toml::{Table, Value};

use super::choice::{MatmulF32, NonFinite, OptimizerKind, Schedule};
use super::device_batch::DeviceBatch;
use super::keys::{self, KEYS, Key, Kind, Named};
use super::origin::Origin;
use super::schema::{Config, ModelConfig};
use super::{env_file, explain, toml_file, validate, wrong};
use crate::error::{Error, Result};
use crate::units;

const MAX_STEPS: &str = "train.max_steps";
const EPOCHS: &str = "train.epochs";
const WARMUP: &str = "train.warmup_steps";
const MIN_LEARNING_RATE: &str = "train.min_learning_rate";
const EVAL_EVERY: &str = "train.eval_every";

/// Evaluations that a run makes at least, where nobody says how often.
const LEAST_EVALUATIONS: usize = 5;

/// What a warning about a former name ends in.
const FORMER: &str = "the next version will not read the former name";

/// Collects values in any order of calls: the higher layer wins, and within a layer the later value. Names and types
/// are checked when a value is added, so that an error can name the place; `build` checks ranges.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    layers: Vec<Layer>,
}

/// A value, and where it came from.
#[derive(Clone, Debug)]
struct Given {
    value: Value,
    origin: Origin,
}

/// The values of one file, of the environment, of all `--set`, or of all flags.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    /// See [`Origin::rank`].
    rank: u8,
    values: BTreeMap<&'static str, Given>,
    /// Warnings about deprecated names.
    warnings: Vec<String>,
}

impl Layer {
    /// Adds a value of the key, after checking its type. A former name or word becomes the current one.
    pub(super) fn insert(&mut self, named: Named, value: Value, origin: Origin) -> Result<()> {
        let Named { key, former } = named;
        if let Some(former) = former {
            let current = if let Origin::Environment(_) = origin { key.variable() } else { key.name.into() };
            self.warnings.push(format!("{origin}: {former} is called {current} now: {FORMER}"));
        }
        let renamed = value.as_str().and_then(|word| Some((word.to_string(), keys::current_word(key.name, word)?)));
        let value = match renamed {
            Some((word, current)) => {
                self.warnings.push(format!("{origin}: {} = {word:?} is written {current:?} now: {FORMER}", key.name));
                Value::String(current.into())
            }
            None => value,
        };
        let value = key.kind.check(value).map_err(|message| wrong(&origin, key.name, message))?;
        self.rank = origin.rank();
        self.values.insert(key.name, Given { value, origin });
        Ok(())
    }

    /// As [`insert`](Self::insert), for a layer in which no key may be set twice, under two names either.
    pub(super) fn insert_once(&mut self, named: Named, value: Value, origin: Origin) -> Result<()> {
        match self.origin(named.key.name) {
            Some(earlier) => Err(wrong(origin, named.key.name, format!("is set twice, first at {earlier}"))),
            None => self.insert(named, value, origin),
        }
    }

    /// Where the layer sets this key, if it does.
    pub(super) fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.get(name).map(|given| &given.origin)
    }
}

impl Layers {
    /// Only the defaults.
    pub fn new() -> Self {
        Layers::default()
    }

    /// Adds the text of a TOML file; `place` is its name in errors and origins.
    pub fn toml_str(mut self, place: &str, text: &str) -> Result<Self> {
        self.layers.push(toml_file::read(place, text)?);
        Ok(self)
    }

    /// Adds a file: `.env`, `.env.*` and `*.env` have `NAME=value` lines, all others TOML. Later files override earlier
    /// ones.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| Error::io("read", path, source))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to();
            wrong(&place, "not a text file", format!("byte {offset} is not UTF-8; save the file as UTF-8"))
        })?;
        // Editors on Windows put a byte order mark first.
        let text = text.trim_start_matches('\u{feff}');
        let layer = match is_env_file(path) {
            true => env_file::read(&place, text)?,
            false => release_derived(toml_file::read(&place, text)?, text),
        };
        self.layers.push(layer);
        Ok(self)
    }

    /// Adds the environment: variables named `RUSTYFLOW_SECTION__KEY`, with values as for [`set`](Self::set). Names
    /// without `__` are ignored, unless they are a key's name with one `_` missing.
    pub fn environment(mut self, variables: impl Iterator<Item = (String, String)>) -> Result<Self> {
        let mut layer = Layer::default();
        for (name, text) in variables {
            let Some(rest) = name.strip_prefix("RUSTYFLOW_") else { continue };
            match rest.split_once("__") {
                Some((section, key)) => {
                    let key_name = format!("{}.{}", section.to_lowercase(), key.to_lowercase());
                    let Some(named) = keys::find(&key_name) else {
                        return Err(wrong(name, key_name.as_str(), keys::unknown_key(&key_name, Key::variable)));
                    };
                    layer.insert_once(named, named.key.value_of_toml(&text), Origin::Environment(name))?;
                }
                None => {
                    let meant = |key: &&Key| key.name.replace('.', "_") == rest.to_lowercase();
                    if let Some(key) = KEYS.iter().find(meant) {
                        let message = format!("write two underscores after the section: {}", key.variable());
                        return Err(wrong(name, key.name, message));
                    }
                }
            }
        }
        self.layers.push(layer);
        Ok(self)
    }

    /// Adds `--set section.key=value`. The value is TOML; a text needs no quotes.
    pub fn set(mut self, assignment: &str) -> Result<Self> {
        let Some((name, text)) = assignment.split_once('=') else {
            return Err(wrong("--set", assignment, "expected section.key=value, found no `=`"));
        };
        let name = name.trim();
        let Some(named) = keys::find(name) else {
            return Err(wrong("--set", name, keys::unknown_key(name, |key| key.name.into())));
        };
        self.layer_of(&Origin::Set).insert(named, named.key.value_of_toml(text.trim()), Origin::Set)?;
        Ok(self)
    }

    /// Adds a flag; `flag` is its name (`--steps`), `key` is `section.key`, and the text of `value` is literal.
    pub fn flag(mut self, flag: &'static str, key: &str, value: impl Display) -> Result<Self> {
        let origin = Origin::Flag(flag);
        let Some(named) = keys::find(key) else {
            return Err(wrong(origin, key, keys::unknown_key(key, |key| key.name.into())));
        };
        self.layer_of(&origin).insert(named, named.key.value_of_text(&value.to_string()), origin)?;
        Ok(self)
    }

    #[cfg(test)]
    pub(super) fn from_layer(layer: Layer) -> Self {
        Layers { layers: vec![layer] }
    }

    /// The one layer of all `--set`, or of all flags.
    fn layer_of(&mut self, origin: &Origin) -> &mut Layer {
        let index = self.layers.iter().position(|layer| layer.rank == origin.rank()).unwrap_or_else(|| {
            self.layers.push(Layer { rank: origin.rank(), ..Layer::default() });
            self.layers.len() - 1
        });
        &mut self.layers[index]
    }

    /// `run.dir`, the folder of runs, before the configuration is complete.
    #[cfg(feature = "cli")]
    pub(crate) fn run_dir(&self) -> String {
        let given = self.layers.iter().filter_map(|layer| Some((layer.rank, layer.values.get("run.dir")?)));
        let highest = given.max_by_key(|(rank, _)| *rank).and_then(|(_, given)| given.value.as_str());
        highest.map_or_else(|| Config::default().run.dir, str::to_string)
    }

    /// Merges and validates the configuration.
    pub fn build(mut self) -> Result<Resolved> {
        self.layers.sort_by_key(|layer| layer.rank);
        let (mut values, mut warnings) = (BTreeMap::new(), Vec::new());
        for layer in self.layers {
            // Both say how long to train, so either replaces the other of the layers below.
            match (layer.origin(MAX_STEPS), layer.origin(EPOCHS)) {
                (Some(steps), Some(epochs)) => {
                    let message = format!("{MAX_STEPS} is set as well ({steps}); set only one of the two");
                    return Err(wrong(epochs, EPOCHS, message));
                }
                (Some(_), None) => drop(values.remove(EPOCHS)),
                (None, Some(_)) => drop(values.remove(MAX_STEPS)),
                (None, None) => {}
            }
            values.extend(layer.values);
            warnings.extend(layer.warnings);
        }
        let resolved = Resolved { warnings, ..assemble(values)? };
        validate::validate(&resolved)?;
        Ok(resolved)
    }
}

/// Removes derived values of a run's `config.toml`, such as a minimum learning rate of a tenth of the learning rate, so
/// that they are derived again. The comment after a value marks it as derived; a value edited since is kept.
fn release_derived(mut layer: Layer, text: &str) -> Layer {
    let follows = explain::derived_keys(text);
    for key in [MIN_LEARNING_RATE, EVAL_EVERY].into_iter().filter(|key| follows.iter().any(|name| name == key)) {
        let mut without = layer.values.clone();
        without.remove(key);
        let same = |(with, without): (Resolved, Resolved)| with.config == without.config;
        if assemble(layer.values.clone()).ok().zip(assemble(without.clone()).ok()).is_some_and(same) {
            layer.values = without;
        }
    }
    if let Some(warmup) = layer.values.get_mut(WARMUP).filter(|_| follows.iter().any(|name| name == WARMUP)) {
        // It stays as it is, and may become shorter with the run.
        warmup.origin = Origin::Derived("as the run began");
    }
    layer
}

/// The defaults with these values over them.
fn assemble(values: BTreeMap<&'static str, Given>) -> Result<Resolved> {
    let mut table = Table::try_from(Config::default()).expect("the defaults are numbers, texts and booleans");
    if values.contains_key(EPOCHS)
        && let Some(Value::Table(train)) = table.get_mut("train")
    {
        train.remove("max_steps");
    }
    let mut origins = BTreeMap::new();
    for key in KEYS {
        let (section, name) = key.parts();
        let Some(Value::Table(section)) = table.get_mut(section) else { continue };
        if let Some(given) = values.get(key.name) {
            let is_auto = matches!(key.kind, Kind::CountOrAuto) && given.value.is_str();
            if !is_auto {
                section.insert(name.into(), given.value.clone());
            }
            let origin = given.origin.clone();
            let origin = if is_auto { Origin::Auto(Box::new(origin)) } else { origin };
            origins.insert(key.name.to_string(), origin);
        } else if section.contains_key(name) {
            origins.insert(key.name.to_string(), Origin::Default);
        }
    }
    // Every value has been checked against its key, so this fails only if KEYS and the structs disagree.
    let config =
        table.try_into().map_err(|error: toml::de::Error| wrong("configuration", "schema", error.message()))?;
    let mut resolved = Resolved { config, origins, warnings: Vec::new() };
    resolved.derive_defaults();
    Ok(resolved)
}

/// The merged configuration, with the origin of each value.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    /// The origin of each value by `section.key`. Of `train.max_steps` and `train.epochs`, only the one that is set.
    pub origins: BTreeMap<String, Origin>,
    /// Warnings about deprecated names, which the next version does not read.
    pub warnings: Vec<String>,
}

impl Resolved {
    /// Whether a key is `auto`, and not resolved yet.
    pub fn is_auto(&self, key: &str) -> bool {
        matches!(self.origin(key), Origin::Auto(_))
    }

    /// The origin of a key's value.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Replaces `device.matmul_f32 = "auto"` by its resolved value for the run's config.toml; `how` is the reason.
    /// Other values are kept.
    pub fn resolve_matmul_f32(&mut self, value: MatmulF32, how: &'static str) {
        if self.config.device.matmul_f32 == MatmulF32::Auto {
            self.config.device.matmul_f32 = value;
            self.origins.insert("device.matmul_f32".into(), Origin::Settled(how));
        }
    }

    /// Sets a value that was `auto`; `how` is the reason.
    pub fn settle(&mut self, key: &str, how: &'static str, set: impl FnOnce(&mut Config)) {
        set(&mut self.config);
        self.origins.insert(key.into(), Origin::Settled(how));
    }

    /// Replaces `train.device_batch = "auto"` by its resolved value, like [`Resolved::resolve_matmul_f32`].
    pub fn resolve_device_batch(&mut self, parts: Vec<usize>, how: &'static str) {
        if self.config.train.device_batch == DeviceBatch::AUTO {
            self.config.train.device_batch = DeviceBatch::Parts(parts);
            self.origins.insert("train.device_batch".into(), Origin::Settled(how));
        }
    }

    /// Sets a value that is not set; `how` names the source.
    pub fn derive(&mut self, key: &str, how: &'static str, set: impl FnOnce(&mut Config)) {
        if self.origin(key).is_default() {
            set(&mut self.config);
            self.origins.insert(key.into(), Origin::Derived(how));
        }
    }

    /// Sets `[model]` from a model: unset values are taken from it, set ones must be equal.
    ///
    /// # Errors
    /// If a set value differs.
    pub fn follow_model(&mut self, model: ModelConfig, how: &'static str) -> Result<()> {
        let after = Config { model, ..self.config.clone() };
        for change in self.config.changes(&after)? {
            let origin = self.origin(change.key);
            if !origin.is_default() {
                let message = format!("is {}, but {} {how}: leave it out", change.before, change.after);
                return Err(wrong(origin, change.key, message));
            }
            self.origins.insert(change.key.into(), Origin::Derived(how));
        }
        self.config = after;
        Ok(())
    }

    /// Fills in the defaults that follow from other values.
    fn derive_defaults(&mut self) {
        let mut derive = |key: &str, how| {
            let is_default = self.origins.get(key) == Some(&Origin::Default);
            if is_default {
                self.origins.insert(key.into(), Origin::Derived(how));
            }
            is_default
        };
        let model = &mut self.config.model;
        if derive("model.embd_dropout", "that of model.dropout") {
            model.embd_dropout = model.dropout;
        }
        let train = &mut self.config.train;
        let (learning_rate, how) = match (train.objective.is_preference(), self.config.lora.rank) {
            (false, _) => (1e-4, "low, as the model has learned before"),
            (true, 0) => (1e-6, "low, as the model answers already"),
            (true, _) => (1e-5, "low, as the model answers already"),
        };
        if !self.config.model.init.is_empty() && derive("train.learning_rate", how) {
            train.learning_rate = learning_rate;
        }
        let (min_learning_rate, how) = match train.schedule {
            Schedule::Wsd => (0.0, "none, for train.schedule is wsd"),
            Schedule::Plateau => (0.0, "none, for train.schedule is plateau"),
            _ => (units::decimal(train.learning_rate / 10.0), "a tenth of learning_rate"),
        };
        if derive(MIN_LEARNING_RATE, how) {
            train.min_learning_rate = min_learning_rate;
        }
        let optimizer = &mut self.config.optimizer;
        if optimizer.kind == OptimizerKind::Muon && derive("optimizer.momentum", "the default for muon") {
            optimizer.momentum = 0.95;
        }
        if optimizer.kind == OptimizerKind::RmsProp && derive("optimizer.momentum", "none, as is usual for rmsprop") {
            optimizer.momentum = 0.0;
        }
        if optimizer.kind == OptimizerKind::Lion && derive("optimizer.beta2", "the default for lion") {
            optimizer.beta2 = 0.99;
        }
        if !self.config.checkpoint.optimizer && derive("guard.non_finite", "no checkpoint can be rolled back to") {
            self.config.guard.non_finite = NonFinite::Stop;
        }
        if let Some(max_steps) = train.max_steps {
            self.derive_from_length(max_steps);
        }
    }

    /// Adapts unset values to the number of steps: the warm-up is at most a tenth of them, and there are at least five
    /// evaluations. [`build`](Layers::build) does this for `max_steps`; the steps of `epochs` are known only once the
    /// text is loaded.
    ///
    /// # Errors
    /// If a set warm-up is longer than the run.
    pub fn fit_length(&mut self, steps: usize) -> Result<()> {
        self.derive_from_length(steps);
        validate::warmup(self, steps)
    }

    fn derive_from_length(&mut self, steps: usize) {
        self.shorten_default_warmup(steps);
        self.evaluate_at_least_five_times(steps);
    }

    /// A run shorter than the default interval would be evaluated at its end alone.
    fn evaluate_at_least_five_times(&mut self, steps: usize) {
        let train = &mut self.config.train;
        let mut every = (steps / LEAST_EVALUATIONS).max(1);
        // Devices that train apart are the same only where they meet.
        if let Some(rounds) = every.checked_div(train.sync_every) {
            every = rounds.max(1) * train.sync_every;
        }
        let is_default = self.origins.get(EVAL_EVERY).is_none_or(Origin::is_default);
        if is_default && every < train.eval_every {
            train.eval_every = every;
            let how = if train.epochs.is_some() { "a fifth of the steps of epochs" } else { "a fifth of max_steps" };
            self.origins.insert(EVAL_EVERY.into(), Origin::Derived(how));
        }
    }

    /// A short trial run should not have to shorten its warm-up by hand.
    fn shorten_default_warmup(&mut self, steps: usize) {
        let train = &mut self.config.train;
        let is_default = self.origins.get(WARMUP).is_none_or(Origin::is_default);
        if is_default && train.warmup_steps > steps / 10 {
            train.warmup_steps = steps / 10;
            let how = if train.epochs.is_some() { "a tenth of the steps of epochs" } else { "a tenth of max_steps" };
            self.origins.insert(WARMUP.into(), Origin::Derived(how));
        }
    }
}

/// The `RUSTYFLOW_*` variables of this process, for [`Layers::environment`]. Other variables are not read, because
/// `std::env::vars` panics if they are not UTF-8.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value))).filter(|(n, _)| n.starts_with("RUSTYFLOW_"))
}

/// Whether a file is a configuration: by its name (`.toml`, `.env`), or by its sections.
#[cfg(feature = "cli")]
pub(crate) fn is_configuration(path: &Path) -> bool {
    /// A configuration is never larger.
    const MOST_BYTES: u64 = 1 << 20;
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")) || is_env_file(path) {
        return true;
    }
    let is_short = path.metadata().is_ok_and(|data| data.is_file() && data.len() <= MOST_BYTES);
    let table = || std::fs::read_to_string(path).ok()?.parse::<Table>().ok();
    is_short
        && table().is_some_and(|table| keys::SECTIONS.iter().any(|name| table.get(*name).is_some_and(Value::is_table)))
}

/// Whether a file is in the flat `NAME=value` format, by its name.
fn is_env_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    name == ".env" || name.starts_with(".env.") || name.ends_with(".env")
}
