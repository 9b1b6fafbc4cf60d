//! From a corpus to token files: on all cores, in memory that does not grow with the text, and once: the files are kept
//! for the next run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::corpus::{Corpus, CorpusSpec, Piece, Split};
use super::tokenizer::{BPE_SAMPLE_BYTES, Coverage, Segment, Tokenizer, TokenizerSpec};
use super::tokens::{TokenType, TokenWriter, Tokens};
use super::{cache, source::Sink};
use crate::cache::hex;
use crate::error::{Error, Result};

/// Changes with everything that gives the same text other tokens, or writes them in another way.
const FORMAT: u32 = 1;

/// Text of the validation split on which is measured what its tokens keep, bytes.
const COVERAGE_BYTES: usize = 1 << 22;

/// How long token files are kept that no run uses.
const KEEP_UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The files of a folder of tokens, of which `rustyflow data prepare` makes one and the cache holds many.
pub(super) const TRAIN: &str = "train.bin";
pub(super) const VALIDATION: &str = "val.bin";
pub(super) const META: &str = "meta.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Which text, and what makes tokens of it.
#[derive(Debug, Clone, Copy)]
pub struct DataSpec<'a> {
    pub corpus: CorpusSpec<'a>,
    /// See [`TokenizerSpec::parse`].
    pub tokenizer: &'a str,
    /// See [`Tokenizer::build`].
    pub vocab_size: usize,
}

/// How far the preparation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// "reading" or "tokenizing".
    pub task: &'static str,
    /// Bytes of text.
    pub done: u64,
    /// `None` while that is not known.
    pub total: Option<u64>,
}

/// A text as tokens.
pub struct Prepared {
    /// Where the files are.
    pub folder: PathBuf,
    pub tokenizer: Tokenizer,
    pub train: Tokens,
    pub validation: Tokens,
    pub meta: Meta,
}

/// What goes with token files.
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
    /// Of both files.
    pub tokens_sha256: String,
    /// What of the validation text its tokens keep, measured on its first 4 MiB.
    pub coverage: Coverage,
    /// What a user should know.
    pub notes: Vec<String>,
}

impl DataSpec<'_> {
    /// The tokens of `corpus`. With `tokenizer`, one that a run already has, it is used instead of building the one
    /// that is configured.
    ///
    /// # Errors
    /// If the text cannot be read, the tokenizer cannot be built or lacks what the text holds, or the disk is full.
    pub fn prepare(
        &self,
        corpus: &Corpus,
        tokenizer: Option<Tokenizer>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Prepared> {
        if let Some(files) = &corpus.tokens {
            return files.prepare(self, &corpus.name, tokenizer);
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
            return open(folder, tokenizer, None);
        }
        let tokenizer = match known {
            Some(tokenizer) => tokenizer,
            None => Tokenizer::build(&spec, self.vocab_size, corpus, self.corpus.data_dir)?,
        };
        let (partial, is_kept) = partial_folder(kept.as_deref())?;
        write(corpus, &tokenizer, partial.path(), on_progress)?;
        let path = partial.path().to_path_buf();
        let Some(folder) = folder.filter(|_| is_kept) else {
            return open(&path, tokenizer, Some(Arc::new(partial)));
        };
        // What is there already is damaged, or of a run that was quicker: then its files are the same.
        let taken = std::fs::rename(&path, &folder).is_ok()
            || is_whole(&folder)
            || (std::fs::rename(&folder, path.join("damaged")).is_ok() && publish(&path, &folder));
        if taken { open(&folder, tokenizer, None) } else { open(&path, tokenizer, Some(Arc::new(partial))) }
    }

    /// Writes the token files of `corpus` into a folder that holds none yet, with the tokenizer and `meta.json`.
    ///
    /// # Errors
    /// Those of [`DataSpec::prepare`], or if there are such files.
    pub fn write_to(&self, corpus: &Corpus, folder: &Path, on_progress: &mut dyn FnMut(Progress)) -> Result<Prepared> {
        for name in [TRAIN, VALIDATION, META] {
            if folder.join(name).exists() {
                let message = format!("holds {name} already: name another folder, or remove it");
                return Err(Error::Corpus { path: folder.to_path_buf(), message });
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
        // The training tokens last: without them the folder is no corpus.
        for name in [TOKENIZER, META, VALIDATION, TRAIN] {
            std::fs::rename(partial.path().join(name), folder.join(name)).map_err(failed)?;
        }
        open(folder, tokenizer, None)
    }

    /// Where the tokens are kept. What a run of another version has built need not be what this one builds: its tokens
    /// have a place of their own then.
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
        let is_same = std::fs::read_to_string(built.join(TOKENIZER)).is_ok_and(|text| text == json) && is_whole(&built);
        if is_same { Ok(built) } else { Ok(kept.join(self.key(spec, corpus, Some(&json))?)) }
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

/// Gives a complete folder its name, without what it was replaced for.
fn publish(partial: &Path, folder: &Path) -> bool {
    let _ = std::fs::remove_dir_all(partial.join("damaged"));
    std::fs::rename(partial, folder).is_ok()
}

/// A folder for what is not complete yet. Several users may share the folder that it is in.
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
    holds(TRAIN, meta.train_tokens) && holds(VALIDATION, meta.validation_tokens) && folder.join(TOKENIZER).is_file()
}

/// A folder that is no result yet, and whether it is in the cache. Where that cannot be written it is among temporary
/// files.
fn partial_folder(kept: Option<&Path>) -> Result<(TempDir, bool)> {
    if let Some(kept) = kept {
        match std::fs::create_dir_all(kept).and_then(|()| partial_in(kept)) {
            Ok(folder) => {
                remove_unused(kept);
                return Ok((folder, true));
            }
            Err(error) => crate::cache::warn(kept, &error),
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

/// Opens a folder of tokens.
fn open(folder: &Path, tokenizer: Tokenizer, temporary: Option<Arc<TempDir>>) -> Result<Prepared> {
    let meta: Meta = cache::load(&folder.join(META)).ok_or_else(|| Error::Corpus {
        path: folder.join(META),
        message: "is damaged: remove the folder, and it is made again".to_string(),
    })?;
    let map = |name: &str| Tokens::map(&folder.join(name), meta.token_type, temporary.clone());
    Ok(Prepared { folder: folder.to_path_buf(), tokenizer, train: map(TRAIN)?, validation: map(VALIDATION)?, meta })
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
    let mut counts = [0; 2];
    for (split, name) in [(Split::Train, TRAIN), (Split::Validation, VALIDATION)] {
        let mut file = TokenWriter::create(&folder.join(name), token_type)?;
        forced += encode(corpus, split, tokenizer, &mut |text, ids| {
            done += text.len() as u64;
            on_progress(Progress { task: "tokenizing", done, total });
            if split == Split::Validation {
                measured.add(tokenizer, text, ids)?;
            }
            file.write(ids)
        })?;
        counts[usize::from(split == Split::Validation)] = file.tokens;
        hash.update(file.finish()?);
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
        notes
            .push(format!("the tokenizer {name} has no token for the end of a text: a line break separates documents"));
    }
    if tokenizer.name() == "bpe" && corpus.bytes() > BPE_SAMPLE_BYTES {
        let [sample, all] = [BPE_SAMPLE_BYTES, corpus.bytes()].map(|bytes| bytes as f64 / 1e6);
        notes.push(format!("bpe was trained on {sample:.0} MB, evenly spread over the {all:.0} MB of the text"));
    }
    if forced > 0 {
        notes.push(format!("{forced} stretches of more than 4 MB without a place to cut were cut within a word"));
    }
    notes
}

/// Measures what tokens keep of the beginning of a text, document by document.
struct Measured {
    /// Of the document that is read.
    text: String,
    ids: Vec<u32>,
    /// Of those before.
    bytes: usize,
    tokens: usize,
    kept: Coverage,
    /// Of the whole text, measured or not.
    all_bytes: usize,
}

impl Measured {
    fn new() -> Measured {
        let kept = Coverage { decodable_bytes: 0, unknown_share: 0.0, lossless: true };
        Measured { text: String::new(), ids: vec![], bytes: 0, tokens: 0, kept, all_bytes: 0 }
    }

    /// Takes the next part of a text and its tokens; no text is the end of a document.
    fn add(&mut self, tokenizer: &Tokenizer, text: &str, ids: &[u32]) -> Result<()> {
        self.all_bytes += text.len();
        if text.is_empty() {
            return self.end_document(tokenizer);
        }
        if self.bytes + self.text.len() < COVERAGE_BYTES {
            self.text.push_str(text);
            self.ids.extend(ids);
        }
        Ok(())
    }

    fn end_document(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        // Of most documents of a long text nothing is measured.
        if self.text.is_empty() {
            return Ok(());
        }
        let (text, ids) = (std::mem::take(&mut self.text), std::mem::take(&mut self.ids));
        let Coverage { decodable_bytes, unknown_share, lossless } = tokenizer.coverage(&text, &ids)?;
        let unknown = self.kept.unknown_share * self.tokens as f64 + unknown_share * ids.len() as f64;
        self.bytes += text.len();
        self.tokens += ids.len();
        self.kept = Coverage {
            decodable_bytes: self.kept.decodable_bytes + decodable_bytes,
            unknown_share: unknown / self.tokens.max(1) as f64,
            lossless: self.kept.lossless && lossless,
        };
        Ok(())
    }

    fn coverage(mut self, tokenizer: &Tokenizer) -> Result<Coverage> {
        self.end_document(tokenizer)?;
        let scale = self.all_bytes as f64 / self.bytes.max(1) as f64;
        let decodable_bytes = (self.kept.decodable_bytes as f64 * scale).round() as usize;
        Ok(Coverage { decodable_bytes, ..self.kept })
    }
}

/// The tokens of a split in memory, and what they keep of its text.
///
/// # Errors
/// Those of [`DataSpec::prepare`].
pub fn encode_split(corpus: &Corpus, split: Split, tokenizer: &Tokenizer) -> Result<(Tokens, Coverage)> {
    if let Some(files) = &corpus.tokens {
        return files.split(split, tokenizer);
    }
    let (mut all, mut measured) = (vec![], Measured::new());
    encode(corpus, split, tokenizer, &mut |text, ids| {
        measured.add(tokenizer, text, ids)?;
        all.extend(ids);
        Ok(())
    })?;
    Ok((all.into(), measured.coverage(tokenizer)?))
}

/// The first tokens of a split, so many at most: no more of the text is read than they take.
///
/// # Errors
/// If the text cannot be read, or holds what the tokenizer lacks.
pub fn encode_beginning(corpus: &Corpus, split: Split, tokenizer: &Tokenizer, most: usize) -> Result<Tokens> {
    if let Some(files) = &corpus.tokens {
        let (tokens, _) = files.split(split, tokenizer)?;
        return Ok(tokens.slice(0..most.min(tokens.len())));
    }
    let mut all = vec![];
    let result = encode(corpus, split, tokenizer, &mut |_, ids| {
        all.extend(ids);
        if all.len() < most { Ok(()) } else { Err(Error::Invalid("not needed".into())) }
    });
    if all.len() < most {
        result?;
    }
    all.truncate(most);
    Ok(all.into())
}

/// Hands over the text of a split and its tokens, in order, part by part. Returns how often it was cut where that may
/// have changed tokens.
fn encode(
    corpus: &Corpus,
    split: Split,
    tokenizer: &Tokenizer,
    take: &mut dyn FnMut(&str, &[u32]) -> Result<()>,
) -> Result<usize> {
    let separator = corpus.has_documents().then(|| tokenizer.end_of_text().map(|(id, _)| id));
    // So many segments at once that no core waits for the slowest for long.
    let at_once = 4 * rayon::current_num_threads();
    let (sender, segments) = sync_channel::<Segment>(at_once);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut segmenter = tokenizer.segmenter();
            // It fails if nobody takes segments any more: then there is an error already.
            let mut send = |segment| sender.send(segment).map_err(|_| Error::Invalid("not needed".into()));
            read(corpus, split, separator == Some(None), &mut |piece| match piece {
                Piece::Text(text) => segmenter.push(text, &mut send),
                Piece::End => segmenter.end_document(&mut send),
            })?;
            Ok(segmenter.forced)
        });
        let result = take_all(segments, at_once, tokenizer, separator.flatten(), take);
        let panicked = || Error::Invalid(format!("{}: reading it failed: a file is damaged", corpus.name));
        let read = reader.join().unwrap_or_else(|_| Err(panicked()));
        result.and(read)
    })
}

/// Reads a split; with `breaks`, every document ends in a line break.
fn read(corpus: &Corpus, split: Split, breaks: bool, sink: &mut Sink) -> Result<()> {
    let mut ends_line = true;
    corpus.read(split, &mut |piece| {
        match piece {
            Piece::Text(text) => ends_line = text.ends_with('\n'),
            Piece::End if breaks && !ends_line => sink(Piece::Text("\n"))?,
            Piece::End => {}
        }
        sink(piece)
    })
}

fn take_all(
    segments: Receiver<Segment>,
    at_once: usize,
    tokenizer: &Tokenizer,
    separator: Option<u32>,
    take: &mut dyn FnMut(&str, &[u32]) -> Result<()>,
) -> Result<()> {
    while let Ok(first) = segments.recv() {
        let batch: Vec<Segment> = std::iter::once(first).chain(segments.iter().take(at_once - 1)).collect();
        let encoded: Vec<Result<Vec<u32>>> =
            batch.par_iter().map(|segment| tokenizer.encode_segment(&segment.text, segment.offset)).collect();
        for (segment, ids) in batch.iter().zip(encoded) {
            take(&segment.text, &ids?)?;
            if let Some(separator) = separator.filter(|_| segment.ends) {
                take("", &[separator])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
