//! Text and tokenizer from `[data]`.

use crate::config::{self, DataConfig};
use crate::data::{ChatSpec, CorpusSpec, DataSpec, Packing};
use std::path::Path;

/// The configured text and its tokenizer. Data sets are in `data_dir`, cached token files in `cache`.
pub fn data_spec<'a>(data: &'a DataConfig, data_dir: &'a Path, cache: Option<&'a Path>) -> DataSpec<'a> {
    let corpus = CorpusSpec {
        corpus: &data.corpus,
        files: &data.files,
        validation_fraction: data.validation_fraction,
        data_dir,
        cache,
        chat: chat_spec(data),
    };
    DataSpec { corpus, tokenizer: &data.tokenizer, vocab_size: data.vocab_size, packing: packing(data) }
}

/// The configured chat template; by default the tokenizer's.
pub fn chat_spec(data: &DataConfig) -> ChatSpec<'_> {
    let tokenizer = Path::new(&data.tokenizer);
    let folder = if tokenizer.is_dir() { Some(tokenizer) } else { tokenizer.parent() };
    ChatSpec { template: &data.chat_template, folder: folder.filter(|folder| !folder.as_os_str().is_empty()) }
}

/// The configured packing; `None` for `auto`.
pub fn packing(data: &DataConfig) -> Option<Packing> {
    match data.packing {
        config::Packing::Auto => None,
        config::Packing::Stream => Some(Packing::Stream),
        config::Packing::Documents => Some(Packing::Documents),
        config::Packing::Off => Some(Packing::Off),
    }
}
