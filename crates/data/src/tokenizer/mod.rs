//! Text to token ids and back.
//!
//! Every tokenizer is a Hugging Face `tokenizer.json` pipeline, so any tool can read the file beside a model. Four
//! kinds, built or loaded, have faster encoders with the same ids: characters, words, byte-level BPE with the pattern
//! of GPT-2, Llama 3 or Qwen 2, and SentencePiece's Metaspace.

mod coverage;
mod encode;
mod from_llama_cpp;
mod llama_cpp;
mod pretrained;
mod pretrained_config;
mod recipe;
mod recognise;
mod segment;
mod splitter;
mod stream;
mod vocab_and_merges;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aho_corasick::AhoCorasick;
use serde_json::Value;

use crate::Corpus;
use encode::Worker;
use pretrained_config::PretrainedConfig;
use rustyflow_base::error::{Error, Result};
use segment::Boundary;
use vocab_and_merges::read_vocab_and_merges;

pub use coverage::Coverage;
pub(super) use encode::Run;
pub use from_llama_cpp::LlamaCppVocabulary;
pub use llama_cpp::{LlamaCppTokenizer, TokenKind};
pub use pretrained::OWN_CLASS;
pub(super) use segment::Segment;
pub use stream::TextStream;

/// The tokenizer to build or load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerSpec {
    /// Every character of the corpus is a token.
    Char,
    /// Every word of the corpus is a token, as in WikiText: words are separated by white space, each line break is
    /// `<eos>`, and unknown words are `<unk>`.
    Word,
    /// Byte-level BPE trained on the corpus's training text.
    Bpe,
    /// GPT-2's own tokenizer, from the data folder.
    Gpt2,
    /// A `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`.
    Path(PathBuf),
}

impl TokenizerSpec {
    /// Parses `char`, `word`, `bpe`, `gpt2` or a path. A text that exists as a file, has a slash or ends in `.json` is
    /// a path.
    pub fn parse(text: &str) -> Result<TokenizerSpec> {
        match text {
            "char" => Ok(TokenizerSpec::Char),
            "word" => Ok(TokenizerSpec::Word),
            "bpe" => Ok(TokenizerSpec::Bpe),
            "gpt2" => Ok(TokenizerSpec::Gpt2),
            path if path.ends_with(".json") || path.contains(['/', '\\']) || Path::new(path).exists() => {
                Ok(TokenizerSpec::Path(PathBuf::from(path)))
            }
            other => Err(Error::Tokenizer {
                name: other.to_string(),
                message: "expected char, word, bpe, gpt2, a tokenizer.json, or a folder with vocab.json and \
                    merges.txt (data.tokenizer)"
                    .to_string(),
            }),
        }
    }
}

/// Turns text into token ids below [`vocab_size`](Tokenizer::vocab_size) and back.
pub struct Tokenizer {
    name: String,
    inner: tokenizers::Tokenizer,
    kind: Kind,
    /// Where texts are cut to be encoded.
    boundary: Boundary,
    /// Finds added tokens; `None` if there are none.
    added: Option<AhoCorasick>,
    /// Worker states of encoding threads, for reuse.
    workers: Mutex<Vec<Worker>>,
    /// The character of every byte in byte-level vocabularies.
    symbols: [char; 256],
    /// The configuration loaded with the pipeline; `None` for a built tokenizer.
    config: Option<PretrainedConfig>,
    /// Ids of tokens that mark something and have no text to be shown.
    special: HashSet<u32>,
    /// Whether a text that does not begin with a space gets one.
    adds_space: bool,
    /// Bytes of each id; empty for ids without a token. For [`Kind::Spaces`] and [`Kind::Other`], the token's text.
    pieces: Vec<Vec<u8>>,
}

/// How text becomes ids and back.
enum Kind {
    Char {
        ids: HashMap<char, u32>,
        unknown: Option<u32>,
    },
    Word {
        ids: HashMap<String, u32>,
        eos: u32,
        unknown: u32,
    },
    ByteLevel {
        /// Bytes without a token, which the library would drop silently.
        missing: Vec<u8>,
        /// Whether text is brought into Unicode's form NFC first.
        normalizes: bool,
    },
    /// SentencePiece: spaces are `▁`.
    Spaces {
        /// Whether a text that does not begin with a space gets one.
        prepend: bool,
        /// Whether every space begins a pre-token.
        splits: bool,
    },
    /// Any other pipeline, encoded by the library.
    Other,
}

/// Largest BPE training text, bytes: more changes few merges and takes minutes.
pub const BPE_SAMPLE_BYTES: u64 = 1 << 26;

impl Tokenizer {
    /// Builds or loads a tokenizer.
    ///
    /// `vocab_size` is the size of a trained BPE vocabulary (at least 256, one token per byte; smaller if the text has
    /// no more pairs to merge); other kinds ignore it. Character and word vocabularies cover all splits of `corpus`, so
    /// that none has unknown tokens. BPE is trained on the training split, on [`BPE_SAMPLE_BYTES`] evenly spread over a
    /// long one. If there are several documents, all three add the token `<|endoftext|>`. `data_dir` is the folder of
    /// `rustyflow data fetch gpt2`.
    pub fn build(spec: &TokenizerSpec, vocab_size: usize, corpus: &Corpus, data_dir: &Path) -> Result<Tokenizer> {
        match spec {
            TokenizerSpec::Char => Tokenizer::from_document("char", &recipe::char_document(corpus)?),
            TokenizerSpec::Word => Tokenizer::from_document("word", &recipe::word_document(corpus)?),
            TokenizerSpec::Bpe => Tokenizer::from_document("bpe", &recipe::train_bpe(corpus, vocab_size)?),
            TokenizerSpec::Gpt2 | TokenizerSpec::Path(_) => Tokenizer::load(spec, data_dir),
        }
    }

    /// Loads a tokenizer that does not depend on a text.
    ///
    /// # Errors
    /// If its files are missing or damaged, or it must be built from a text.
    pub(super) fn load(spec: &TokenizerSpec, data_dir: &Path) -> Result<Tokenizer> {
        match spec {
            TokenizerSpec::Gpt2 => {
                let folder = data_dir.join("gpt2");
                if !(folder.join("vocab.json").is_file() && folder.join("merges.txt").is_file()) {
                    return Err(error(
                        "gpt2",
                        format!(
                            "vocab.json and merges.txt are not in {}: `rustyflow data fetch gpt2` downloads them",
                            folder.display()
                        ),
                    ));
                }
                Tokenizer::from_document("gpt2", &read_vocab_and_merges(&folder)?)
            }
            TokenizerSpec::Path(path) if path.is_dir() => Tokenizer::from_folder(path),
            TokenizerSpec::Path(path) => Tokenizer::from_file(path),
            TokenizerSpec::Char | TokenizerSpec::Word | TokenizerSpec::Bpe => {
                Err(error(&format!("{spec:?}"), "is built from a text".to_string()))
            }
        }
    }

    /// Loads the `tokenizer.json` of a folder, or GPT-2's `vocab.json` and `merges.txt`.
    ///
    /// # Errors
    /// If there is neither, or it is damaged.
    pub fn from_folder(folder: &Path) -> Result<Tokenizer> {
        let file = folder.join("tokenizer.json");
        if file.exists() || !folder.join("vocab.json").exists() {
            return Tokenizer::from_file(&file);
        }
        let mut tokenizer = Tokenizer::from_document(&folder.display().to_string(), &read_vocab_and_merges(folder)?)?;
        tokenizer.config = PretrainedConfig::read(folder)?;
        Ok(tokenizer)
    }

    /// Loads a `tokenizer.json`, with the special tokens of `tokenizer_config.json` beside it. Its truncation and
    /// padding are ignored: texts are encoded as a whole.
    pub fn from_file(path: &Path) -> Result<Tokenizer> {
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let mut tokenizer = Tokenizer::from_bytes(&path.display().to_string(), &bytes)?;
        match tokenizer.kind {
            Kind::Char { .. } => tokenizer.name = "char".to_string(),
            Kind::Word { .. } => tokenizer.name = "word".to_string(),
            Kind::ByteLevel { .. } | Kind::Spaces { .. } | Kind::Other => {}
        }
        tokenizer.config = PretrainedConfig::read(path.parent().unwrap_or(Path::new("")))?;
        Ok(tokenizer)
    }

    /// Sets the name: a loaded tokenizer is named after its file, not as it was built.
    pub fn with_name(mut self, name: &str) -> Tokenizer {
        self.name = name.to_string();
        self
    }

    /// `char`, `word`, `bpe`, `gpt2`, or the path it was loaded from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The highest id plus one, which is the number of embedding rows.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// The first difference in ids from `other`; `None` if all ids have the same tokens.
    pub fn difference(&self, other: &Tokenizer) -> Option<String> {
        let (here, there) = (self.inner.get_vocab(true), other.inner.get_vocab(true));
        let mut tokens: Vec<(&String, &u32)> = here.iter().collect();
        tokens.sort_by_key(|(_, id)| **id);
        for (token, id) in tokens {
            match there.get(token) {
                Some(its) if its == id => {}
                Some(its) => return Some(format!("the token {token:?} has the id {id} there and {its} here")),
                None => return Some(format!("it has no token {token:?}, which has the id {id} there")),
            }
        }
        let more = there.len() - here.len();
        (more > 0).then(|| format!("it has {more} tokens that the model's lacks"))
    }

    /// For each id of `other`, the id of the same text here, if any.
    pub fn shared_ids(&self, other: &Tokenizer) -> Vec<Option<u32>> {
        let here: HashMap<&[u8], u32> =
            self.pieces.iter().enumerate().rev().map(|(id, piece)| (&piece[..], id as u32)).collect();
        let id_of = |piece: &Vec<u8>| here.get(&piece[..]).copied().filter(|_| !piece.is_empty());
        other.pieces.iter().map(id_of).collect()
    }

    /// Decodes `ids`. Invalid UTF-8 becomes U+FFFD. Words are joined by spaces, lines by line breaks.
    ///
    /// Fails on an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Kind::Spaces { .. } | Kind::Other = self.kind {
            ids.iter().try_for_each(|&id| self.check_id(id))?;
            return self.guarded(|inner| inner.decode(ids, false));
        }
        let mut stream = self.stream();
        let mut text = String::new();
        for &id in ids {
            stream.push_onto(id, &mut text)?;
        }
        text.push_str(&stream.finish()?);
        Ok(text)
    }

    /// The bytes of one token within a text; of a byte-level vocabulary they may be a part of a character.
    ///
    /// Fails on an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<Vec<u8>> {
        self.check_id(id)?;
        let piece = &self.pieces[id as usize];
        match self.kind {
            Kind::Char { .. } | Kind::ByteLevel { .. } => Ok(piece.clone()),
            Kind::Spaces { .. } if !self.is_special(id) => {
                let text = String::from_utf8_lossy(piece);
                let byte = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
                match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    Some(byte) => Ok(vec![byte]),
                    None => Ok(text.replace('\u{2581}', " ").into_bytes()),
                }
            }
            _ => self.decode(&[id]).map(String::into_bytes),
        }
    }

    /// A streaming decoder, which returns text as soon as it is final.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// Calls the library, which panics on the contradictions of some damaged files.
    fn guarded<T>(&self, call: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T>) -> Result<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&self.inner)));
        called
            .unwrap_or_else(|_| Err("its parts contradict each other".into()))
            .map_err(|cause| error(&self.name, cause.to_string()))
    }

    /// Whether a text without a leading space gets one, as with SentencePiece: then the tokens of parts are not those
    /// of the text.
    pub(crate) fn adds_space(&self) -> bool {
        self.adds_space
    }

    fn check_id(&self, id: u32) -> Result<()> {
        if id as usize >= self.pieces.len() {
            return Err(error(&self.name, format!("no token has the id {id}: there are {}", self.pieces.len())));
        }
        Ok(())
    }

    fn from_document(name: &str, document: &Value) -> Result<Tokenizer> {
        Tokenizer::from_bytes(name, document.to_string().as_bytes())
    }

    fn from_bytes(name: &str, bytes: &[u8]) -> Result<Tokenizer> {
        let unusable = |cause: String| error(name, format!("not a usable tokenizer.json: {cause}"));
        let document: Document = serde_json::from_slice(bytes).map_err(|cause| unusable(cause.to_string()))?;
        // Some damaged files make the library panic, and a file must not bring down a run.
        let parsed = catch_unwind(AssertUnwindSafe(|| tokenizers::Tokenizer::from_bytes(bytes)));
        let inner = parsed
            .unwrap_or_else(|_| Err("its parts contradict each other".into()))
            .map_err(|cause| unusable(cause.to_string()))?;
        // The library numbers added tokens by itself. Where that differs from the file, the rows of an embedding that
        // was trained with it would shift.
        for AddedToken { id, content } in document.added_tokens {
            if let Some(got) = inner.token_to_id(&content).filter(|&got| got != id) {
                return Err(unusable(format!("the added token {content:?} has the id {id}, its place would be {got}")));
            }
        }
        Tokenizer::new(name, inner)
    }

    fn new(name: &str, mut inner: tokenizers::Tokenizer) -> Result<Tokenizer> {
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|cause| error(name, cause.to_string()))?;
        let vocab = inner.get_vocab(true);
        let Some(highest) = vocab.values().max() else {
            return Err(error(name, "the vocabulary is empty".to_string()));
        };
        // Ids may have gaps, but a huge one is damage and would ask for a huge embedding.
        let size = *highest as usize + 1;
        if size > 2 * vocab.len() + 1024 {
            return Err(error(name, format!("{} tokens have ids up to {highest}", vocab.len())));
        }
        let (kind, boundary) = recognise::recognise(&inner, &vocab);
        let mut pieces = vec![vec![]; size];
        for (token, id) in &vocab {
            pieces[*id as usize] = match &kind {
                Kind::ByteLevel { .. } => recipe::bytes_of(token).unwrap_or_else(|| token.as_bytes().to_vec()),
                Kind::Word { eos, .. } if id == eos => b"\n".to_vec(),
                _ => token.as_bytes().to_vec(),
            };
        }
        let added = inner.get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let added: Vec<String> = added.into_values().map(|token| token.content).collect();
        let added = (!added.is_empty()).then(|| AhoCorasick::new(added)).transpose();
        let added = added.map_err(|cause| error(name, format!("its added tokens: {cause}")))?;
        let (workers, symbols) = (Mutex::default(), encode::symbols());
        let (adds_space, config) = (recognise::adds_space(&inner), None);
        let name = name.to_string();
        Ok(Tokenizer { name, inner, kind, boundary, added, workers, symbols, config, special, adds_space, pieces })
    }
}

fn error(name: &str, message: String) -> Error {
    Error::Tokenizer { name: name.to_string(), message }
}

/// The parts of a `tokenizer.json` that are read before the library loads it.
#[derive(serde::Deserialize)]
struct Document {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(serde::Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

#[cfg(test)]
mod segment_tests;
#[cfg(test)]
mod tests;
