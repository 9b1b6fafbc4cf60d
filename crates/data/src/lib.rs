//! From text to batches: corpora and splits, tokenizers, downloads, and the loader.
//!
//! - [`Corpus`]: text of any size, with a training, a validation and optionally a test split.
//! - [`ChatTemplate`]: renders conversations as text.
//! - [`Tokenizer`]: text to token ids and back: characters, words, byte-level BPE, GPT-2's, or a `tokenizer.json`.
//! - [`TextConventions`]: a model's tokenizer, chat template, and ends of a text or an answer.
//! - [`DataSpec`]: tokenizes a corpus to [`Tokens`], in memory-mapped files that are cached for the next run.
//! - [`Loader`]: an endless, resumable stream of batches, shuffled or [`Continued`]; [`eval_windows`] iterates once
//!   over a split.
//! - with the feature `download`, `fetch` downloads a data set into the data folder and checks its hash; `Hub`
//!   downloads a model into Hugging Face's cache.
//!
//! This crate does not depend on tensors or devices: ids are `u32`.

mod cache;
mod chat;
mod choices;
mod continued;
mod conventions;
mod conversion;
mod corpus;
#[cfg(feature = "download")]
mod datasets;
mod documents;
#[cfg(feature = "download")]
mod download;
mod eval_windows;
mod folder;
#[cfg(feature = "download")]
mod hub;
mod json_lines;
mod json_rows;
mod loader;
mod prepare;
mod random;
mod rows;
mod source;
mod token_files;
mod tokenizer;
mod tokens;
mod utf16;

pub use chat::{ChatSpec, ChatTemplate, Turn};
pub use choices::{Question, read_questions};
pub use continued::Continued;
pub use conventions::{DeclaredIds, Ending, TextConventions};
pub use corpus::{Corpus, CorpusSpec, Piece, Split, Summary};
#[cfg(feature = "download")]
pub use datasets::{DATASETS, Dataset};
pub use documents::{Label, Packing};
#[cfg(feature = "download")]
pub use download::fetch;
pub use eval_windows::{EvalWindows, eval_windows};
#[cfg(feature = "download")]
#[doc(hidden)]
pub use folder::is_text;
#[cfg(feature = "download")]
pub use hub::{Fetched, Hub, Selection};
pub use json_rows::NO_TEMPLATE;
pub use loader::{Batch, IGNORE_INDEX, Loader, Order, Position};
pub use prepare::{DataSpec, Meta, Prepared, Progress, encode_beginning, encode_split, holds_prepared};
pub use rows::{Answer, Row};
pub use source::read_text;
#[doc(hidden)]
pub use tokenizer::OWN_CLASS;
pub use tokenizer::{
    BPE_SAMPLE_BYTES, Coverage, LlamaCppTokenizer, LlamaCppVocabulary, TextStream, TokenKind, Tokenizer, TokenizerSpec,
};
pub use tokens::{Labels, TokenType, Tokens};

pub use rustyflow_base::{Error, Result};
