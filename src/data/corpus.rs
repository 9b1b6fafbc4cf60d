//! Texts to train on, and how they are split into training, validation and test.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The text that ships inside the binary, so that a first run needs no download. `data/README.md` says how it is made.
const SAMPLE: &str = include_str!("../../data/sample.txt");

/// File names of corpora that come split: training, validation, test. The second row is WikiText's own distribution.
const SPLIT_FILES: [[&str; 3]; 3] = [
    ["train.txt", "valid.txt", "test.txt"],
    ["wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"],
    ["wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"],
];

/// A text and its splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// What runs are named after: the data set, or the file's or folder's name without its extension.
    pub name: String,
    pub train: String,
    /// Empty only if it was asked for with a fraction of 0.
    pub validation: String,
    pub test: Option<String>,
}

impl Corpus {
    /// Loads the corpus that `spec` names:
    ///
    /// - `sample`: the little stories inside the binary;
    /// - `wikitext-2`, `tinyshakespeare`: what `rustyflow data fetch` has put into `data_dir`;
    /// - a file: one text;
    /// - a folder with `train.txt` and perhaps `valid.txt` and `test.txt` (or `wiki.train.tokens` and so on);
    /// - any other folder: all its `*.txt` files, sorted by path, joined into one text;
    /// - `train=PATH,validation=PATH,test=PATH`, the last two optional: see [`Corpus::from_splits`].
    ///
    /// Where a corpus has no validation text of its own, the last `validation_fraction` (at least 0, below 1) of the
    /// training text is taken, cut at a line boundary if one is near.
    ///
    /// Errors: the text is missing (the message says how to get it), empty, or not UTF-8.
    pub fn load(spec: &str, data_dir: &Path, validation_fraction: f64) -> Result<Corpus> {
        check_fraction(validation_fraction)?;
        match spec {
            "sample" => split_text("sample", PathBuf::from("sample"), SAMPLE.to_string(), validation_fraction),
            "wikitext-2" => {
                let folder = data_dir.join("wikitext-2");
                if !folder.is_dir() {
                    return Err(missing(&folder, "is not there: `rustyflow data fetch wikitext-2` gets it"));
                }
                load_folder("wikitext-2", &folder, validation_fraction)
            }
            "tinyshakespeare" => {
                let file = data_dir.join("tinyshakespeare").join("input.txt");
                if !file.is_file() {
                    return Err(missing(&file, "is not there: `rustyflow data fetch tinyshakespeare` gets it"));
                }
                split_text("tinyshakespeare", file.clone(), read_text(&file)?, validation_fraction)
            }
            _ if spec.starts_with("train=") => load_named_splits(spec, validation_fraction),
            _ => {
                let path = Path::new(spec);
                let name = name_of(path);
                if path.is_dir() {
                    load_folder(&name, path, validation_fraction)
                } else if path.is_file() {
                    split_text(&name, path.to_path_buf(), read_text(path)?, validation_fraction)
                } else {
                    Err(missing(
                        path,
                        "no such corpus: expected `sample`, `wikitext-2`, `tinyshakespeare`, a text file, a folder, \
                         or `train=PATH,validation=PATH` (data.corpus)",
                    ))
                }
            }
        }
    }

    /// A corpus of splits in files of any name. Without a validation file, the last `fraction` of the training text is
    /// validation.
    pub fn from_splits(
        name: &str,
        train: &Path,
        validation: Option<&Path>,
        test: Option<&Path>,
        fraction: f64,
    ) -> Result<Corpus> {
        check_fraction(fraction)?;
        let train_text = read_text(train)?;
        let mut corpus = match validation {
            Some(validation) => {
                Corpus { name: name.to_string(), train: train_text, validation: read_text(validation)?, test: None }
            }
            None => split_text(name, train.to_path_buf(), train_text, fraction)?,
        };
        corpus.test = test.map(read_text).transpose()?;
        Ok(corpus)
    }
}

fn check_fraction(fraction: f64) -> Result<()> {
    if !(0.0..1.0).contains(&fraction) {
        return Err(Error::Invalid(format!("validation_fraction must be at least 0 and below 1, got {fraction}")));
    }
    Ok(())
}

fn missing(path: &Path, message: &str) -> Error {
    Error::Corpus { path: path.to_path_buf(), message: message.to_string() }
}

fn name_of(path: &Path) -> String {
    // `.` and `..` have no name of their own, but the folder that they stand for has.
    let named = if path.file_name().is_some() { path.to_path_buf() } else { path.canonicalize().unwrap_or_default() };
    let name = if named.is_dir() { named.file_name() } else { named.file_stem() };
    name.map_or_else(|| "corpus".to_string(), |name| name.to_string_lossy().into_owned())
}

fn load_folder(name: &str, folder: &Path, fraction: f64) -> Result<Corpus> {
    for files in SPLIT_FILES {
        let [train, validation, test] = files.map(|file| folder.join(file));
        let existing = |path: PathBuf| path.is_file().then_some(path);
        let (validation, test) = (existing(validation), existing(test));
        if train.is_file() {
            return Corpus::from_splits(name, &train, validation.as_deref(), test.as_deref(), fraction);
        }
        if let Some(present) = validation.or(test) {
            let [train, ..] = files;
            let present = present.display();
            return Err(missing(
                folder,
                &format!(
                    "{train} is missing: `rustyflow data fetch wikitext-2` gets that of wikitext-2; \
                     or name the splits yourself, as in `train={present},validation=PATH`"
                ),
            ));
        }
    }
    let mut files = vec![];
    find_text_files(folder, &mut files)?;
    files.sort();
    if files.is_empty() {
        return Err(missing(folder, "holds no text: expected train.txt or other files ending in .txt"));
    }
    let mut text = String::new();
    for file in &files {
        text.push_str(&read(file)?);
        // The last line of one file and the first of the next are two lines.
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if text.is_empty() {
        return Err(missing(folder, "all its .txt files are empty"));
    }
    split_text(name, folder.to_path_buf(), text, fraction)
}

/// Collects the `*.txt` files in `folder` and below. Linked folders are not entered: they may lead round in circles.
fn find_text_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(|error| Error::io("read", folder, error))? {
        let entry = entry.map_err(|error| Error::io("read", folder, error))?;
        let path = entry.path();
        if entry.file_type().map_err(|error| Error::io("read", &path, error))?.is_dir() {
            find_text_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt")) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Loads `train=PATH[,validation=PATH][,test=PATH]`.
fn load_named_splits(spec: &str, fraction: f64) -> Result<Corpus> {
    let bad = |message: String| Error::Corpus { path: PathBuf::from(spec), message };
    let [mut train, mut validation, mut test] = [None, None, None];
    for part in spec.split(',') {
        let (key, path) = part
            .split_once('=')
            .ok_or_else(|| bad(format!("expected `train=PATH,validation=PATH,test=PATH`, got the part {part:?}")))?;
        let slot = match key.trim() {
            "train" => &mut train,
            "validation" | "valid" => &mut validation,
            "test" => &mut test,
            other => return Err(bad(format!("no split is called {other:?}: expected train, validation or test"))),
        };
        if slot.replace(Path::new(path.trim())).is_some() {
            return Err(bad(format!("{key} is given twice")));
        }
    }
    let train = train.ok_or_else(|| bad("train is missing".to_string()))?;
    // Split files are mostly called after their split, so the folder's name says more.
    let named = train.parent().filter(|folder| folder.file_name().is_some()).unwrap_or(train);
    Corpus::from_splits(&name_of(named), train, validation, test, fraction)
}

/// Reads a file that must not be empty.
fn read_text(path: &Path) -> Result<String> {
    let text = read(path)?;
    if text.is_empty() {
        return Err(missing(path, "the file is empty"));
    }
    Ok(text)
}

fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let mut text = String::from_utf8(bytes).map_err(|error| Error::Corpus {
        path: path.to_path_buf(),
        message: format!(
            "not UTF-8 at byte {}: convert it first, for example with `iconv -t UTF-8`",
            error.utf8_error().valid_up_to()
        ),
    })?;
    // A byte order mark is no part of the text.
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

/// Splits one text into training and validation. `path` is for messages.
fn split_text(name: &str, path: PathBuf, mut text: String, fraction: f64) -> Result<Corpus> {
    let validation = text.split_off(split_point(&text, fraction));
    if text.is_empty() {
        return Err(missing(&path, "the text is too short to be split into training and validation"));
    }
    Ok(Corpus { name: name.to_string(), train: text, validation, test: None })
}

/// Where validation begins: the last line boundary before the exact point, unless it is so far away that validation
/// would grow by more than a quarter; then the character boundary at the point.
fn split_point(text: &str, fraction: f64) -> usize {
    let mut exact = text.len() - (text.len() as f64 * fraction).round() as usize;
    while !text.is_char_boundary(exact) {
        exact -= 1;
    }
    match text[..exact].rfind('\n') {
        Some(newline) if (exact - newline - 1) * 4 <= text.len() - exact => newline + 1,
        _ => exact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::{TempDir, tempdir};

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let dir = tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn load(path: &Path, fraction: f64) -> Result<Corpus> {
        Corpus::load(path.to_str().unwrap(), Path::new("data"), fraction)
    }

    fn message(result: Result<Corpus>) -> String {
        result.unwrap_err().to_string()
    }

    /// `count` lines of 10 bytes each.
    fn lines(count: usize) -> String {
        (0..count).map(|i| format!("line {i:04}\n")).collect()
    }

    #[test]
    fn the_sample_needs_no_files() {
        let corpus = Corpus::load("sample", Path::new("/nowhere"), 0.1).unwrap();
        assert_eq!(corpus.name, "sample");
        assert!(corpus.train.len() > 500_000);
        let whole = corpus.train.len() + corpus.validation.len();
        assert!((corpus.validation.len() as f64 / whole as f64 - 0.1).abs() < 0.01);
    }

    #[test]
    fn the_sample_is_what_the_generator_makes() {
        use crate::data::story_generator::{SEED, SIZE_BYTES, write_stories};
        // Not `assert_eq`, which would print two megabytes.
        assert!(
            write_stories(SEED, SIZE_BYTES) == SAMPLE,
            "run `cargo run --example story_generator > data/sample.txt`"
        );
    }

    #[test]
    fn a_file_is_split_at_a_line_boundary() {
        let dir = folder(&[("tale.txt", &lines(100))]);
        let corpus = load(&dir.path().join("tale.txt"), 0.096).unwrap();
        assert_eq!(corpus.name, "tale");
        assert_eq!(corpus.train, lines(90));
        assert_eq!(corpus.train + &corpus.validation, lines(100));
    }

    #[test]
    fn a_text_of_one_long_line_is_split_at_a_character_boundary() {
        let text = "é".repeat(101);
        let dir = folder(&[("tale.txt", &text)]);
        let corpus = load(&dir.path().join("tale.txt"), 0.1).unwrap();
        assert_eq!(corpus.validation.chars().count(), 10);
        assert_eq!(corpus.train + &corpus.validation, text);
    }

    #[test]
    fn a_far_line_boundary_does_not_swell_validation() {
        let text = "a\n".to_string() + &"b".repeat(998);
        let dir = folder(&[("tale.txt", &text)]);
        assert_eq!(load(&dir.path().join("tale.txt"), 0.1).unwrap().validation.len(), 100);
    }

    #[test]
    fn a_fraction_of_zero_leaves_validation_empty() {
        let dir = folder(&[("tale.txt", "abc")]);
        let corpus = load(&dir.path().join("tale.txt"), 0.0).unwrap();
        assert_eq!((corpus.train.as_str(), corpus.validation.as_str()), ("abc", ""));
    }

    #[test]
    fn a_senseless_fraction_is_refused() {
        for fraction in [-0.1, 1.0, f64::NAN] {
            assert!(message(Corpus::load("sample", Path::new("data"), fraction)).contains("validation_fraction"));
        }
    }

    #[test]
    fn a_folder_with_train_txt_keeps_its_splits() {
        let dir = folder(&[("train.txt", "a"), ("valid.txt", "b"), ("test.txt", "c"), ("other.txt", "d")]);
        let corpus = load(dir.path(), 0.5).unwrap();
        assert_eq!((corpus.train.as_str(), corpus.validation.as_str(), corpus.test.as_deref()), ("a", "b", Some("c")));
    }

    #[test]
    fn wikitexts_own_file_names_are_known() {
        let dir = folder(&[("wiki.train.tokens", "a"), ("wiki.valid.tokens", "b"), ("wiki.test.tokens", "c")]);
        let corpus = load(dir.path(), 0.5).unwrap();
        assert_eq!((corpus.train.as_str(), corpus.validation.as_str(), corpus.test.as_deref()), ("a", "b", Some("c")));
    }

    #[test]
    fn without_a_validation_file_the_training_text_is_split() {
        let dir = folder(&[("train.txt", &lines(10))]);
        let corpus = load(dir.path(), 0.2).unwrap();
        assert_eq!((corpus.train, corpus.test), (lines(8), None));
    }

    #[test]
    fn a_folder_without_its_training_text_says_how_to_get_it() {
        let dir = folder(&[("wikitext-2/valid.txt", "b"), ("wikitext-2/test.txt", "c")]);
        let error = message(Corpus::load("wikitext-2", dir.path(), 0.1));
        assert!(error.contains("train.txt is missing"), "{error}");
        assert!(error.contains("`rustyflow data fetch wikitext-2`"), "{error}");
    }

    #[test]
    fn a_folder_of_texts_is_joined_in_order_of_path() {
        let dir = folder(&[("b.txt", "second"), ("a.txt", "first\n"), ("c/x.txt", "third\n"), ("notes.md", "no")]);
        let corpus = load(dir.path(), 0.0).unwrap();
        assert_eq!(corpus.train, "first\nsecond\nthird\n");
        assert_eq!(corpus.name, dir.path().file_name().unwrap().to_str().unwrap());
    }

    #[test]
    fn a_folder_without_text_is_refused() {
        let dir = folder(&[("notes.md", "no")]);
        assert!(message(load(dir.path(), 0.1)).contains("holds no text"));
    }

    #[test]
    fn splits_can_be_named_one_by_one() {
        let dir = folder(&[("w/test.txt", "train on this"), ("w/valid.txt", "judge by this"), ("x", "and this")]);
        let at = |name: &str| dir.path().join(name).display().to_string();
        let spec = format!("train={},validation={},test={}", at("w/test.txt"), at("w/valid.txt"), at("x"));
        let corpus = Corpus::load(&spec, Path::new("data"), 0.1).unwrap();
        let expected = Corpus {
            name: "w".to_string(),
            train: "train on this".to_string(),
            validation: "judge by this".to_string(),
            test: Some("and this".to_string()),
        };
        assert_eq!(corpus, expected);
    }

    #[test]
    fn an_unknown_split_is_refused() {
        assert!(message(Corpus::load("train=a,dev=b", Path::new("data"), 0.1)).contains("\"dev\""));
        assert!(message(Corpus::load("train=a,train=b", Path::new("data"), 0.1)).contains("twice"));
    }

    #[test]
    fn a_corpus_that_was_not_fetched_names_the_command() {
        let dir = folder(&[]);
        for name in ["wikitext-2", "tinyshakespeare"] {
            let error = message(Corpus::load(name, dir.path(), 0.1));
            assert!(error.contains(&format!("`rustyflow data fetch {name}`")), "{error}");
        }
    }

    #[test]
    fn an_unknown_corpus_lists_what_there_is() {
        let error = message(Corpus::load("no-such-thing", Path::new("data"), 0.1));
        assert!(error.contains("no-such-thing") && error.contains("`sample`"), "{error}");
    }

    #[test]
    fn an_empty_file_is_refused() {
        let dir = folder(&[("tale.txt", "")]);
        assert!(message(load(&dir.path().join("tale.txt"), 0.1)).contains("empty"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_reported_with_their_offset() {
        let dir = folder(&[]);
        let path = dir.path().join("tale.txt");
        std::fs::write(&path, b"caf\xe9 au lait").unwrap();
        let error = message(load(&path, 0.1));
        assert!(error.contains("tale.txt") && error.contains("byte 3"), "{error}");
    }

    #[test]
    fn a_byte_order_mark_is_dropped() {
        let dir = folder(&[("tale.txt", "\u{feff}abc")]);
        assert_eq!(load(&dir.path().join("tale.txt"), 0.0).unwrap().train, "abc");
    }
}
