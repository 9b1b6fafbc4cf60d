//! From text to batches: corpora and how they are split, tokenizers, downloads, and the loader.
//!
//! - [`Corpus`]: text, split into training, validation and perhaps test.
//! - [`Tokenizer`]: text to token ids and back: characters, words, byte-level BPE, GPT-2's, or a `tokenizer.json`.
//! - [`Loader`]: an endless, resumable stream of shuffled batches; [`eval_windows`] goes over a split once, in order.
//! - `fetch`, with the feature `cli`: brings a data set into the data folder, checked by its hash.
//!
//! Nothing here knows of tensors or devices: ids leave as `u32`.

mod corpus;
#[cfg(feature = "cli")]
mod datasets;
#[cfg(feature = "cli")]
mod download;
mod eval_windows;
mod loader;
mod tokenizer;

pub use corpus::Corpus;
#[cfg(feature = "cli")]
pub use datasets::{DATASETS, Dataset};
#[cfg(feature = "cli")]
pub use download::fetch;
pub use eval_windows::{EvalWindows, eval_windows};
pub use loader::{Batch, IGNORE_INDEX, Loader, Position};
pub use tokenizer::{Coverage, TextStream, Tokenizer, TokenizerSpec};

/// The program that writes the sample, so that a test can compare what it makes with what ships.
#[cfg(test)]
#[path = "../../data/story_generator.rs"]
#[allow(dead_code)] // its `main` is for the program
mod story_generator;
