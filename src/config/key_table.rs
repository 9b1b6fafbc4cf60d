//! The declaration of every key: name, type, range and meaning. Defaults are in the structs of `schema`. The checks,
//! the template, the JSON Schema and the tables of `docs/configuration.md` are generated from this table.

use super::choice::{
    AdjustLr, Comm, MatmulF32, NonFinite, Objective, Offload, OptimizerKind, Packing, Precision, Recompute,
    RopeScaling, Schedule, StateDtype, UpdateTime, WeightDtype, WireDtype,
};
use super::keys::Key;
use super::keys::Kind::*;
use super::range::Range;

const ANY: Range = Range::ANY;
const ABOVE_0: Range = Range::above(0.0);
const BELOW_1: Range = Range::at_least(0.0).and_below(1.0);
const BELOW_HALF: Range = Range::at_least(0.0).and_below(0.5);
const BETWEEN_0_AND_1: Range = Range::above(0.0).and_below(1.0);

const fn at_least(low: f64) -> Range {
    Range::at_least(low)
}

const fn at_most(high: f64) -> Range {
    Range::ANY.and_at_most(high)
}

const fn within(low: f64, high: f64) -> Range {
    Range::at_least(low).and_at_most(high)
}

const fn above_to(high: f64) -> Range {
    Range::above(0.0).and_at_most(high)
}

macro_rules! keys {
    ($($name:literal: $kind:expr, $range:expr, $help:literal;)*) => {
        /// Every key, in the order of the schema.
        pub(super) const KEYS: &[Key] = &[$(Key { name: $name, kind: $kind, range: $range, help: $help }),*];
    };
}

keys! {
    "run.dir": Text, ANY, "Folder of all runs.";
    "run.name": Text, ANY, "Name of the run's folder in `run.dir`; empty: `<corpus>-L2-H4-E128-<device>`.";
    "run.seed": Seed, ANY, "Seed of initial weights, batch order and dropout.";
    "device.kind": Device, ANY, "Device to compute on, see below.";
    "device.precision": Choice(Precision::CHOICES), ANY,
        "Precision; `mixed` stores and multiplies in f16, on GPUs only.";
    "device.matmul_f32": Choice(MatmulF32::CHOICES), ANY, "Algorithm of GEMMs in `f32` on a GPU, see below.";
    "device.threads": Count, at_most(4096.0), "CPU threads; 0: one per physical core.";
    "device.allow_fallback": Flag, ANY, "Fall back to the CPU if the requested GPU is missing; otherwise an error.";
    "device.allow_software": Flag, ANY, "Accept a software adapter, which emulates a GPU on the CPU.";
    "data.corpus": Text, ANY, "Corpus: `sample`, `wikitext-2`, `tinyshakespeare`, or a path, see below.";
    "data.files": Texts, ANY, "Patterns of files in a folder, see below. Empty: all texts.";
    "data.tokenizer": Text, ANY, "Tokenizer: `char`, `word`, `bpe`, `gpt2`, or a path, see below.";
    "data.vocab_size": Count, within(1.0, 1_048_576.0), "Size of the trained BPE vocabulary, at least 257.";
    "data.validation_fraction": Real, BETWEEN_0_AND_1, "Validation share of a text without splits.";
    "data.chat_template": Text, ANY, "Chat template, `chatml` or a path; empty: the tokenizer's own.";
    "data.packing": Choice(Packing::CHOICES), ANY, "Packing of documents into rows, see below.";
    "model.init": Text, ANY, "Model or run with the initial weights, see below; empty: random.";
    "model.new_tokenizer": Flag, ANY, "Replace the tokenizer of `init`, see below.";
    "model.kind": Text, ANY, "Model family: `gpt2`, `llama`, `qwen3`, `lstm`, `gru` or `rnn`.";
    "model.n_layer": Count, at_least(1.0), "Transformer blocks, or recurrent layers.";
    "model.n_head": Count, at_least(1.0), "Attention heads per block; unused in recurrent models.";
    "model.n_embd": Count, at_least(1.0),
        "Hidden size; a multiple of `n_head` unless `head_dim` is set.";
    "model.block_size": Count, at_least(1.0), "Tokens per training row, see below.";
    "model.context": Count, ANY, "Context length in tokens; 0: `block_size`, or that of `init`.";
    "model.vocab_size": Count, ANY, "Rows of the embedding, at least the tokenizer's size; 0: that size.";
    "model.vocab_multiple": Count, within(1.0, 65_536.0), "Multiple to which the vocabulary is padded, see below.";
    "model.dropout": Real, BELOW_1, "Dropout probability, see below.";
    "model.embd_dropout": Real, BELOW_1, "Dropout probability of the embeddings.";
    "model.bias": Flag, ANY, "Biases of GPT-2's Linear and LayerNorm, or of recurrent cells and head.";
    "model.tie_embeddings": Flag, ANY, "Share the weights of token embedding and output head.";
    "model.n_kv_head": Count, ANY, "Key/value heads of grouped-query attention, a divisor of `n_head`; 0: `n_head`.";
    "model.head_dim": Count, ANY, "Width of a head, even, up to 128; 0: `n_embd / n_head`.";
    "model.intermediate_size": Count, ANY, "Width of the feed-forward layer; 0: 8/3 of `n_embd`, see below.";
    "model.qkv_bias": Flag, ANY, "Biases of queries, keys and values, as in Qwen2.";
    "model.sliding_window": Count, ANY, "Attention window in tokens, including the token itself; 0: unlimited.";
    "model.norm_eps": Real, BETWEEN_0_AND_1, "Epsilon of the norms.";
    "model.rope_theta": Real, ABOVE_0, "Base of the rotary frequencies.";
    "model.rope_scaling": Choice(RopeScaling::CHOICES), ANY, "Scaling of rotary positions.";
    "model.rope_factor": Real, ABOVE_0, "Scaling factor of `linear` and `llama3`.";
    "model.rope_low_freq_factor": Real, ABOVE_0, "`llama3` scales frequencies with fewer periods.";
    "model.rope_high_freq_factor": Real, ABOVE_0, "`llama3` keeps frequencies with more periods.";
    "model.rope_original_block_size": Count, at_least(1.0), "Context length for counting periods of `llama3`.";
    "lora.rank": Count, at_most(1024.0), "Rank of the LoRA adapters; 0: train all weights.";
    "lora.alpha": Real, at_least(0.0), "Adapters are scaled by `alpha / rank`; 0: by 2.";
    "lora.rslora": Flag, ANY, "Scales adapters by `alpha / sqrt(rank)` instead (rsLoRA).";
    "lora.dora": Flag, ANY, "Also trains the magnitude of each output (DoRA).";
    "lora.dropout": Real, BELOW_1, "Dropout probability of the adapters' inputs.";
    "lora.targets": Texts, ANY, "Layers with adapters, see below.";
    "lora.modules_to_save": Texts, ANY, "Modules that are trained in full, see below.";
    "lora.base_dtype": Choice(WeightDtype::CHOICES), ANY, "Type of the frozen weights of matmuls.";
    "train.objective": Choice(Objective::CHOICES), ANY, "Next-token loss, or a preference loss, see below.";
    "train.batch_size": CountOrAuto, at_least(1.0), "Sequences per forward pass; `auto`: the largest that fits.";
    "train.grad_accum_steps": Count, at_least(1.0), "Micro-batches per step (gradient accumulation).";
    "train.max_steps": Count, at_least(1.0), "Number of steps.";
    "train.epochs": Real, above_to(1e6), "Passes over the training split, instead of `max_steps`.";
    "train.learning_rate": Real, ABOVE_0, "Peak learning rate, reached after the warm-up.";
    "train.min_learning_rate": Real, at_least(0.0), "Final rate, at most the peak, see below.";
    "train.warmup_steps": Count, ANY, "Warm-up steps, fewer than the run's, see below.";
    "train.schedule": Choice(Schedule::CHOICES), ANY, "Schedule, see below.";
    "train.decay_steps": Count, ANY, "Decay steps at the end of `wsd`; 0: a fifth of the run.";
    "train.plateau_factor": Real, BETWEEN_0_AND_1, "Learning-rate factor of `plateau`.";
    "train.plateau_patience": Count, at_least(1.0), "Evaluations without a new best before a drop of `plateau`.";
    "train.eval_every": Count, ANY, "Steps between evaluations; 0: at the end only.";
    "train.eval_batches": Count, ANY, "Batches per evaluation; 0: the whole validation split.";
    "train.grad_clip": Real, at_least(0.0), "Maximum gradient norm; 0: no clipping.";
    "train.label_smoothing": Real, BELOW_1, "Label smoothing, see below.";
    "train.ema_decay": Real, BELOW_1, "Decay of the moving average of the weights, see below; 0: no average.";
    "train.recompute": Choice(Recompute::CHOICES), ANY, "Activation recomputation in backward, see below.";
    "train.recompute_blocks": Count, ANY, "Blocks that `block` recomputes, the first ones; 0: all.";
    "train.update": Choice(UpdateTime::CHOICES), ANY, "Update after backward, or while it runs, see below.";
    "train.offload": Choice(Offload::CHOICES), ANY, "Tensors kept in host memory, see below.";
    "train.device_batch": DeviceBatch, ANY, "Batch share of each device, see below; empty: equal.";
    "train.comm": Choice(Comm::CHOICES), ANY, "How devices exchange gradients, see below.";
    "train.reduce_dtype": Choice(WireDtype::CHOICES), ANY, "Type of the gradients sent between devices.";
    "train.shard_optimizer": Flag, ANY, "ZeRO-1: sharded optimizer state, see below.";
    "train.sync_every": Count, ANY, "Steps between synchronizations (DiLoCo), see below; 0: every step.";
    "train.comm_timeout": Real, within(1.0, 86_400.0), "Timeout of communication in seconds.";
    "preference.beta": Real, at_least(0.0), "Strength β of preferences, see below; 0: 0.1, of `simpo` 2.";
    "preference.gamma": Real, at_least(0.0), "Margin γ of `simpo`.";
    "preference.label_smoothing": Real, BELOW_HALF, "Assumed share of wrong labels of `dpo` and `simpo`.";
    "preference.sft_weight": Real, at_least(0.0), "Weight of the chosen answers' cross-entropy; of `orpo` always 1.";
    "preference.desirable_weight": Real, at_least(0.0), "Weight of desirable answers in `kto`.";
    "preference.undesirable_weight": Real, at_least(0.0), "Weight of undesirable answers in `kto`.";
    "optimizer.kind": Choice(OptimizerKind::CHOICES), ANY, "Optimizer.";
    "optimizer.beta1": Real, BELOW_1, "Decay of the first moment, see below.";
    "optimizer.beta2": Real, BELOW_1, "Decay of the second moment, see below; default of `lion`: 0.99.";
    "optimizer.eps": Real, ABOVE_0, "Epsilon in the denominator of Adam and `rmsprop`.";
    "optimizer.weight_decay": Real, at_least(0.0), "Weight decay of parameters with two or more dimensions.";
    "optimizer.momentum": Real, BELOW_1, "Momentum; default of `muon`: 0.95, of `rmsprop`: 0.";
    "optimizer.alpha": Real, BELOW_1, "Decay of the squared gradients of `rmsprop`.";
    "optimizer.centered": Flag, ANY, "Subtract the squared mean gradient in `rmsprop`.";
    "optimizer.nesterov": Flag, ANY, "Nesterov momentum in `muon`.";
    "optimizer.ns_steps": Count, within(1.0, 99.0), "Newton-Schulz iterations of `muon`.";
    "optimizer.adjust_lr": Choice(AdjustLr::CHOICES), ANY, "Scaling of `muon`, see below.";
    "optimizer.muon_learning_rate": Real, at_least(0.0), "Learning rate of `muon`; 0: `train.learning_rate`.";
    "optimizer.state_dtype": Choice(StateDtype::CHOICES), ANY, "Type of the moments; `int8`: a quarter of the memory.";
    "optimizer.group": Groups, ANY, "Parameter groups, see below.";
    "checkpoint.every": Count, ANY, "Steps between checkpoints; 0: at the end and, with `keep_best`, at a best loss.";
    "checkpoint.keep_last": Count, at_least(1.0), "Number of newest checkpoints to keep.";
    "checkpoint.keep_best": Flag, ANY, "Also keep the checkpoint with the lowest validation loss.";
    "checkpoint.optimizer": Flag, ANY, "Save the optimizer's state, which resuming and rollbacks need.";
    "guard.non_finite": Choice(NonFinite::CHOICES), ANY, "Reaction to a non-finite gradient, see below.";
    "guard.max_skips": Count, ANY, "Maximum skipped updates between two good logged steps.";
    "guard.spike_z": Real, at_least(0.0), "Spike threshold of a logged loss in standard deviations; 0: off.";
    "guard.spike_window": Count, at_least(2.0), "Logged losses before a step that define its spike threshold.";
    "guard.max_rollbacks": Count, ANY, "Maximum rollbacks of a run.";
    "guard.learning_rate_factor": Real, above_to(1.0), "Learning-rate factor of a rollback.";
    "guard.patience": Count, ANY, "Early stopping: evaluations without a lower validation loss; 0: off.";
    "log.every": Count, at_least(1.0), "Steps between logged losses.";
    "log.samples": Flag, ANY, "Sample a short text to `samples.jsonl` after each evaluation.";
    "log.tensorboard": Flag, ANY, "Also write TensorBoard event files to `tensorboard/`.";
    "log.csv": Flag, ANY, "Also write `metrics.csv`.";
    "log.file": Text, ANY, "File to which each run's timings are appended; empty: none.";
    "generate.prompt": Text, ANY, "Prompt; empty: the first prompt of the validation text, or a line start.";
    "generate.max_new_tokens": Count, at_least(1.0), "Number of new tokens.";
    "generate.temperature": Real, at_least(0.0), "Sampling temperature; 0: greedy.";
    "generate.top_k": Count, ANY, "Top-k sampling; 0: off.";
    "generate.top_p": Real, above_to(1.0), "Top-p (nucleus) sampling; 1: off.";
    "generate.min_p": Real, within(0.0, 1.0), "Minimum probability, relative to the most likely token; 0: off.";
    "generate.repetition_penalty": Real, ABOVE_0, "Repetition penalty, see below; 1: off.";
    "generate.stop": Texts, ANY, "Stop strings.";
    "generate.seed": Seed, ANY, "Sampling seed.";
}
