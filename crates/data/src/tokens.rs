//! Token ids in memory or in a memory-mapped file, whose pages the system loads and evicts as needed.
//!
//! A token file consists of little-endian ids, of 2 bytes if the vocabulary allows it, else of 4: the format of
//! nanoGPT's `train.bin`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::documents::{Document, Documents, Label, Packing};
use super::loader::IGNORE_INDEX;
use super::rows;
use rustyflow_base::error::{Error, Result};

/// Token ids, possibly larger than memory. A clone shares them.
#[derive(Clone)]
pub struct Tokens {
    storage: Arc<Storage>,
    /// Those of them that are meant.
    range: Range<usize>,
    /// Document boundaries and masks, if known.
    documents: Option<Arc<Documents>>,
    packing: Packing,
}

/// Documents by their labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels {
    pub texts: usize,
    /// Of a chosen and a rejected answer.
    pub pairs: usize,
    pub desirable: usize,
    pub undesirable: usize,
}

enum Storage {
    Memory(Vec<u32>),
    Mapped {
        /// `None` of an empty file, which cannot be mapped.
        map: Option<Mmap>,
        id: TokenType,
        /// Removed when the map is gone.
        _folder: Option<Arc<TempDir>>,
    },
}

/// Type of the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    U16,
    U32,
}

impl TokenType {
    /// The smallest for a vocabulary.
    pub(super) fn for_vocabulary(tokens: usize) -> TokenType {
        if tokens <= 1 << 16 { TokenType::U16 } else { TokenType::U32 }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            TokenType::U16 => 2,
            TokenType::U32 => 4,
        }
    }
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Tokens {
        let range = 0..ids.len();
        Tokens::of(Storage::Memory(ids), range)
    }
}

impl Tokens {
    fn of(storage: Storage, range: Range<usize>) -> Tokens {
        Tokens { storage: Arc::new(storage), range, documents: None, packing: Packing::Stream }
    }

    /// Adds document boundaries and their packing.
    ///
    /// # Errors
    /// If they have another number of tokens.
    pub(super) fn in_documents(self, documents: Documents, packing: Packing) -> Result<Tokens> {
        let (own, its) = (self.len(), documents.tokens());
        if own as u64 != its {
            return Err(Error::Invalid(format!("documents of {its} tokens cannot be those of {own}")));
        }
        Ok(Tokens { documents: Some(Arc::new(documents)), packing, ..self })
    }

    /// Whether training rows hold whole documents without attention between them.
    pub fn is_in_documents(&self) -> bool {
        self.packing != Packing::Stream
    }

    /// Length of each document, tokens; of a pair of answers the places that both take in a row, and one more. An
    /// answer with a label of its own counts as if it were the other one too.
    pub fn document_lengths(&self) -> impl Iterator<Item = usize> {
        let mut chosen = 0;
        self.documents().filter_map(move |document| {
            let length = (document.end - document.start) as usize;
            match document.label {
                Label::Chosen => {
                    chosen = length.saturating_sub(1);
                    None
                }
                Label::Desirable | Label::Undesirable => Some((2 * length).saturating_sub(1)),
                _ => Some(length + std::mem::take(&mut chosen)),
            }
        })
    }

    /// Number of documents that are truncated, and dropped, in rows of `block_size` tokens: see `rows.rs`.
    pub fn truncations(&self, block_size: usize) -> (usize, usize) {
        if self.is_in_documents() { rows::left_out(self, block_size) } else { (0, 0) }
    }

    /// How its documents become rows.
    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    /// Its documents, in order: all of it, if none are known.
    pub(super) fn documents(&self) -> impl Iterator<Item = Document> {
        let all = self.as_one();
        let known = self.documents.as_deref();
        known.map(Documents::iter).into_iter().flatten().chain(known.is_none().then_some(all))
    }

    /// All of it as one document.
    fn as_one(&self) -> Document {
        Document { start: 0, end: self.len() as u64, has_prompt: false, label: Label::None }
    }

    /// How many documents of each label there are.
    pub fn labels(&self) -> Labels {
        let mut labels = Labels::default();
        for document in self.documents() {
            match document.label {
                Label::None => labels.texts += 1,
                Label::Chosen => labels.pairs += 1,
                Label::Rejected | Label::Mismatched => {}
                Label::Desirable => labels.desirable += 1,
                Label::Undesirable => labels.undesirable += 1,
            }
        }
        labels
    }

    /// Number of predicted tokens.
    pub fn targets(&self) -> usize {
        let of_document = |document: Document| {
            // The first has none before it to be predicted from.
            let count = (document.end - document.start).saturating_sub(1) as usize;
            let mut predicted = count;
            if let Some(documents) = &self.documents {
                documents.each_unpredicted(document.start + 1, count, |range| predicted -= range.len());
            }
            predicted
        };
        match self.packing {
            Packing::Stream => of_document(self.as_one()),
            _ => self.documents().map(of_document).sum(),
        }
    }

    /// How many tokens at the beginning of a document are not predicted.
    pub(super) fn prompt_of(&self, document: &Document) -> usize {
        let (mut length, count) = (0, (document.end - document.start) as usize);
        if let Some(documents) = &self.documents {
            documents.each_unpredicted(document.start, count, |range| {
                length += if range.start == length { range.len() } else { 0 };
            });
        }
        length
    }

    /// The prompt of the first document with a prompt of fewer than `room` tokens, such as a question.
    pub fn first_prompt(&self, room: usize) -> Option<Vec<u32>> {
        let documents = self.documents.as_ref()?;
        let prompt = |document: Document| {
            let (length, count) = (self.prompt_of(&document), (document.end - document.start) as usize);
            (1..room.min(count)).contains(&length).then_some((document.start as usize, length))
        };
        let (start, length) = documents.iter().filter(|document| document.has_prompt).find_map(prompt)?;
        let mut ids = vec![0; length];
        self.copy(start, &mut ids);
        Some(ids)
    }

    /// Maps a token file. `folder`, if given, is removed when the last clone is dropped.
    ///
    /// # Errors
    /// If it cannot be read, or its length is no multiple of an id's.
    pub(super) fn map(path: &Path, id: TokenType, folder: Option<Arc<TempDir>>) -> Result<Tokens> {
        let failed = |error| Error::io("read", path, error);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if !length.is_multiple_of(id.bytes() as u64) {
            let message = format!("is not a token file: its {length} bytes are not a multiple of {}", id.bytes());
            return Err(Error::Corpus { path: path.to_path_buf(), message });
        }
        // SAFETY: nobody writes to a token file: it is written elsewhere, and gets its name when it is complete.
        let map = if length == 0 { None } else { Some(unsafe { Mmap::map(&file) }.map_err(failed)?) };
        let range = 0..length as usize / id.bytes();
        Ok(Tokens::of(Storage::Mapped { map, id, _folder: folder }, range))
    }

    /// The same from number `range.start` up to `range.end`, as one document.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn slice(&self, range: Range<usize>) -> Tokens {
        assert!(range.end <= self.len(), "{range:?} of {} tokens", self.len());
        let range = self.range.start + range.start..self.range.start + range.end;
        Tokens { storage: self.storage.clone(), range, documents: None, packing: Packing::Stream }
    }

    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the ids from index `start` on into `ids`.
    ///
    /// # Panics
    /// If there are fewer.
    #[doc(hidden)]
    pub fn copy(&self, start: usize, ids: &mut [u32]) {
        assert!(start + ids.len() <= self.len(), "{} ids from {start} on, of {}", ids.len(), self.len());
        let start = self.range.start + start;
        let range = start..start + ids.len();
        match &*self.storage {
            Storage::Memory(all) => ids.copy_from_slice(&all[range]),
            Storage::Mapped { map: None, .. } => {}
            Storage::Mapped { map: Some(map), id: TokenType::U16, .. } => {
                let all: &[u16] = bytemuck::cast_slice(map);
                ids.iter_mut().zip(&all[range]).for_each(|(id, from)| *id = u32::from(u16::from_le(*from)));
            }
            Storage::Mapped { map: Some(map), id: TokenType::U32, .. } => {
                let all: &[u32] = bytemuck::cast_slice(map);
                ids.iter_mut().zip(&all[range]).for_each(|(id, from)| *id = u32::from_le(*from));
            }
        }
    }

    /// Copies the ids from number `start` on into `targets`, with [`IGNORE_INDEX`] for those that are not predicted.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn copy_targets(&self, start: usize, targets: &mut [u32]) {
        self.copy(start, targets);
        if let Some(documents) = &self.documents {
            documents.each_unpredicted(start as u64, targets.len(), |range| targets[range].fill(IGNORE_INDEX));
        }
    }

    /// Passes all ids in order to `take`, in parts.
    pub fn each_part(&self, mut take: impl FnMut(&[u32])) {
        let mut part = vec![0; 1 << 16];
        for start in (0..self.len()).step_by(part.len()) {
            let count = part.len().min(self.len() - start);
            self.copy(start, &mut part[..count]);
            take(&part[..count]);
        }
    }
}

/// Writes a token file.
pub(super) struct TokenWriter {
    path: PathBuf,
    file: BufWriter<File>,
    id: TokenType,
    hash: Sha256,
    pub tokens: u64,
}

impl TokenWriter {
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn create(path: &Path, id: TokenType) -> Result<TokenWriter> {
        let file = File::create(path).map_err(|error| Error::io("create", path, error))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(TokenWriter { path: path.to_path_buf(), file, id, hash: Sha256::new(), tokens: 0 })
    }

    /// # Errors
    /// If the disk is full, say.
    pub(super) fn write(&mut self, ids: &[u32]) -> Result<()> {
        let bytes: Vec<u8> = match self.id {
            TokenType::U16 => ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect(),
            TokenType::U32 => ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        };
        self.hash.update(&bytes);
        self.tokens += ids.len() as u64;
        self.file.write_all(&bytes).map_err(|error| Error::io("write", &self.path, error))
    }

    /// The SHA-256 of the file, which is complete.
    ///
    /// # Errors
    /// If the disk is full, say.
    pub(super) fn finish(mut self) -> Result<[u8; 32]> {
        self.file.flush().map_err(|error| Error::io("write", &self.path, error))?;
        Ok(self.hash.finalize().into())
    }
}
