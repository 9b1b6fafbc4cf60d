//! Tokenized corpora: nanoGPT's `train.bin` and `val.bin`, and folders of `rustyflow data prepare`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache;
use super::corpus::Split;
use super::documents::{Documents, Packing};
use super::prepare::{DataSpec, META, Meta, Prepared, TOKENIZER, TRAIN, VALIDATION};
use super::tokenizer::{Coverage, Tokenizer, TokenizerSpec};
use super::tokens::{TokenType, Tokens};
use rustyflow_base::cache::hex;
use rustyflow_base::error::{Error, Result};

/// Tokens of the validation split that are decoded to measure bytes per token.
const MEASURED_TOKENS: usize = 1 << 20;

/// Files of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenFiles {
    train: PathBuf,
    validation: Option<PathBuf>,
    /// How much of the tokens is held out if there is no such file.
    validation_fraction: f64,
    /// Metadata, if rustyflow wrote them.
    meta: Option<Meta>,
    /// Sizes and hash of the files.
    survey: Survey,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Survey {
    sha256: String,
    /// The highest id, of 2 bytes each if nothing says otherwise.
    most: u32,
    /// The same of 4 bytes each, where nothing says how many and the files can be such.
    most_of_4: Option<u32>,
    /// Whether every second one of those is 0, as in files of 8 bytes a token.
    is_of_8: bool,
}

impl TokenFiles {
    /// The token files that a path means, if it means any: a folder with `train.bin`, or a file that ends in `.bin`.
    pub(super) fn find(path: &Path, validation_fraction: f64) -> Option<TokenFiles> {
        let survey = Survey::default();
        if path.is_dir() {
            let [train, validation] = [TRAIN, VALIDATION].map(|name| path.join(name));
            let meta = cache::load(&path.join(META));
            let validation = validation.is_file().then_some(validation);
            let is_there = train.is_file();
            return is_there.then_some(TokenFiles { train, validation, validation_fraction, meta, survey });
        }
        let is_tokens = path.is_file() && path.extension().is_some_and(|extension| extension == "bin");
        let train = path.to_path_buf();
        is_tokens.then_some(TokenFiles { train, validation: None, validation_fraction, meta: None, survey })
    }

    /// Surveys the files, unless the cached survey `remembered` exists.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn survey(mut self, remembered: Option<&Path>) -> Result<TokenFiles> {
        if let Some(known) = remembered.and_then(cache::load) {
            self.survey = known;
            return Ok(self);
        }
        let (mut hash, mut most, mut most_of_4, mut is_of_8) = (Sha256::new(), 0, Some(0), true);
        for path in self.paths() {
            refuse_numpy(path)?;
            let (mut high, mut at) = (0, 0);
            Tokens::map(path, self.written_type(), None)?.each_part(|ids| {
                most = ids.iter().copied().max().unwrap_or(0).max(most);
                hash.update(bytemuck::cast_slice(ids));
                // Parts are of even lengths, but for the last.
                for pair in ids.chunks_exact(2) {
                    let id = pair[0] | pair[1] << 16;
                    most_of_4 = most_of_4.map(|most: u32| most.max(id));
                    is_of_8 &= at % 2 == 0 || id == 0;
                    at += 1;
                }
                high += ids.len();
            });
            most_of_4 = most_of_4.filter(|_| high % 2 == 0);
        }
        most_of_4 = most_of_4.filter(|_| self.meta.is_none());
        is_of_8 &= most_of_4.is_some_and(|most| most > 0);
        self.survey = Survey { sha256: hex(&hash.finalize()), most, most_of_4, is_of_8 };
        remembered.inspect(|path| cache::store(path, &self.survey));
        Ok(self)
    }

    pub(super) fn paths(&self) -> Vec<&Path> {
        std::iter::once(&*self.train).chain(self.validation.as_deref()).collect()
    }

    /// The files on which it depends what they hold.
    pub(super) fn known_by(&self) -> Vec<PathBuf> {
        let meta = self.meta.as_ref().and(self.train.parent()).map(|folder| folder.join(META));
        self.paths().into_iter().map(Path::to_path_buf).chain(meta).collect()
    }

    pub(super) fn sha256(&self) -> &str {
        &self.survey.sha256
    }

    /// Where is written what documents a token file holds.
    fn documents_of(&self, path: &Path) -> PathBuf {
        path.with_extension("documents")
    }

    /// The type of the ids, if known; nanoGPT's have 2 bytes.
    fn written_type(&self) -> TokenType {
        self.meta.as_ref().map_or(TokenType::U16, |meta| meta.token_type)
    }

    /// The type of the ids for this vocabulary size: 4 bytes if all ids are then valid, because pairs of 2-byte ids are
    /// not.
    ///
    /// # Errors
    /// If the files hold ids beyond the vocabulary however they are read.
    fn token_type(&self, vocab_size: usize) -> Result<TokenType> {
        let wrong = |message: String| Err(Error::Corpus { path: self.train.clone(), message });
        let Survey { most, most_of_4, is_of_8, .. } = self.survey;
        if self.meta.is_none() && most_of_4.is_some_and(|most| (most as usize) < vocab_size) {
            if is_of_8 {
                return wrong("holds tokens of 8 bytes: write them as 4 (NumPy's astype(\"uint32\"))".to_string());
            }
            return Ok(TokenType::U32);
        }
        let is_too_small = self.meta.is_none() && TokenType::for_vocabulary(vocab_size) == TokenType::U32;
        if is_too_small || most as usize >= vocab_size {
            let read = match (self.meta.is_none(), most_of_4) {
                (true, Some(most_of_4)) => format!(" (as 2-byte ids; {most_of_4} as 4-byte ids)"),
                (true, None) => " (as 2-byte ids; the length is not a multiple of 4 bytes)".to_string(),
                (false, _) => String::new(),
            };
            return wrong(format!(
                "token id {most}{read} exceeds the tokenizer's vocabulary of {vocab_size}; set data.tokenizer to the \
                 tokenizer that wrote the file"
            ));
        }
        Ok(self.written_type())
    }

    /// The training and validation splits, packed as in [`DataSpec`]. Without a validation file, the last tokens are
    /// held out.
    ///
    /// # Errors
    /// If a file cannot be read, an id is not below `vocab_size`, or packing is requested without document boundaries.
    pub(super) fn splits(&self, vocab_size: usize, packing: Option<Packing>) -> Result<[Tokens; 2]> {
        let token_type = self.token_type(vocab_size)?;
        let has_prompts = self.meta.as_ref().is_some_and(|meta| meta.has_prompts);
        let packing = Packing::or_default(packing, has_prompts);
        let train = Tokens::map(&self.train, token_type, None)?;
        let is_whole = self.validation.is_some() && self.documents_of(&self.train).is_file();
        if !is_whole && (has_prompts || packing != Packing::Stream) {
            let message = "has tokens without document boundaries and masks; leave data.packing unset, or prepare the \
                           text again with `rustyflow data prepare`";
            return Err(Error::Corpus { path: self.train.clone(), message: message.to_string() });
        }
        if let Some(path) = &self.validation {
            let in_documents = |path: &Path, tokens: Tokens| match is_whole {
                true => {
                    let documents = Documents::read(&self.documents_of(path), tokens.len())?;
                    tokens.in_documents(documents, packing)
                }
                false => Ok(tokens),
            };
            return Ok([in_documents(&self.train, train)?, in_documents(path, Tokens::map(path, token_type, None)?)?]);
        }
        let kept = train.len() - (train.len() as f64 * self.validation_fraction).round() as usize;
        Ok([train.slice(0..kept), train.slice(kept..train.len())])
    }

    /// One split, and the bytes that it decodes to.
    ///
    /// # Errors
    /// Those of [`splits`](TokenFiles::splits).
    pub(super) fn split(
        &self,
        split: Split,
        tokenizer: &Tokenizer,
        packing: Option<Packing>,
    ) -> Result<(Tokens, Coverage)> {
        let [train, validation] = self.splits(tokenizer.vocab_size(), packing)?;
        let tokens = if split == Split::Train { train } else { validation };
        let coverage = coverage(&tokens, tokenizer)?;
        Ok((tokens, coverage))
    }

    /// The tokens with their tokenizer: that of a resumed run, the configured one, or the one in their folder.
    ///
    /// # Errors
    /// If their tokenizer is unknown; those of [`splits`](TokenFiles::splits).
    pub(super) fn prepare(
        &self,
        spec: &DataSpec,
        name: &str,
        tokenizer: Option<Tokenizer>,
        on_tokenizer: &mut dyn FnMut(&Tokenizer) -> Result<()>,
    ) -> Result<Prepared> {
        let folder = self.train.parent().unwrap_or(Path::new(".")).to_path_buf();
        let beside = folder.join(TOKENIZER);
        let tokenizer = match (tokenizer, TokenizerSpec::parse(spec.tokenizer)?) {
            (Some(tokenizer), _) => tokenizer,
            (None, known @ (TokenizerSpec::Gpt2 | TokenizerSpec::Path(_))) => {
                Tokenizer::load(&known, spec.corpus.data_dir)?
            }
            (None, _) if self.meta.is_some() && beside.is_file() => Tokenizer::from_file(&beside)?,
            (None, _) => {
                let message = format!(
                    "has tokens, from which `{}` cannot be built; name their tokenizer, as in \
                     data.tokenizer = \"gpt2\" or the path of a tokenizer.json",
                    spec.tokenizer
                );
                return Err(Error::Corpus { path: self.train.clone(), message });
            }
        };
        on_tokenizer(&tokenizer)?;
        let [train, validation] = self.splits(tokenizer.vocab_size(), spec.packing)?;
        let meta = Meta {
            version: env!("CARGO_PKG_VERSION").to_string(),
            corpus: name.to_string(),
            tokenizer: tokenizer.name().to_string(),
            token_type: self.token_type(tokenizer.vocab_size())?,
            vocab_size: tokenizer.vocab_size(),
            train_tokens: train.len() as u64,
            validation_tokens: validation.len() as u64,
            text_sha256: self.survey.sha256.clone(),
            tokens_sha256: self.survey.sha256.clone(),
            coverage: match &self.meta {
                Some(meta) => meta.coverage,
                None => coverage(&validation, &tokenizer)?,
            },
            has_prompts: self.meta.as_ref().is_some_and(|meta| meta.has_prompts),
            notes: vec![],
        };
        Ok(Prepared { folder, tokenizer, train, validation, meta })
    }
}

/// # Errors
/// If the file is an array with a header, which would be read as tokens.
fn refuse_numpy(path: &Path) -> Result<()> {
    let failed = |error| Error::io("read", path, error);
    let mut beginning = vec![];
    File::open(path).map_err(failed)?.take(6).read_to_end(&mut beginning).map_err(failed)?;
    if beginning == b"\x93NUMPY" {
        let message = "is an array written by NumPy's `save`; write raw tokens with `tofile`".to_string();
        return Err(Error::Corpus { path: path.to_path_buf(), message });
    }
    Ok(())
}

/// The coverage of tokens whose text is not available.
fn coverage(tokens: &Tokens, tokenizer: &Tokenizer) -> Result<Coverage> {
    let mut ids = vec![0; tokens.len().min(MEASURED_TOKENS)];
    tokens.copy(0, &mut ids);
    let text = tokenizer.decode(&ids)?;
    let scale = tokens.len() as f64 / ids.len().max(1) as f64;
    let measured = tokenizer.coverage(&text, &ids)?;
    Ok(Coverage { decodable_bytes: (measured.decodable_bytes as f64 * scale).round() as usize, ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(bytes: &[u8], vocab_size: usize) -> std::result::Result<TokenType, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.bin");
        std::fs::write(&path, bytes).unwrap();
        let files = TokenFiles::find(&path, 0.1).unwrap().survey(None).map_err(|error| error.to_string())?;
        files.token_type(vocab_size).map_err(|error| error.to_string())
    }

    #[test]
    fn the_bytes_of_a_token_follow_from_the_ids_and_the_vocabulary() {
        let of_2 = |ids: &[u16]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let of_4 = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(type_of(&of_2(&[5, 64, 7, 1]), 65), Ok(TokenType::U16));
        assert_eq!(type_of(&of_2(&[5, 64, 7]), 65), Ok(TokenType::U16));
        assert_eq!(type_of(&of_4(&[66_000, 69_999]), 70_000), Ok(TokenType::U32));
        assert_eq!(type_of(&of_4(&[5, 50_256]), 50_257), Ok(TokenType::U32));
        for (bytes, vocab_size, told) in [
            (of_2(&[5, 65]), 65, "token id 65 (as 2-byte ids; 4259845 as 4-byte ids)"),
            (of_2(&[5, 300, 7, 300]), 70_000, "as 2-byte ids"),
            (of_4(&[5, 0, 7, 0, 9, 0]), 65, "8 bytes"),
            (b"\x93NUMPY\x01\x00ab".to_vec(), 65, "tofile"),
        ] {
            let error = type_of(&bytes, vocab_size).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
