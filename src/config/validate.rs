//! Checks of the complete configuration: ranges, and consistency between values.
//!
//! An error names the value that was set last (in the highest layer), as the likely mistake.

use toml::Table;

use super::choice::Objective::{Dpo, Ipo, Kto, Orpo, Simpo};
use super::choice::{Comm, NonFinite, OptimizerKind, Packing, Precision, Recompute, Schedule};
use super::keys::KEYS;
use super::layers::Resolved;
use super::origin::Origin;
use super::schema::{Config, LoraConfig, PreferenceConfig, TrainLength};
use super::wrong;
use crate::error::{Error, Result};

/// Tokens that any byte-level BPE has: the 256 bytes and the end-of-text token.
const BPE_MINIMUM: usize = 257;

/// Above this a model is a slip of the keyboard: its weights alone are 4 TB.
const MAX_PARAMETERS: u128 = 1_000_000_000_000;

/// Returns the first error of the configuration, if any.
pub(super) fn validate(resolved: &Resolved) -> Result<()> {
    let c = Checker { resolved };
    ranges(&c)?;
    texts(&c)?;
    heads(&c)?;
    vocabulary(&c)?;
    context(&c)?;
    scale(&c)?;
    groups(&c)?;
    lora(&c)?;
    preference(&c)?;
    ranks(&c)?;
    recompute(&c)?;
    layerwise(&c)?;
    roll_back(&c)?;
    learning_rate(&c)
}

struct Checker<'a> {
    resolved: &'a Resolved,
}

impl Checker<'_> {
    fn config(&self) -> &Config {
        &self.resolved.config
    }

    fn origin(&self, key: &str) -> &Origin {
        self.resolved.origin(key)
    }

    /// An error about values that do not fit together, placed at the one in the highest layer.
    fn fail(&self, keys: &[&str], message: impl Into<String>) -> Error {
        // `max_by_key` returns the last of equals; the first key is the one that the message is about.
        let culprit = keys.iter().rev().max_by_key(|key| self.origin(key).rank()).copied().unwrap_or_default();
        wrong(self.origin(culprit), culprit, message)
    }

    /// The key, its value and its origin, for a message.
    fn tell(&self, key: &str, value: impl std::fmt::Display) -> String {
        format!("{key} is {value} ({})", self.origin(key))
    }

    fn ensure(&self, holds: bool, key: &str, expected: &str, got: impl std::fmt::Debug) -> Result<()> {
        match holds {
            true => Ok(()),
            false => Err(self.fail(&[key], format!("expected {expected}, got {got:?}"))),
        }
    }
}

/// Every number in the range of its key.
fn ranges(c: &Checker) -> Result<()> {
    let table = Table::try_from(c.config()).expect("a configuration is numbers, texts and booleans");
    for key in KEYS {
        let (section, name) = key.parts();
        let Some(value) = table[section].get(name) else { continue };
        if let Some(x) = value.as_float().or_else(|| value.as_integer().map(|n| n as f64)) {
            c.ensure(key.range.contains(x), key.name, &key.range.to_string(), format_args!("{value}"))?;
        }
    }
    let Config { model, optimizer, .. } = c.config();
    let (low, high) = (model.rope_low_freq_factor, model.rope_high_freq_factor);
    c.ensure(high > low, "model.rope_high_freq_factor", "above model.rope_low_freq_factor", high)?;
    // As the f32 that it becomes: 1e-60 would be the zero that it is there to prevent.
    c.ensure(optimizer.eps as f32 > 0.0, "optimizer.eps", "above 0 as a 32-bit number", optimizer.eps)
}

/// A number of blocks is of `block`. One that a run settled on goes when another word is set above it.
fn recompute(c: &Checker) -> Result<()> {
    let (blocks, recompute) = ("train.recompute_blocks", "train.recompute");
    let train = &c.config().train;
    let is_meant = c.resolved.origin(blocks).rank() >= c.resolved.origin(recompute).rank();
    if train.recompute_blocks > 0 && train.recompute != Recompute::Block && is_meant {
        let message = format!("{blocks} is {}, which only {recompute} = \"block\" has", train.recompute_blocks);
        return Err(c.fail(&[blocks, recompute], message));
    }
    Ok(())
}

/// Updates while backward runs need all gradients of a step in one pass; those in host memory, f16 copies on the
/// device.
fn layerwise(c: &Checker) -> Result<()> {
    let train = &c.config().train;
    if !train.is_layerwise() {
        return Ok(());
    }
    let (setting, word) =
        if train.offloads_optimizer() { ("train.offload", "optimizer") } else { ("train.update", "layerwise") };
    let refused = |key: &str, value: String, why: &str| {
        let (own, other) = (c.tell(setting, word), c.tell(key, value));
        let message = format!("{own} and {other}, which exclude each other: {why}");
        Err(c.fail(&[key, setting], message))
    };
    if train.offloads_optimizer() && c.config().device.precision != Precision::Mixed {
        let why = "the device computes with f16 copies of the weights; set device.precision = \"mixed\"";
        return refused("device.precision", "f32".into(), why);
    }
    if train.offloads_optimizer() && c.config().lora.rank > 0 {
        let why = "adapters have few moments, and the frozen weights stay on the device; lora.base_dtype saves memory";
        return refused("lora.rank", c.config().lora.rank.to_string(), why);
    }
    if train.grad_accum_steps > 1 {
        let why = "gradients of earlier micro-batches are freed; use a larger train.batch_size, or train.update = step \
                   without train.offload";
        return refused("train.grad_accum_steps", train.grad_accum_steps.to_string(), why);
    }
    if train.shard_optimizer {
        return refused("train.shard_optimizer", "true".into(), "it is for one device");
    }
    if train.sync_every > 0 {
        return refused("train.sync_every", train.sync_every.to_string(), "it is for one device");
    }
    Ok(())
}

/// Devices that train apart are the same only where they meet.
fn ranks(c: &Checker) -> Result<()> {
    let Config { train, checkpoint, .. } = c.config();
    let (every, sync) = (train.sync_every, "train.sync_every");
    if every == 0 {
        return Ok(());
    }
    for (key, steps) in [("train.eval_every", train.eval_every), ("checkpoint.every", checkpoint.every)] {
        if !steps.is_multiple_of(every) {
            let told = c.tell(sync, every);
            let message = format!(
                "is {steps}; {told}, and the devices are synchronized only then: set a multiple of \
                                   it"
            );
            return Err(c.fail(&[key, sync], format!("{key} {message}")));
        }
    }
    let apart = |key: &str, why: &str| {
        Err(c.fail(&[sync, key], format!("{} cannot be used with {}: {why}", c.tell(sync, every), c.tell(key, "set"))))
    };
    if train.shard_optimizer {
        return apart("train.shard_optimizer", "with local steps, each device has its own moments");
    }
    if train.comm == Comm::Nccl {
        return apart("train.comm", "weights that are averaged now and then go through host memory");
    }
    if train.ema_decay > 0.0 {
        return apart("train.ema_decay", "between two synchronizations, the weights of devices differ");
    }
    Ok(())
}

/// Names and paths.
fn texts(c: &Checker) -> Result<()> {
    let Config { run, data, generate, .. } = c.config();
    let stop = &generate.stop;
    c.ensure(stop.iter().all(|stop| !stop.is_empty()), "generate.stop", "texts of one character or more", stop)?;
    for (key, text) in [("run.dir", &run.dir), ("data.corpus", &data.corpus), ("data.tokenizer", &data.tokenizer)] {
        c.ensure(!text.trim().is_empty(), key, "a name or a path", text)?;
    }
    // The name becomes one folder in `run.dir`; anything else could write outside of it.
    let is_folder_name = !run.name.contains(['/', '\\', '\0']) && run.name != "." && run.name != "..";
    c.ensure(is_folder_name, "run.name", "the name of one folder (run.dir says where)", &run.name)
}

/// Kinds of models that are recurrent instead: they pass over `model.n_head`.
const WITHOUT_HEADS: [&str; 3] = ["lstm", "gru", "rnn"];

/// `n_embd` must be a multiple of `n_head`, unless `head_dim` is set, and `n_head` a multiple of `n_kv_head`.
fn heads(c: &Checker) -> Result<()> {
    let model = &c.config().model;
    let (n_embd, n_head, n_kv_head) = (model.n_embd as u64, model.n_head as u64, model.n_kv_head as u64);
    if n_kv_head > 0 && n_head % n_kv_head != 0 {
        let message = format!(
            "{}, {}: n_head must be a multiple of n_kv_head",
            c.tell("model.n_kv_head", n_kv_head),
            c.tell("model.n_head", n_head)
        );
        return Err(c.fail(&["model.n_kv_head", "model.n_head"], message));
    }
    if model.head_dim > 0 || n_embd % n_head == 0 || WITHOUT_HEADS.contains(&model.kind.as_str()) {
        return Ok(());
    }
    let below = n_embd / n_head * n_head;
    let above = below + n_head;
    let fix = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
    let message = format!(
        "{}, {}: n_embd must be a multiple of n_head; make n_embd {fix}",
        c.tell("model.n_head", n_head),
        c.tell("model.n_embd", n_embd)
    );
    Err(c.fail(&["model.n_embd", "model.n_head"], message))
}

/// A byte-level BPE cannot be smaller than its bytes.
fn vocabulary(c: &Checker) -> Result<()> {
    let data = &c.config().data;
    if data.tokenizer != "bpe" || data.vocab_size >= BPE_MINIMUM {
        return Ok(());
    }
    let message =
        format!("expected at least {BPE_MINIMUM} for bpe (256 bytes and the end of text), got {}", data.vocab_size);
    Err(c.fail(&["data.vocab_size", "data.tokenizer"], message))
}

/// A model reads at least the rows that it is trained on.
fn context(c: &Checker) -> Result<()> {
    let model = &c.config().model;
    if model.context > 0 && model.context < model.block_size {
        let message = format!(
            "is {}, fewer tokens than the training rows of model.block_size = {}; set it to at least that, or to 0",
            model.context, model.block_size
        );
        return Err(c.fail(&["model.context"], message));
    }
    if model.new_tokenizer && model.init.is_empty() {
        let message = "is for a pretrained model with a tokenizer; set model.init (--init) too, or leave it out";
        return Err(c.fail(&["model.new_tokenizer"], message));
    }
    if model.new_tokenizer && c.config().lora.rank > 0 {
        let message = "gives the model a new embedding, which adapters do not train: set lora.rank = 0 to train all \
                       weights, or keep the model's tokenizer";
        return Err(c.fail(&["model.new_tokenizer", "lora.rank"], message));
    }
    Ok(())
}

/// Products of sizes that later code computes without a thought of overflow.
fn scale(c: &Checker) -> Result<()> {
    let Config { model, train, data, .. } = c.config();
    let wide = |n: usize| n as u128;
    // 32-bit counts: each product below fits in 128 bits.
    let tokens = wide(train.batch_size) * wide(train.grad_accum_steps) * wide(model.block_size);
    if tokens > u128::from(u32::MAX) {
        let message = format!("batch_size x grad_accum_steps x block_size is {tokens} tokens a step; make one smaller");
        return Err(c.fail(&["train.batch_size", "model.block_size", "train.grad_accum_steps"], message));
    }
    let vocab_size = if data.tokenizer == "bpe" { data.vocab_size } else { 0 };
    let feed_forward = 3 * wide(model.intermediate_size).max(4 * wide(model.n_embd));
    let attention = 4 * wide(model.n_embd).max(wide(model.n_head) * wide(model.head_dim));
    let positions = model.block_size.max(model.context);
    let rows = wide(model.n_layer) * (attention + feed_forward) + wide(positions) + wide(vocab_size);
    let parameters = rows.saturating_mul(wide(model.n_embd));
    if parameters > MAX_PARAMETERS {
        let message = format!("the model would have {parameters} parameters; make n_layer or n_embd smaller");
        return Err(c.fail(&["model.n_embd", "model.n_layer", "model.block_size", "data.vocab_size"], message));
    }
    Ok(())
}

/// Groups of parameters: whether their patterns match any is known once there is a model.
fn groups(c: &Checker) -> Result<()> {
    for (i, group) in c.config().optimizer.group.iter().enumerate() {
        let fail = |message: String| Err(c.fail(&["optimizer.group"], format!("number {}: {message}", i + 1)));
        if let Err(error) = globset::Glob::new(&group.pattern) {
            return fail(format!("match = {:?} is not a valid pattern: {}", group.pattern, error.kind()));
        }
        for (name, x) in [("lr_scale", group.lr_scale), ("weight_decay", group.weight_decay.unwrap_or(0.0))] {
            if x < 0.0 {
                return fail(format!("{name}: expected a number, at least 0, got {x:?}"));
            }
        }
    }
    Ok(())
}

/// LoRA requires `model.init`, and a rank below the sizes of the layers.
fn lora(c: &Checker) -> Result<()> {
    let Config { model, lora, optimizer, .. } = c.config();
    if lora.rank == 0 {
        let nothing = LoraConfig::default();
        let set = [
            ("lora.alpha", lora.alpha != nothing.alpha),
            ("lora.rslora", lora.rslora != nothing.rslora),
            ("lora.dora", lora.dora != nothing.dora),
            ("lora.dropout", lora.dropout != nothing.dropout),
            ("lora.targets", lora.targets != nothing.targets),
            ("lora.modules_to_save", lora.modules_to_save != nothing.modules_to_save),
            ("lora.base_dtype", lora.base_dtype != nothing.base_dtype),
        ];
        return match set.iter().find(|(_, is_set)| *is_set) {
            None => Ok(()),
            Some((key, _)) => {
                let message = "is set, and lora.rank is 0: all weights would be trained; set lora.rank, as in 8";
                Err(c.fail(&[key], message))
            }
        };
    }
    c.ensure(!lora.targets.is_empty(), "lora.targets", "names of layers, or all-linear", &lora.targets)?;
    if model.init.is_empty() {
        let message = format!(
            "{}, but model.init is empty: LoRA trains adapters of a pretrained model; set model.init (--init), or \
             lora.rank 0",
            c.tell("lora.rank", lora.rank)
        );
        return Err(c.fail(&["lora.rank", "model.init"], message));
    }
    if lora.dora && lora.dropout > 0.0 {
        let message = format!(
            "{}, and {}: DoRA does not support dropout of the adapters' inputs; set lora.dropout = 0",
            c.tell("lora.dropout", lora.dropout),
            c.tell("lora.dora", true)
        );
        return Err(c.fail(&["lora.dropout", "lora.dora"], message));
    }
    if optimizer.kind == OptimizerKind::Muon {
        let message = format!(
            "{}, and {}: muon orthogonalizes the updates of whole weights, of which none is trained; use adamw",
            c.tell("optimizer.kind", "muon"),
            c.tell("lora.rank", lora.rank)
        );
        return Err(c.fail(&["optimizer.kind", "lora.rank"], message));
    }
    Ok(())
}

/// Keys of preferences belong to some objectives, and some keys do not go with them.
fn preference(c: &Checker) -> Result<()> {
    let (Config { model, train, preference, data, .. }, defaults) = (c.config(), PreferenceConfig::default());
    let (setting, objective) = ("train.objective", train.objective);
    let (of_pairs, smoothed) = (&[Dpo, Ipo, Orpo, Kto, Simpo][..], &[Dpo, Simpo][..]);
    let keys = [
        ("preference.beta", preference.beta != defaults.beta, of_pairs),
        ("preference.gamma", preference.gamma != defaults.gamma, &[Simpo]),
        ("preference.label_smoothing", preference.label_smoothing != defaults.label_smoothing, smoothed),
        ("preference.sft_weight", preference.sft_weight != defaults.sft_weight, &[Dpo, Ipo, Simpo]),
        ("preference.desirable_weight", preference.desirable_weight != defaults.desirable_weight, &[Kto]),
        ("preference.undesirable_weight", preference.undesirable_weight != defaults.undesirable_weight, &[Kto]),
    ];
    if let Some((key, _, having)) = keys.iter().find(|(_, is_set, having)| *is_set && !having.contains(&objective)) {
        let having: Vec<&str> = having.iter().map(|objective| objective.as_str()).collect();
        let message =
            format!("{key} is set, but {}, and only {} has it", c.tell(setting, objective), having.join(", "));
        return Err(c.fail(&[key, setting], message));
    }
    let refused = |key: &str, value: &str, why: &str| {
        let message = format!("{}, and {}: {why}", c.tell(key, value), c.tell(setting, objective));
        Err(c.fail(&[key, setting], message))
    };
    if !objective.is_preference() {
        return Ok(());
    }
    if objective.has_reference() && model.init.is_empty() {
        let why = "it needs a reference model; set model.init (--init), or use orpo or simpo";
        return refused("model.init", "empty", why);
    }
    if objective.has_reference() && model.new_tokenizer {
        return refused("model.new_tokenizer", "true", "the reference model has another vocabulary");
    }
    if train.label_smoothing > 0.0 {
        let why = "it is of classes; preference.label_smoothing is of pairs";
        return refused("train.label_smoothing", &train.label_smoothing.to_string(), why);
    }
    if data.packing == Packing::Stream {
        return refused("data.packing", "stream", "an answer must be whole; use documents or off");
    }
    if WITHOUT_HEADS.contains(&model.kind.as_str()) {
        return refused("model.kind", &model.kind, "recurrent models cannot train preferences");
    }
    Ok(())
}

/// A rollback takes the optimizer's state.
fn roll_back(c: &Checker) -> Result<()> {
    let Config { checkpoint, guard, .. } = c.config();
    let (key, value) = match (guard.non_finite, guard.spike_z) {
        _ if checkpoint.optimizer => return Ok(()),
        (NonFinite::Rollback, _) => ("guard.non_finite", "\"rollback\"".to_string()),
        (_, 0.0) => return Ok(()),
        (_, spike_z) => ("guard.spike_z", spike_z.to_string()),
    };
    let message = format!(
        "{}, and {}: a rollback needs the optimizer's state in checkpoints",
        c.tell(key, value),
        c.tell("checkpoint.optimizer", false)
    );
    Err(c.fail(&[key, "checkpoint.optimizer"], message))
}

/// Checks the learning-rate schedule.
fn learning_rate(c: &Checker) -> Result<()> {
    let train = &c.config().train;
    if train.min_learning_rate > train.learning_rate {
        let message = format!(
            "{}, above {}",
            c.tell("train.min_learning_rate", train.min_learning_rate),
            c.tell("train.learning_rate", train.learning_rate)
        );
        return Err(c.fail(&["train.min_learning_rate", "train.learning_rate"], message));
    }
    if train.schedule == Schedule::Plateau && train.eval_every == 0 {
        let message = format!(
            "{}, {}: plateau follows the validation loss; say after how many steps to evaluate",
            c.tell("train.eval_every", 0),
            c.tell("train.schedule", "plateau")
        );
        return Err(c.fail(&["train.eval_every", "train.schedule"], message));
    }
    train.max_steps.map_or(Ok(()), |steps| warmup(c.resolved, steps))
}

/// The warm-up must end within the run's steps, given by `max_steps` or `epochs`.
pub(super) fn warmup(resolved: &Resolved, steps: usize) -> Result<()> {
    let (c, train) = (Checker { resolved }, &resolved.config.train);
    if train.warmup_steps < steps {
        return decay(&c, steps);
    }
    let (key, length) = match train.length() {
        TrainLength::Steps(steps) => ("train.max_steps", c.tell("train.max_steps", steps)),
        TrainLength::Epochs(epochs) => {
            ("train.epochs", format!("{}, which makes {steps} steps", c.tell("train.epochs", epochs)))
        }
    };
    let message = format!(
        "{} but {length}: the warm-up would never end; make warmup_steps {}",
        c.tell("train.warmup_steps", train.warmup_steps),
        steps / 10
    );
    Err(c.fail(&["train.warmup_steps", key], message))
}

/// The decay of `wsd` begins after the warm-up.
fn decay(c: &Checker, steps: usize) -> Result<()> {
    let train = &c.config().train;
    if train.schedule != Schedule::Wsd || train.warmup_steps + train.decay_steps <= steps {
        return Ok(());
    }
    let message = format!(
        "{}, {}: together more than the {steps} steps of the run; make decay_steps at most {}",
        c.tell("train.decay_steps", train.decay_steps),
        c.tell("train.warmup_steps", train.warmup_steps),
        steps - train.warmup_steps
    );
    Err(c.fail(&["train.decay_steps", "train.warmup_steps"], message))
}
