//! Training corpora, and their training, validation and test splits.

mod held_out;
mod survey;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::chat::{ChatSpec, ChatTemplate};
use super::folder::{Files, find_files, split_files};
use super::json_rows::Mapped;
use super::source::{Sink, Source, extension};
use super::token_files::TokenFiles;
use held_out::{HeldOut, Side};
use rustyflow_base::error::{Error, Result};
use rustyflow_base::units;

pub use super::source::Piece;

/// The text that ships inside the binary, so that a first run needs no download. `data/README.md` says how it is made.
const SAMPLE: &str = include_str!("../../../../data/sample.txt");

/// Which text is meant, and how it is split.
#[derive(Debug, Clone, Copy)]
pub struct CorpusSpec<'a> {
    /// See [`Corpus::open`].
    pub corpus: &'a str,
    /// Which files of a folder: patterns as in a `.gitignore`. Empty means texts: `.txt`, `.md`, `.jsonl` and so on.
    pub files: &'a [String],
    /// How much is held out for validation where the corpus does not say: at least 0, below 1.
    pub validation_fraction: f64,
    /// Where `rustyflow data fetch` puts data sets.
    pub data_dir: &'a Path,
    /// Where what was learnt of a text is kept for the next time.
    pub cache: Option<&'a Path>,
    /// How conversations are written.
    pub chat: ChatSpec<'a>,
}

/// A part of a corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Train,
    Validation,
    Test,
}

impl Split {
    pub const ALL: [Split; 3] = [Split::Train, Split::Validation, Split::Test];
}

/// A text and its splits. It is read when it is needed and never held whole.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Name for runs: the data set, or the file's or folder's name without its extension.
    pub name: String,
    /// Of the documents and of how they are split: changes with every byte of the text.
    pub sha256: String,
    /// Files read and skipped.
    pub summary: Summary,
    sources: [Vec<Source>; 3],
    held_out: HeldOut,
    /// Sizes and times of its files when it was opened.
    stamps: Vec<Stamp>,
    /// Whether it is a folder of texts, of which those that cannot be read are left out.
    is_folder: bool,
    /// Instead of text.
    pub(super) tokens: Option<TokenFiles>,
}

/// The contents of a corpus.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: usize,
    /// Of the text, after decompression.
    pub bytes: u64,
    pub documents: u64,
    /// Documents of them that are held out for validation, where documents are.
    pub held_out: Option<u64>,
    /// Files of the folder that were left out, by the ending of their name.
    pub skipped: BTreeMap<String, usize>,
    /// Why they were, if not for their endings.
    pub because: Option<&'static str>,
    /// Objects of JSON whose keys were mapped.
    pub mapped: Mapped,
    /// Files of a folder that were left out because they are no text.
    pub undecodable: Vec<PathBuf>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, "{} file{}, {}", self.files, plural(self.files as u64), units::bytes(self.bytes))?;
        if let Some(held_out) = self.held_out {
            write!(f, ", {} document{} ({held_out} for validation)", self.documents, plural(self.documents))?;
        }
        let skipped: usize = self.skipped.values().sum();
        if skipped > 0 {
            let kinds: Vec<String> = self.skipped.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            write!(f, "; skipped {skipped}: {}", kinds.join(", "))?;
            self.because.map_or(Ok(()), |because| write!(f, " ({because})"))?;
        }
        if !self.undecodable.is_empty() {
            let names: Vec<String> = self.undecodable.iter().map(|path| path.display().to_string()).collect();
            write!(f, "; skipped {} that are not UTF-8: {}", names.len(), names.join(", "))?;
        }
        Ok(())
    }
}

impl Corpus {
    /// Opens the corpus that `spec` names:
    ///
    /// - `sample`: the little stories inside the binary;
    /// - `wikitext-2`, `tinyshakespeare`: what `rustyflow data fetch` has put into `data_dir`;
    /// - a file: one text, or documents (`.jsonl` with a text, a prompt and its completion, or a conversation in every
    ///   object; `.parquet` with a column `text`), plain or with `.gz` or `.zst`;
    /// - a folder with files called `train...` and perhaps `valid...` and `test...`;
    /// - a folder with `train.bin` and perhaps `val.bin`, or a file that ends in `.bin`: tokens, as nanoGPT writes
    ///   them;
    /// - any other folder: its texts, each a document, in order of path;
    /// - `train=PATH,validation=PATH,test=PATH`, the last two optional.
    ///
    /// Where a corpus has no validation text of its own, `validation_fraction` of the training text is taken. Of a
    /// single text that is its end, cut at a line boundary if one is near; of several documents a random sample.
    ///
    /// It is read once to know its size, unless `cache` remembers it from files of the same size and time.
    ///
    /// # Errors
    /// The text is missing (the message says how to get it), empty, not UTF-8, or not what a file's name says.
    pub fn open(spec: &CorpusSpec, on_read: &mut dyn FnMut(u64)) -> Result<Corpus> {
        let fraction = spec.validation_fraction;
        if !(0.0..1.0).contains(&fraction) {
            return Err(Error::Invalid(format!("validation_fraction must be at least 0 and below 1, got {fraction}")));
        }
        if let Some(files) = TokenFiles::find(Path::new(spec.corpus), fraction) {
            return survey::survey_tokens(&name_of(Path::new(spec.corpus)), files, spec);
        }
        let Found { name, mut sources, files, is_folder } = find(spec)?;
        if let Some(template) = ChatTemplate::find(&spec.chat)?.map(Arc::new) {
            sources = sources.map(|all| all.into_iter().map(|source| source.with_chat(&template)).collect());
        }
        let summary = Summary {
            files: sources.iter().map(Vec::len).sum(),
            skipped: files.skipped,
            because: files.because,
            ..Summary::default()
        };
        let stamps = stamps(&sources);
        let (sha256, held_out) = (String::new(), HeldOut::Nothing);
        let corpus = Corpus { name, sha256, summary, sources, held_out, stamps, is_folder, tokens: None };
        survey::survey(corpus, spec, on_read)
    }

    /// A corpus of texts that are at hand.
    ///
    /// # Errors
    /// If `train` is empty.
    pub fn of_texts(name: &str, train: &str, validation: &str, test: Option<&str>) -> Result<Corpus> {
        let memory = |text: &str| vec![Source::Memory(Cow::Owned(text.to_string()))];
        let sources = [memory(train), memory(validation), test.map_or(vec![], memory)];
        let spec = CorpusSpec {
            corpus: name,
            files: &[],
            validation_fraction: 0.0,
            data_dir: Path::new(""),
            cache: None,
            chat: ChatSpec::default(),
        };
        let corpus = Corpus {
            name: name.to_string(),
            sha256: String::new(),
            summary: Summary::default(),
            sources,
            held_out: HeldOut::Nothing,
            stamps: vec![],
            is_folder: false,
            tokens: None,
        };
        survey::survey(corpus, &spec, &mut |_| {})
    }

    /// Whether it has several documents, which are kept apart. Splits that are one text each have not.
    pub fn has_documents(&self) -> bool {
        self.sources.iter().any(|sources| sources.len() > 1 || sources.iter().any(Source::has_documents))
    }

    /// Leaves out the training files with these numbers, which are no text.
    fn leave_out(&mut self, undecodable: &[usize]) {
        for place in undecodable.iter().rev().copied() {
            let source = self.sources[0].remove(place);
            self.summary.undecodable.insert(0, source.path().map(Path::to_path_buf).unwrap_or_default());
            self.summary.files -= 1;
        }
        if !undecodable.is_empty() {
            self.stamps = stamps(&self.sources);
        }
    }

    /// Whether a chat template writes its conversations.
    pub(super) fn has_template(&self) -> bool {
        self.sources.iter().flatten().any(|source| source.template().is_some())
    }

    /// Bytes of all its text.
    pub fn bytes(&self) -> u64 {
        self.summary.bytes
    }

    /// Whether there is such a split. Validation may be empty if it was asked for with a fraction of 0.
    pub fn has(&self, split: Split) -> bool {
        split != Split::Test || !self.sources[2].is_empty()
    }

    /// # Errors
    /// If a file is not what it was when the corpus was opened.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let changed = stamps(&self.sources).into_iter().zip(&self.stamps).find(|(now, then)| now != *then);
        changed.map_or(Ok(()), |(now, _)| Err(bad(&now.0, "has changed while it was read: begin again")))
    }

    /// Hands over the documents of a split, in order.
    ///
    /// # Errors
    /// If a file has changed since the corpus was opened so that it cannot be read, and those of `sink`.
    pub fn read(&self, split: Split, sink: &mut Sink) -> Result<()> {
        if let Some(path) = self.tokens.as_ref().and_then(|tokens| tokens.paths().first().copied()) {
            return Err(bad(path, "holds tokens and no text"));
        }
        let [train, validation, test] = &self.sources;
        match split {
            Split::Test => read_all(test, sink),
            Split::Validation if !validation.is_empty() => read_all(validation, sink),
            Split::Train => self.held_out.read(train, Side::Kept, sink),
            Split::Validation => self.held_out.read(train, Side::HeldOut, sink),
        }
    }
}

/// A file, with its size and time; `None` if it is not there, or the system does not tell.
type Stamp = (PathBuf, Option<(u64, SystemTime)>);

fn stamps(sources: &[Vec<Source>; 3]) -> Vec<Stamp> {
    let paths = sources.iter().flatten().filter_map(Source::path);
    let told = |path: &Path| path.metadata().ok().and_then(|data| Some((data.len(), data.modified().ok()?)));
    paths.map(|path| (path.to_path_buf(), told(path))).collect()
}

fn read_all(sources: &[Source], sink: &mut Sink) -> Result<()> {
    sources.iter().try_for_each(|source| source.read(sink).map(drop))
}

/// The corpus that a name refers to.
struct Found {
    name: String,
    sources: [Vec<Source>; 3],
    files: LeftOut,
    /// Whether these are all texts of a folder.
    is_folder: bool,
}

#[derive(Default)]
struct LeftOut {
    skipped: BTreeMap<String, usize>,
    because: Option<&'static str>,
}

fn find(spec: &CorpusSpec) -> Result<Found> {
    let alone = |name: &str, source: Source| Found {
        name: name.to_string(),
        sources: [vec![source], vec![], vec![]],
        files: LeftOut::default(),
        is_folder: false,
    };
    match spec.corpus {
        "sample" => Ok(alone("sample", Source::Memory(Cow::Borrowed(SAMPLE)))),
        "wikitext-2" => {
            let folder = spec.data_dir.join("wikitext-2");
            if !folder.is_dir() {
                return Err(bad(&folder, "is not there: `rustyflow data fetch wikitext-2` gets it"));
            }
            find_in_folder("wikitext-2", &folder, spec.files)
        }
        "tinyshakespeare" => {
            let file = spec.data_dir.join("tinyshakespeare").join("input.txt");
            if !file.is_file() {
                return Err(bad(&file, "is not there: `rustyflow data fetch tinyshakespeare` gets it"));
            }
            Ok(alone("tinyshakespeare", Source::file(&file)))
        }
        named if named.starts_with("train=") => find_named_splits(named),
        path => {
            let path = Path::new(path);
            let name = name_of(path);
            if path.is_dir() {
                find_in_folder(&name, path, spec.files)
            } else if path.is_file() {
                Ok(alone(&name, Source::file(path)))
            } else {
                Err(bad(
                    path,
                    "no such corpus: expected `sample`, `wikitext-2`, `tinyshakespeare`, a text file, a folder, or \
                     `train=PATH,validation=PATH` (data.corpus)",
                ))
            }
        }
    }
}

fn bad(path: &Path, message: &str) -> Error {
    Error::Corpus { path: path.to_path_buf(), message: message.to_string() }
}

fn name_of(path: &Path) -> String {
    // `.` and `..` have no name of their own, but the folder that they stand for has.
    let named = if path.file_name().is_some() { path.to_path_buf() } else { path.canonicalize().unwrap_or_default() };
    let name = if named.is_dir() { named.file_name() } else { named.file_stem() };
    let name = name.map_or_else(|| "corpus".to_string(), |name| name.to_string_lossy().into_owned());
    // Of `tales.jsonl.gz`, what is left ends in `.jsonl`.
    let inner = extension(&name);
    name.strip_suffix(&format!(".{inner}")).filter(|_| inner == "jsonl" || inner == "txt").unwrap_or(&name).to_string()
}

fn find_in_folder(name: &str, folder: &Path, patterns: &[String]) -> Result<Found> {
    let mut files = find_files(folder, patterns)?;
    let sources = if patterns.is_empty() { split_files(&files, folder) } else { Default::default() };
    let [train, validation, test] = &sources;
    if !train.is_empty() {
        let used: usize = sources.iter().map(Vec::len).sum();
        if files.taken.len() > used {
            *files.skipped.entry("other texts".to_string()).or_default() += files.taken.len() - used;
        }
        let because = Some("files called train make a folder one of splits; data.files chooses others");
        return Ok(Found {
            name: name.to_string(),
            sources,
            files: LeftOut { skipped: files.skipped, because },
            is_folder: false,
        });
    }
    if let (Some(Source::File { path, .. }), true) =
        (validation.first().or(test.first()), files.taken.len() == validation.len() + test.len())
    {
        return Err(bad(
            folder,
            &format!(
                "train.txt is missing: `rustyflow data fetch wikitext-2` gets that of wikitext-2; or name the splits \
                 yourself, as in `train={},validation=PATH`",
                path.display()
            ),
        ));
    }
    if files.taken.is_empty() {
        return Err(nothing_in(folder, &files));
    }
    let all = files.taken.iter().map(|path| Source::file(path)).collect();
    let left_out = LeftOut { skipped: files.skipped, because: None };
    Ok(Found { name: name.to_string(), sources: [all, vec![], vec![]], files: left_out, is_folder: true })
}

fn nothing_in(folder: &Path, files: &Files) -> Error {
    let mut message = "holds no text: expected files ending in .txt, .md, .jsonl or .parquet".to_string();
    if !files.skipped.is_empty() {
        let kinds: Vec<String> = files.skipped.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        message += &format!("; it has {}, and data.files says which to read", kinds.join(", "));
    }
    bad(folder, &message)
}

/// Finds `train=PATH[,validation=PATH][,test=PATH]`.
fn find_named_splits(spec: &str) -> Result<Found> {
    let bad = |message: String| Error::Corpus { path: PathBuf::from(spec), message };
    let mut paths: [Option<&Path>; 3] = [None; 3];
    for part in spec.split(',') {
        let (key, path) = part
            .split_once('=')
            .ok_or_else(|| bad(format!("expected `train=PATH,validation=PATH,test=PATH`, got the part {part:?}")))?;
        let slot = match key.trim() {
            "train" => &mut paths[0],
            "validation" | "valid" => &mut paths[1],
            "test" => &mut paths[2],
            other => return Err(bad(format!("no split is called {other:?}: expected train, validation or test"))),
        };
        if slot.replace(Path::new(path.trim())).is_some() {
            return Err(bad(format!("{key} is given twice")));
        }
    }
    let train = paths[0].ok_or_else(|| bad("train is missing".to_string()))?;
    // Split files are mostly called after their split, so the folder's name says more.
    let named = train.parent().filter(|folder| folder.file_name().is_some()).unwrap_or(train);
    let sources = paths.map(|path| path.map_or(vec![], |path| vec![Source::file(path)]));
    Ok(Found { name: name_of(named), sources, files: LeftOut::default(), is_folder: false })
}
