//! Corpora that are tokens already: nanoGPT's `train.bin` and `val.bin`, and what `rustyflow data prepare` writes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache;
use super::corpus::Split;
use super::documents::{Documents, Packing};
use super::prepare::{DataSpec, META, Meta, Prepared, TOKENIZER, TRAIN, VALIDATION};
use super::tokenizer::{Coverage, Tokenizer, TokenizerSpec};
use super::tokens::{TokenType, Tokens};
use crate::cache::hex;
use crate::error::{Error, Result};

/// Tokens of the validation split that are decoded to know how many bytes they stand for.
const MEASURED_TOKENS: usize = 1 << 20;

/// Files of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenFiles {
    train: PathBuf,
    validation: Option<PathBuf>,
    /// How much of the tokens is held out if there is no such file.
    validation_fraction: f64,
    /// What is known of them, if we wrote them.
    meta: Option<Meta>,
    /// What reading them once told.
    survey: Survey,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Survey {
    sha256: String,
    most: u32,
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

    /// Reads them once, unless `remembered` holds what that told.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn survey(mut self, remembered: Option<&Path>) -> Result<TokenFiles> {
        if let Some(known) = remembered.and_then(cache::load) {
            self.survey = known;
            return Ok(self);
        }
        let (mut hash, mut most) = (Sha256::new(), 0);
        for path in self.paths() {
            self.map(path)?.each_part(|ids| {
                most = ids.iter().copied().max().unwrap_or(0).max(most);
                hash.update(bytemuck::cast_slice(ids));
            });
        }
        self.survey = Survey { sha256: hex(&hash.finalize()), most };
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

    fn map(&self, path: &Path) -> Result<Tokens> {
        // nanoGPT's are of 2 bytes.
        Tokens::map(path, self.meta.as_ref().map_or(TokenType::U16, |meta| meta.token_type), None)
    }

    /// Training and validation, packed as [`DataSpec`] says. Where there is no file for validation, the last ones are.
    ///
    /// # Errors
    /// If a file cannot be read, or an id is not of a vocabulary of so many tokens; or documents are to be packed that
    /// are not known.
    pub(super) fn splits(&self, vocab_size: usize, packing: Option<Packing>) -> Result<[Tokens; 2]> {
        if self.survey.most as usize >= vocab_size {
            let message = format!(
                "holds the token {}, but the tokenizer has {vocab_size}: it is not the one that made them \
                 (data.tokenizer)",
                self.survey.most
            );
            return Err(Error::Corpus { path: self.train.clone(), message });
        }
        let has_prompts = self.meta.as_ref().is_some_and(|meta| meta.has_prompts);
        let packing = Packing::or_default(packing, has_prompts);
        let train = self.map(&self.train)?;
        let is_whole = self.validation.is_some() && self.documents_of(&self.train).is_file();
        if !is_whole && (has_prompts || packing != Packing::Stream) {
            let message = "holds tokens of which is not known where documents end and what is predicted: leave \
                           data.packing out, or prepare the text again by `rustyflow data prepare`";
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
            return Ok([in_documents(&self.train, train)?, in_documents(path, self.map(path)?)?]);
        }
        let kept = train.len() - (train.len() as f64 * self.validation_fraction).round() as usize;
        Ok([train.slice(0..kept), train.slice(kept..train.len())])
    }

    /// One split of them as it is, and the bytes that it stands for.
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

    /// The tokens with the tokenizer that made them: the one of a run that goes on, the configured one, or the one that
    /// lies beside them.
    ///
    /// # Errors
    /// If it is not known which tokenizer made them, and those of [`splits`](TokenFiles::splits).
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
                    "holds tokens, and `{}` cannot be built from them: name the tokenizer that made them, as in \
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
            token_type: self.meta.as_ref().map_or(TokenType::U16, |meta| meta.token_type),
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

/// The bytes that tokens stand for, whose text is not there to compare with.
fn coverage(tokens: &Tokens, tokenizer: &Tokenizer) -> Result<Coverage> {
    let mut ids = vec![0; tokens.len().min(MEASURED_TOKENS)];
    tokens.copy(0, &mut ids);
    let text = tokenizer.decode(&ids)?;
    let scale = tokens.len() as f64 / ids.len().max(1) as f64;
    let measured = tokenizer.coverage(&text, &ids)?;
    Ok(Coverage { decodable_bytes: (measured.decodable_bytes as f64 * scale).round() as usize, ..measured })
}
