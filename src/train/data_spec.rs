//! From `[data]` to the text and the tokenizer that it means.

use crate::config::DataConfig;
use crate::data::{CorpusSpec, DataSpec};
use std::path::Path;

/// The text that the configuration means, and its tokenizer. Data sets are in `data_dir`, token files are kept in
/// `cache`.
pub fn data_spec<'a>(data: &'a DataConfig, data_dir: &'a Path, cache: Option<&'a Path>) -> DataSpec<'a> {
    let corpus = CorpusSpec {
        corpus: &data.corpus,
        files: &data.files,
        validation_fraction: data.validation_fraction,
        data_dir,
        cache,
    };
    DataSpec { corpus, tokenizer: &data.tokenizer, vocab_size: data.vocab_size }
}
