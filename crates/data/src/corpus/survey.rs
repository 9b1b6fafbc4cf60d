//! Reads a corpus once for its size, its hash, and its validation split.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::documents::Label;
use super::super::source::{Piece, Source};
use super::super::token_files::TokenFiles;
use super::held_out::{HeldOut, MOST_WEIGHED};
use super::{Corpus, CorpusSpec, Split, Summary, bad};
use crate::cache;
use crate::json_rows::Mapped;
use rustyflow_base::cache::hex;
use rustyflow_base::error::Result;

/// Version of the surveys. Increment it when the same files have another one.
const FORMAT: u32 = 1;

/// Size, hash and split of a corpus.
#[derive(Serialize, Deserialize)]
struct Survey {
    sha256: String,
    bytes: u64,
    documents: u64,
    /// Documents of the training text that are held out, where documents are.
    held_out_documents: Option<u64>,
    held_out: HeldOut,
    mapped: Mapped,
    /// Numbers of the files of a folder that are no text.
    undecodable: Vec<usize>,
}

/// Completes a corpus of which only the sources are known. `on_read` receives the number of bytes read.
pub(super) fn survey(mut corpus: Corpus, spec: &CorpusSpec, on_read: &mut dyn FnMut(u64)) -> Result<Corpus> {
    let of_split = |(number, sources): (usize, &Vec<Source>)| {
        let of_source = |source: &Source| source.path().map(|path| (number, path.to_path_buf()));
        sources.iter().map(of_source).collect::<Option<Vec<_>>>()
    };
    let files: Option<Vec<_>> = corpus.sources.iter().enumerate().map(of_split).collect();
    let template = corpus.sources.iter().flatten().find_map(Source::template);
    let memo = files.and_then(|files| memo(spec, template, &files.concat()));
    let known: Option<Survey> = memo.as_deref().and_then(cache::load);
    let survey = match known {
        Some(survey) => survey,
        None => {
            let survey = read(&corpus, spec, on_read)?;
            memo.as_deref().inspect(|path| cache::store(path, &survey));
            survey
        }
    };
    corpus.sha256 = survey.sha256;
    corpus.held_out = survey.held_out;
    corpus.summary.bytes = survey.bytes;
    corpus.summary.documents = survey.documents;
    corpus.summary.held_out = survey.held_out_documents;
    corpus.summary.mapped = survey.mapped;
    corpus.leave_out(&survey.undecodable);
    Ok(corpus)
}

/// A corpus of token files.
pub(super) fn survey_tokens(name: &str, files: TokenFiles, spec: &CorpusSpec) -> Result<Corpus> {
    let known_by: Vec<_> = files.known_by().into_iter().map(|path| (0, path)).collect();
    let files = files.survey(memo(spec, None, &known_by).as_deref())?;
    let paths = files.paths();
    let bytes = paths.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
    Ok(Corpus {
        name: name.to_string(),
        sha256: files.sha256().to_string(),
        summary: Summary { files: paths.len(), bytes, ..Summary::default() },
        sources: Default::default(),
        held_out: HeldOut::Nothing,
        stamps: vec![],
        is_folder: false,
        tokens: Some(files),
    })
}

/// Path of the cached survey of these files, a hash of their names, sizes, times, splits and the chat template. `None`
/// without a cache folder, or if a file has no modification time.
fn memo(spec: &CorpusSpec, template: Option<&str>, files: &[(usize, PathBuf)]) -> Option<PathBuf> {
    let mut hash = Sha256::new();
    let version = env!("CARGO_PKG_VERSION");
    hash.update(format!("{FORMAT} {version} {:?} {template:?}\n", spec.validation_fraction));
    for (number, path) in files {
        let metadata = path.metadata().ok()?;
        let time = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        // The name tells the format, which that of what a link leads to need not be.
        let (name, path) = (path.file_name()?.to_string_lossy(), path.canonicalize().ok()?);
        hash.update(format!("{number} {name} {} {} {}\n", path.display(), metadata.len(), time.as_nanos()));
    }
    Some(spec.cache?.join("texts").join(format!("{}.json", hex(&hash.finalize()))))
}

/// What has been read so far.
#[derive(Default)]
struct Tally {
    hash: Sha256,
    bytes: u64,
    documents: u64,
    /// Bytes of the document that is being read.
    size: u64,
    /// Bytes of the first documents of the training text.
    sizes: Vec<u64>,
    has_labels: bool,
}

impl Tally {
    fn take(&mut self, piece: &Piece, is_training: bool) {
        let Some(label) = piece.end() else {
            let text = piece.text().unwrap_or_default();
            // The same text asked or answered is another corpus.
            if let Piece::Prompt(_) | Piece::Turn(_, false) = piece {
                self.hash.update([0xfd]);
            }
            self.hash.update(text);
            self.size += text.len() as u64;
            self.bytes += text.len() as u64;
            return;
        };
        // No text holds these bytes, so they tell where documents end.
        self.hash.update([if let Piece::End(_) = piece { 0xff } else { 0xfc }]);
        if label != Label::None {
            self.hash.update([0xf4 + label as u8]);
            self.has_labels = true;
        }
        // A pair is one.
        if label == Label::Chosen {
            return;
        }
        self.documents += 1;
        if is_training && self.sizes.len() <= MOST_WEIGHED {
            self.sizes.push(self.size);
        }
        self.size = 0;
    }

    /// Reads one source, or leaves everything as it was: `None` if it is a file of a folder that is no text.
    fn read(
        &mut self,
        source: &Source,
        corpus: &Corpus,
        is_training: bool,
        on_read: &mut dyn FnMut(u64),
    ) -> Result<Option<Mapped>> {
        let (hash, bytes, documents, weighed) = (self.hash.clone(), self.bytes, self.documents, self.sizes.len());
        self.size = 0;
        let read = source.read(&mut |piece| {
            self.take(&piece, is_training);
            on_read(self.bytes);
            Ok(())
        });
        match read {
            Ok(mapped) => Ok(Some(mapped)),
            Err(_) if corpus.is_folder && source.is_undecodable() => {
                (self.hash, self.bytes, self.documents) = (hash, bytes, documents);
                self.sizes.truncate(weighed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn read(corpus: &Corpus, spec: &CorpusSpec, on_read: &mut dyn FnMut(u64)) -> Result<Survey> {
    let (mut tally, mut mapped, mut undecodable) = (Tally::default(), Mapped::default(), vec![]);
    let mut training = (0, 0);
    for (number, sources) in corpus.sources.iter().enumerate() {
        for (place, source) in sources.iter().enumerate() {
            let before = tally.bytes;
            match tally.read(source, corpus, number == 0, on_read)? {
                Some(its) => mapped += its,
                None => {
                    undecodable.push(place);
                    continue;
                }
            }
            if let (true, Source::File { path, .. }) = (tally.bytes == before && sources.len() == 1, source) {
                return Err(bad(path, "the file is empty"));
            }
        }
        tally.hash.update([0xfe]);
        if number == 0 {
            training = (tally.bytes, tally.documents);
        }
    }
    let Tally { mut hash, bytes, documents, sizes, has_labels, .. } = tally;
    let place = place_of(corpus, spec);
    if training.0 == 0 {
        let message = match undecodable.is_empty() {
            true => "all its files are empty",
            false => "none of its files is a text in UTF-8, or in UTF-16 with a byte order mark",
        };
        return Err(bad(&place, message));
    }
    let mut whole = corpus.clone();
    whole.leave_out(&undecodable);
    let held_out = held_out(&whole, spec, training, (&sizes, has_labels))?;
    if held_out == HeldOut::From(0) {
        return Err(bad(&place, "the text is too short to be split into training and validation"));
    }
    hash.update(serde_json::to_vec(&held_out).expect("plain values serialize"));
    let held_out_documents = held_out.count(training.1);
    Ok(Survey { sha256: hex(&hash.finalize()), bytes, documents, held_out_documents, held_out, mapped, undecodable })
}

/// The validation split of a training text with these bytes and documents; `sizes` are those of its documents.
fn held_out(
    whole: &Corpus,
    spec: &CorpusSpec,
    (bytes, documents): (u64, u64),
    (sizes, has_labels): (&[u64], bool),
) -> Result<HeldOut> {
    let has_own = !whole.sources[1].is_empty();
    Ok(match spec.validation_fraction {
        fraction if has_own || fraction == 0.0 => HeldOut::Nothing,
        // An answer is not cut.
        fraction if documents == 1 && !has_labels => {
            HeldOut::From(line_before(whole, bytes, exact_point(bytes, fraction))?)
        }
        fraction => HeldOut::choose(sizes, fraction),
    })
}

/// The path that errors about the whole text name.
fn place_of(corpus: &Corpus, spec: &CorpusSpec) -> PathBuf {
    match corpus.sources[0].as_slice() {
        [Source::File { path, .. }] => path.clone(),
        _ => Path::new(spec.corpus).to_path_buf(),
    }
}

fn exact_point(bytes: u64, fraction: f64) -> u64 {
    bytes - (bytes as f64 * fraction).round() as u64
}

/// Where validation begins: the last line boundary before the exact point, unless it is so far away that validation
/// would grow by more than a quarter; then the character boundary at the point.
fn line_before(corpus: &Corpus, bytes: u64, exact: u64) -> Result<u64> {
    let (mut offset, mut line, mut character) = (0, None, 0);
    corpus.read(Split::Train, &mut |piece| {
        if let Some(text) = piece.text()
            && offset < exact
        {
            let within = ((exact - offset) as usize).min(text.len());
            let within = text.floor_char_boundary(within);
            character = offset + within as u64;
            line = text[..within].rfind('\n').map(|newline| offset + newline as u64 + 1).or(line);
        }
        if let Some(text) = piece.text() {
            offset += text.len() as u64;
        }
        Ok(())
    })?;
    Ok(line.filter(|line| (character - line) * 4 <= bytes - character).unwrap_or(character))
}
