//! Tokenizes a corpus to token files: on all cores, in constant memory, and cached for the next run.

mod encode;
mod measured;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::cache;
use super::corpus::{Corpus, CorpusSpec, Split};
use super::documents::{Documents, Packing};
use super::json_rows::Mapped;
use super::tokenizer::{BPE_SAMPLE_BYTES, Coverage, Tokenizer, TokenizerSpec};
use super::tokens::{TokenType, TokenWriter, Tokens};
use encode::encode;
use measured::Measured;
use rustyflow_base::cache::hex;
use rustyflow_base::error::{Error, Result};
use rustyflow_base::units;

pub use encode::{encode_beginning, encode_split};

/// Version of the token files. Increment it when the same text gets other tokens, or the format changes.
const FORMAT: u32 = 4;

/// How long token files are kept that no run uses.
const KEEP_UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The files of a folder of tokens, of which `rustyflow data prepare` makes one and the cache holds many.
pub(super) const TRAIN: &str = "train.bin";
pub(super) const VALIDATION: &str = "val.bin";
/// See `documents.rs`.
pub(super) const TRAIN_DOCUMENTS: &str = "train.documents";
pub(super) const VALIDATION_DOCUMENTS: &str = "val.documents";
pub(super) const META: &str = "meta.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// A corpus and its tokenizer settings.
#[derive(Debug, Clone, Copy)]
pub struct DataSpec<'a> {
    pub corpus: CorpusSpec<'a>,
    /// See [`TokenizerSpec::parse`].
    pub tokenizer: &'a str,
    /// See [`Tokenizer::build`].
    pub vocab_size: usize,
    /// Packing of documents; `None`: `Documents` if they have prompts, else `Stream`.
    pub packing: Option<Packing>,
}

/// Progress of the preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// "reading" or "tokenizing".
    pub task: &'static str,
    /// Bytes of text done.
    pub done: u64,
    /// Total bytes; `None` while unknown.
    pub total: Option<u64>,
}

/// A tokenized corpus.
pub struct Prepared {
    /// Folder of the files.
    pub folder: PathBuf,
    pub tokenizer: Tokenizer,
    pub train: Tokens,
    pub validation: Tokens,
    pub meta: Meta,
}

/// Metadata of token files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub version: String,
    pub corpus: String,
    pub tokenizer: String,
    pub token_type: TokenType,
    pub vocab_size: usize,
    pub train_tokens: u64,
    pub validation_tokens: u64,
    /// [`Corpus::sha256`](Corpus)
    pub text_sha256: String,
    /// SHA-256 of both files.
    pub tokens_sha256: String,
    /// Coverage of the validation text, measured on its first 4 MiB.
    pub coverage: Coverage,
    /// Whether some tokens are masked in the loss.
    #[serde(default)]
    pub has_prompts: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Whether a folder has token files of [`DataSpec::write_to`].
pub fn holds_prepared(folder: &Path) -> bool {
    cache::load::<Meta>(&folder.join(META)).is_some()
}

impl DataSpec<'_> {
    /// Tokenizes `corpus`. `tokenizer`, if given, is used instead of building the configured one. `on_tokenizer` is
    /// called before the text is tokenized, which may take long, and may return an error.
    ///
    /// # Errors
    /// If the text cannot be read, the tokenizer cannot be built or lacks characters of the text, or the disk is full.
    pub fn prepare(
        &self,
        corpus: &Corpus,
        tokenizer: Option<Tokenizer>,
        on_tokenizer: &mut dyn FnMut(&Tokenizer) -> Result<()>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Prepared> {
        if let Some(files) = &corpus.tokens {
            return files.prepare(self, &corpus.name, tokenizer, on_tokenizer);
        }
        let spec = TokenizerSpec::parse(self.tokenizer)?;
        let known = match (tokenizer, &spec) {
            (Some(tokenizer), _) => Some(tokenizer),
            (None, TokenizerSpec::Gpt2 | TokenizerSpec::Path(_)) => Some(Tokenizer::load(&spec, self.corpus.data_dir)?),
            (None, _) => None,
        };
        let kept = self.corpus.cache.map(|cache| cache.join("tokens"));
        let folder = kept.as_deref().map(|kept| self.folder(kept, &spec, corpus, known.as_ref())).transpose()?;
        if let Some(folder) = folder.as_deref().filter(|folder| is_whole(folder)) {
            // Used now: see `remove_unused`.
            let meta = std::fs::File::options().append(true).open(folder.join(META));
            let _ = meta.and_then(|file| file.set_modified(SystemTime::now()));
            let tokenizer = match known {
                Some(tokenizer) => tokenizer,
                None => Tokenizer::from_file(&folder.join(TOKENIZER))?.with_name(self.tokenizer),
            };
            on_tokenizer(&tokenizer)?;
            return self.open(folder, tokenizer, None);
        }
        let tokenizer = match known {
            Some(tokenizer) => tokenizer,
            None => Tokenizer::build(&spec, self.vocab_size, corpus, self.corpus.data_dir)?,
        };
        on_tokenizer(&tokenizer)?;
        let (partial, is_kept) = partial_folder(kept.as_deref())?;
        write(corpus, &tokenizer, partial.path(), on_progress)?;
        let path = partial.path().to_path_buf();
        let Some(folder) = folder.filter(|_| is_kept) else {
            return self.open(&path, tokenizer, Some(Arc::new(partial)));
        };
        // What is there already is damaged, or of a run that was quicker: then its files are the same.
        let taken = std::fs::rename(&path, &folder).is_ok()
            || is_whole(&folder)
            || (std::fs::rename(&folder, path.join("damaged")).is_ok() && publish(&path, &folder));
        if taken { self.open(&folder, tokenizer, None) } else { self.open(&path, tokenizer, Some(Arc::new(partial))) }
    }

    /// Writes the token files of `corpus` into a folder, with the tokenizer and `meta.json`, replacing those of an
    /// earlier call.
    ///
    /// # Errors
    /// Those of [`DataSpec::prepare`], or if the folder holds token files of another program.
    pub fn write_to(&self, corpus: &Corpus, folder: &Path, on_progress: &mut dyn FnMut(Progress)) -> Result<Prepared> {
        if !holds_prepared(folder) {
            for name in [TRAIN, VALIDATION, TRAIN_DOCUMENTS, VALIDATION_DOCUMENTS, META] {
                if folder.join(name).exists() {
                    let message = format!("holds a {name} that `data prepare` did not write: name another folder");
                    return Err(Error::Corpus { path: folder.to_path_buf(), message });
                }
            }
        }
        if corpus.tokens.is_some() {
            let message = "holds tokens already, and no text".to_string();
            return Err(Error::Corpus { path: PathBuf::from(self.corpus.corpus), message });
        }
        let spec = TokenizerSpec::parse(self.tokenizer)?;
        let tokenizer = Tokenizer::build(&spec, self.vocab_size, corpus, self.corpus.data_dir)?;
        let failed = |error| Error::io("write to", folder, error);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let partial = partial_in(folder).map_err(failed)?;
        write(corpus, &tokenizer, partial.path(), on_progress)?;
        if let Some(config) = tokenizer.config_json() {
            std::fs::write(folder.join(TOKENIZER_CONFIG), config).map_err(failed)?;
        }
        // The training tokens go first and come last: without them the folder is no corpus.
        if folder.join(TRAIN).exists() {
            std::fs::remove_file(folder.join(TRAIN)).map_err(failed)?;
        }
        for name in [TOKENIZER, META, VALIDATION_DOCUMENTS, TRAIN_DOCUMENTS, VALIDATION, TRAIN] {
            std::fs::rename(partial.path().join(name), folder.join(name)).map_err(failed)?;
        }
        self.open(folder, tokenizer, None)
    }

    /// Opens a folder of tokens.
    fn open(&self, folder: &Path, tokenizer: Tokenizer, temporary: Option<Arc<TempDir>>) -> Result<Prepared> {
        let meta: Meta = cache::load(&folder.join(META)).ok_or_else(|| Error::Corpus {
            path: folder.join(META),
            message: "is damaged; remove the folder to rebuild it".to_string(),
        })?;
        let packing = Packing::or_default(self.packing, meta.has_prompts);
        let map = |name: &str, documents: &str| {
            let tokens = Tokens::map(&folder.join(name), meta.token_type, temporary.clone())?;
            let documents = Documents::read(&folder.join(documents), tokens.len())?;
            tokens.in_documents(documents, packing)
        };
        let (train, validation) = (map(TRAIN, TRAIN_DOCUMENTS)?, map(VALIDATION, VALIDATION_DOCUMENTS)?);
        Ok(Prepared { folder: folder.to_path_buf(), tokenizer, train, validation, meta })
    }

    /// Cache folder of the tokens. A tokenizer built by another version may differ, so its tokens have a separate
    /// folder.
    fn folder(
        &self,
        kept: &Path,
        spec: &TokenizerSpec,
        corpus: &Corpus,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<PathBuf> {
        let built = kept.join(self.key(spec, corpus, None)?);
        let Some(tokenizer) = tokenizer else { return Ok(built) };
        let json = tokenizer.to_json()?;
        // What was built declares no special tokens.
        let end = tokenizer.end_of_text();
        let is_same = std::fs::read_to_string(built.join(TOKENIZER)).is_ok_and(|text| text == json)
            && end == tokenizer.end_of_text_by_name()
            && is_whole(&built);
        if is_same { Ok(built) } else { Ok(kept.join(self.key(spec, corpus, Some(&format!("{json}\n{end:?}")))?)) }
    }

    /// The name under which the tokens are kept.
    fn key(&self, spec: &TokenizerSpec, corpus: &Corpus, tokenizer: Option<&str>) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(format!("{FORMAT} {} {} {}\n", env!("CARGO_PKG_VERSION"), corpus.sha256, corpus.has_documents()));
        match tokenizer {
            Some(json) => hash.update(json),
            // What the text and this make is always the same.
            None => hash.update(format!("{spec:?} {}", self.vocab_size)),
        }
        Ok(hex(&hash.finalize())[..32].to_string())
    }
}

/// Renames a complete folder to its final name, replacing the old one.
fn publish(partial: &Path, folder: &Path) -> bool {
    let _ = std::fs::remove_dir_all(partial.join("damaged"));
    std::fs::rename(partial, folder).is_ok()
}

/// A temporary folder. Several users may share its parent.
fn partial_in(folder: &Path) -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.prefix("partial-").tempdir_in(folder)
}

/// Whether a folder holds what its `meta.json` says.
fn is_whole(folder: &Path) -> bool {
    let Some(meta) = cache::load::<Meta>(&folder.join(META)) else { return false };
    let holds = |name: &str, tokens: u64| {
        folder.join(name).metadata().is_ok_and(|data| data.len() == tokens * meta.token_type.bytes() as u64)
    };
    holds(TRAIN, meta.train_tokens)
        && holds(VALIDATION, meta.validation_tokens)
        && [TRAIN_DOCUMENTS, VALIDATION_DOCUMENTS, TOKENIZER].iter().all(|name| folder.join(name).is_file())
}

/// A temporary folder, and whether it is in the cache. If the cache is not writable, it is in the system's temporary
/// folder.
fn partial_folder(kept: Option<&Path>) -> Result<(TempDir, bool)> {
    if let Some(kept) = kept {
        match std::fs::create_dir_all(kept).and_then(|()| partial_in(kept)) {
            Ok(folder) => {
                remove_unused(kept);
                return Ok((folder, true));
            }
            Err(error) => rustyflow_base::cache::warn(kept, &error),
        }
    }
    let temporary = std::env::temp_dir();
    Ok((partial_in(&temporary).map_err(|error| Error::io("create", temporary, error))?, false))
}

/// Removes tokens that no run has used for long, and what interrupted runs have left.
fn remove_unused(kept: &Path) {
    for entry in std::fs::read_dir(kept).into_iter().flatten().flatten() {
        let is_partial = entry.file_name().to_string_lossy().starts_with("partial-");
        let used = if is_partial { entry.path() } else { entry.path().join(META) };
        let age = used.metadata().and_then(|data| data.modified()).ok().and_then(|time| time.elapsed().ok());
        let most = if is_partial { KEEP_UNUSED / 30 } else { KEEP_UNUSED };
        if age.is_some_and(|age| age > most) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Writes the tokens of a corpus into a folder.
///
/// # Errors
/// Those of [`DataSpec::prepare`].
pub(super) fn write(
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    folder: &Path,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let token_type = TokenType::for_vocabulary(tokenizer.vocab_size());
    let (mut done, total) = (0, Some(corpus.bytes()));
    let mut forced = 0;
    let mut hash = Sha256::new();
    let mut measured = Measured::new();
    let (mut counts, mut has_prompts) = ([0; 2], false);
    let files = [(Split::Train, TRAIN, TRAIN_DOCUMENTS), (Split::Validation, VALIDATION, VALIDATION_DOCUMENTS)];
    for (split, name, documents_name) in files {
        let mut file = TokenWriter::create(&folder.join(name), token_type)?;
        let mut documents = Documents::default();
        forced += encode(corpus, split, tokenizer, &mut |part| {
            done += part.text.len() as u64;
            on_progress(Progress { task: "tokenizing", done, total });
            if split == Split::Validation {
                measured.add(tokenizer, &part)?;
            }
            documents.add(part.ids.len(), part.predicted, part.ends);
            file.write(part.ids)
        })?;
        documents.write(&folder.join(documents_name))?;
        has_prompts |= documents.has_prompts();
        counts[usize::from(split == Split::Validation)] = file.tokens;
        hash.update(file.finish()?);
        // Which tokens are predicted is part of what is learnt.
        if documents.has_prompts() {
            hash.update(documents.bytes());
        }
    }
    corpus.check_unchanged()?;
    let [train_tokens, validation_tokens] = counts;
    let meta = Meta {
        version: env!("CARGO_PKG_VERSION").to_string(),
        corpus: corpus.name.clone(),
        tokenizer: tokenizer.name().to_string(),
        token_type,
        vocab_size: tokenizer.vocab_size(),
        train_tokens,
        validation_tokens,
        text_sha256: corpus.sha256.clone(),
        tokens_sha256: hex(&hash.finalize()),
        coverage: measured.coverage(tokenizer)?,
        has_prompts,
        notes: notes(corpus, tokenizer, forced),
    };
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| Error::io("write", &path, error))
    };
    put(TOKENIZER, &tokenizer.to_json()?)?;
    put(META, &serde_json::to_string_pretty(&meta).expect("plain values serialize"))
}

fn notes(corpus: &Corpus, tokenizer: &Tokenizer, forced: usize) -> Vec<String> {
    let mut notes = vec![];
    if corpus.has_documents() && tokenizer.end_of_text().is_none() {
        let name = tokenizer.name();
        notes.push(format!("tokenizer {name} has no end-of-text token; documents are separated by line breaks"));
    }
    if tokenizer.name() == "bpe" && corpus.bytes() > BPE_SAMPLE_BYTES {
        let [sample, all] = [BPE_SAMPLE_BYTES, corpus.bytes()].map(units::bytes);
        notes.push(format!("bpe was trained on {sample}, evenly spread over the {all} of the text"));
    }
    let Mapped { share_gpt, alpaca } = corpus.summary.mapped;
    if share_gpt > 0 {
        notes.push(format!("{share_gpt} rows in ShareGPT's format (conversations: from, value) were read as messages"));
    }
    if alpaca > 0 {
        let form = if corpus.has_template() { "messages" } else { "Alpaca's prompt and its completion" };
        notes.push(format!("{alpaca} rows in Alpaca's format (instruction, input, output) were read as {form}"));
    }
    if forced > 0 {
        notes.push(format!("{forced} stretches of more than 4 MiB without a word boundary were cut within a word"));
    }
    notes
}

#[cfg(test)]
mod tests;
