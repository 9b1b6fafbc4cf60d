//! The checkpoints of a run: contents, atomic writing, retention, and lookup.
//!
//! A checkpoint is a folder that is renamed once it is complete, with a manifest to detect damage:
//!
//! ```text
//! step-000500/
//!   config.json model.safetensors                  the model, in Hugging Face's layout; or its adapters in PEFT's:
//!                                                  adapter_config.json adapter_model.safetensors
//!   tokenizer.json tokenizer_config.json special_tokens_map.json generation_config.json
//!                                                  its tokenizer and how to sample, as transformers reads them
//!   optimizer.safetensors trainer_state.json       what training needs to resume; of a recurrent model also
//!                                                  recurrent_state.safetensors
//!   config.toml                                    the run's configuration at that step
//!   manifest.json                                  size and BLAKE3 hash of each of these
//! ```

#[cfg(test)]
mod fault_injection;
mod files;
mod find;
mod layout;
mod manifest;
mod snapshot;
mod state;
mod store;
mod writer;

pub use find::{FoundCheckpoint, find_checkpoint, run_config};
pub use state::{Best, DataHash, Evaluated, GuardState, Plateau, TrainerState};

pub(super) use files::Files;
pub(super) use find::{Checkpoint, models, newest_good};
pub(super) use layout::{
    ADAPTERS, CARRIED, CHAT_TEMPLATE, CONFIG, CSV, FINISHED, GENERATION, MANIFEST, METRICS, MODEL, OPTIMIZER, SAMPLES,
    STATE, TOKENIZER, checkpoints, resolve_ref,
};
pub(super) use snapshot::{Snapshot, beside, put_in_place, recover};
pub(super) use store::{Checkpoints, Request};
pub(super) use writer::Writer;
