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

fn open(corpus: &str, files: &[&str], data_dir: &Path, validation_fraction: f64) -> Result<Corpus> {
    let files: Vec<String> = files.iter().map(|pattern| pattern.to_string()).collect();
    Corpus::open(
        &CorpusSpec { corpus, files: &files, validation_fraction, data_dir, cache: None, chat: ChatSpec::default() },
        &mut |_| {},
    )
}

/// A corpus with the text of its splits; documents are parted by `|`.
#[derive(Debug)]
struct Loaded {
    corpus: Corpus,
    train: String,
    validation: String,
    test: String,
}

impl Loaded {
    fn new(corpus: Corpus) -> Loaded {
        let [train, validation, test] = Split::ALL.map(|split| {
            let mut text = String::new();
            let add = &mut |piece: Piece| {
                text.push_str(if let Piece::Text(text) = piece { text } else { "|" });
                Ok(())
            };
            corpus.read(split, add).unwrap();
            if corpus.has_documents() { text } else { text.trim_end_matches('|').to_string() }
        });
        Loaded { corpus, train, validation, test }
    }
}

fn load(path: &Path, fraction: f64) -> Result<Loaded> {
    open(path.to_str().unwrap(), &[], Path::new("data"), fraction).map(Loaded::new)
}

fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

/// `count` lines of 10 bytes each.
fn lines(count: usize) -> String {
    (0..count).map(|i| format!("line {i:04}\n")).collect()
}

#[test]
fn the_sample_needs_no_files() {
    let corpus = Loaded::new(open("sample", &[], Path::new("/nowhere"), 0.1).unwrap());
    assert_eq!(corpus.corpus.name, "sample");
    assert!(corpus.train.len() > 500_000);
    let whole = corpus.train.len() + corpus.validation.len();
    assert!((corpus.validation.len() as f64 / whole as f64 - 0.1).abs() < 0.01);
}

#[test]
fn a_file_is_split_at_a_line_boundary() {
    let dir = folder(&[("tale.txt", &lines(100))]);
    let corpus = load(&dir.path().join("tale.txt"), 0.096).unwrap();
    assert_eq!(corpus.corpus.name, "tale");
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
        assert!(message(open("sample", &[], Path::new("data"), fraction)).contains("validation_fraction"));
    }
}

#[test]
fn a_folder_with_train_txt_keeps_its_splits() {
    let dir = folder(&[("train.txt", "a"), ("valid.txt", "b"), ("test.txt", "c"), ("other.txt", "d")]);
    let corpus = load(dir.path(), 0.5).unwrap();
    assert_eq!((corpus.train.as_str(), corpus.validation.as_str(), corpus.test.as_str()), ("a", "b", "c"));
}

#[test]
fn wikitexts_own_file_names_are_known() {
    let dir = folder(&[("wiki.train.tokens", "a"), ("wiki.valid.tokens", "b"), ("wiki.test.tokens", "c")]);
    let corpus = load(dir.path(), 0.5).unwrap();
    assert_eq!((corpus.train.as_str(), corpus.validation.as_str(), corpus.test.as_str()), ("a", "b", "c"));
}

#[test]
fn without_a_validation_file_the_training_text_is_split() {
    let dir = folder(&[("train.txt", &lines(10))]);
    let corpus = load(dir.path(), 0.2).unwrap();
    assert_eq!((corpus.train, corpus.corpus.has(Split::Test)), (lines(8), false));
}

#[test]
fn a_folder_without_its_training_text_says_how_to_get_it() {
    let dir = folder(&[("wikitext-2/valid.txt", "b"), ("wikitext-2/test.txt", "c")]);
    let error = message(open("wikitext-2", &[], dir.path(), 0.1));
    assert!(error.contains("train.txt is missing"), "{error}");
    assert!(error.contains("`rustyflow data fetch wikitext-2`"), "{error}");
}

#[test]
fn a_folder_of_texts_is_its_documents_in_order_of_path() {
    let files =
        [("b.txt", "second"), ("a.md", "first\n"), ("c/x.txt", "third\n"), ("p.png", "no"), (".git/y.txt", "no")];
    let dir = folder(&files);
    let corpus = load(dir.path(), 0.0).unwrap();
    assert_eq!(corpus.train, "first\n|second|third\n|");
    assert_eq!(corpus.corpus.name, dir.path().file_name().unwrap().to_str().unwrap());
    assert_eq!(corpus.corpus.summary.to_string(), "3 files, 18 B; skipped 1: 1 .png");
}

#[test]
fn patterns_choose_files_of_a_folder() {
    let files = [("a.txt", "a"), ("b.rs", "b"), ("sub/c.rs", "c"), ("sub/d.md", "d"), ("train.txt", "t")];
    let dir = folder(&files);
    let chosen = |files: &[&str]| {
        let corpus = open(dir.path().to_str().unwrap(), files, Path::new("data"), 0.0);
        corpus.map(|corpus| Loaded::new(corpus).train.replace('|', ""))
    };
    assert_eq!(chosen(&["*.rs"]).unwrap(), "bc");
    assert_eq!(chosen(&["sub/*"]).unwrap(), "cd");
    assert_eq!(chosen(&["*", "!sub/**", "!train.txt"]).unwrap(), "ab");
    assert_eq!([chosen(&["/*.txt", "!/train.txt"]).unwrap(), chosen(&["sub/"]).unwrap()], ["a", "cd"]);
    assert_eq!(chosen(&["!sub", "!train.txt"]).unwrap(), "a", "of all texts");
    assert!(message(chosen(&["[x"])).contains("data.files: \"[x\""));
    assert!(message(chosen(&["*.py"])).contains("holds no text"));
}

#[test]
fn what_a_training_file_hides_is_told() {
    let dir = folder(&[("train.txt", "abc"), ("notes.md", "hidden"), ("more.txt", "hidden")]);
    let corpus = load(dir.path(), 0.0).unwrap();
    assert_eq!(corpus.train, "abc");
    let told = corpus.corpus.summary.to_string();
    assert!(told.contains("skipped 2: 2 other texts (files called train"), "{told}");
}

#[test]
fn splits_may_be_in_several_files() {
    let dir = folder(&[
        ("train-00000-of-00002.jsonl", "{\"text\": \"a\"}"),
        ("train-00001-of-00002.jsonl", "{\"text\": \"b\"}"),
        ("validation.jsonl", "{\"text\": \"c\"}"),
    ]);
    let corpus = load(dir.path(), 0.5).unwrap();
    assert_eq!((corpus.train.as_str(), corpus.validation.as_str()), ("a|b|", "c|"));
}

#[test]
fn a_line_of_json_is_a_document() {
    let lines = "{\"id\": 1, \"text\": \"a\\nb\"}\n\n{\"text\": \"\"}\n{\"text\": \"c\", \"more\": [1]}";
    let dir = folder(&[("x.jsonl", lines)]);
    let corpus = load(&dir.path().join("x.jsonl"), 0.0).unwrap();
    assert_eq!(corpus.train, "a\nb|c|");
    assert_eq!(corpus.corpus.summary.documents, 2);
}

#[test]
fn a_line_without_text_is_named_with_its_keys() {
    for (line, part) in
        [("{\"prompt\": 1, \"body\": 2}", "prompt, body"), ("[1]", "line 2"), ("{\"text\": 5}", "line 2")]
    {
        let dir = folder(&[("x.jsonl", &format!("{{\"text\": \"a\"}}\n{line}"))]);
        let error = message(load(&dir.path().join("x.jsonl"), 0.0));
        assert!(error.contains("x.jsonl: line 2") && error.contains(part), "{error}");
    }
}

/// Files that pyarrow wrote: `id`, `text` with a null, `n`, in two row groups; and one with the column `body` alone.
#[test]
fn rows_of_parquet_are_documents() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpora").join(name);
    let corpus = load(&file("snappy.parquet"), 0.0).unwrap();
    assert_eq!(corpus.train, "first\ndocument|second, é日|last|");
    let error = message(load(&file("no-text.parquet"), 0.0));
    assert!(error.contains("no-text.parquet: has no column `text`; its columns are body"), "{error}");
    let dir = folder(&[("broken.parquet", "PAR1 and then nothing")]);
    let error = message(load(&dir.path().join("broken.parquet"), 0.0));
    assert!(error.contains("cannot be read as Parquet"), "{error}");
}

#[test]
fn compressed_files_are_read() {
    use std::io::Write;
    let text = lines(50_000);
    let dir = folder(&[]);
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    std::fs::write(dir.path().join("a.txt.gz"), gzip.finish().unwrap()).unwrap();
    let zstandard = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    std::fs::write(dir.path().join("b.txt.zst"), zstandard).unwrap();
    for name in ["a.txt.gz", "b.txt.zst"] {
        let corpus = load(&dir.path().join(name), 0.1).unwrap();
        assert_eq!(corpus.corpus.name, name[..1], "{name}");
        assert!(corpus.train.len() > 400_000 && corpus.train + &corpus.validation == text, "{name}");
        let whole = std::fs::read(dir.path().join(name)).unwrap();
        std::fs::write(dir.path().join(name), whole.repeat(2)).unwrap();
        let twice = load(&dir.path().join(name), 0.1).unwrap();
        assert!(twice.train + &twice.validation == text.repeat(2), "{name} has two members or frames");
        std::fs::write(dir.path().join(name), &whole[..whole.len() / 2]).unwrap();
        assert!(message(load(&dir.path().join(name), 0.1)).contains(name));
    }
}

#[test]
fn a_sample_of_documents_is_held_out() {
    let documents: Vec<String> = (0..200).map(|i| format!("{{\"text\": \"document {i:03}\"}}")).collect();
    let dir = folder(&[("x.jsonl", &documents.join("\n"))]);
    let corpus = load(&dir.path().join("x.jsonl"), 0.1).unwrap();
    let [train, validation] = [&corpus.train, &corpus.validation].map(|text| text.matches('|').count());
    assert_eq!((train, validation), (180, 20));
    assert_eq!(corpus.corpus.summary.held_out, Some(20));
    let mut all: Vec<&str> = corpus.train.split('|').chain(corpus.validation.split('|')).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 201, "each once, and the empty end");
    // Neither the first nor the last ones.
    let held: Vec<usize> = corpus.validation.split_terminator('|').map(|d| d[9..].parse().unwrap()).collect();
    assert!(held[0] < 60 && held[19] > 140, "{held:?}");
}

#[test]
fn a_byte_order_mark_is_no_document_and_no_part_of_json() {
    let dir = folder(&[("a.txt", "text"), ("b.txt", "\u{feff}"), ("c.jsonl", "\u{feff}{\"text\": \"json\"}\n")]);
    assert_eq!(load(dir.path(), 0.0).unwrap().train, "text|json|");
}

#[test]
fn two_documents_are_one_of_each() {
    let dir = folder(&[("a.txt", "a long one, of which a tenth is less than the other"), ("b.txt", "short")]);
    let corpus = load(dir.path(), 0.1).unwrap();
    assert_eq!(corpus.validation, "short|");
    assert_eq!(corpus.corpus.summary.held_out, Some(1));
}

#[test]
fn what_was_learnt_of_files_is_remembered_until_they_change() {
    let (dir, cache) = (folder(&[("a.txt", "abc\n"), ("b.txt", "def\n")]), tempdir().unwrap());
    let read = || {
        let (corpus, cache) = (dir.path().to_str().unwrap(), Some(cache.path()));
        let spec = CorpusSpec {
            corpus,
            files: &[],
            validation_fraction: 0.5,
            data_dir: Path::new("data"),
            cache,
            chat: ChatSpec::default(),
        };
        let mut bytes = 0;
        let corpus = Corpus::open(&spec, &mut |read| bytes = read).unwrap();
        (corpus.sha256.clone(), corpus.summary.clone(), Loaded::new(corpus).train, bytes)
    };
    let first = read();
    let second = read();
    assert_eq!((first.3, second.3), (8, 0));
    assert_eq!((&first.0, &first.1, &first.2), (&second.0, &second.1, &second.2));
    std::fs::write(dir.path().join("b.txt"), "deg\nh").unwrap();
    let third = read();
    assert_eq!(third.3, 9);
    assert_ne!(third.0, first.0);
}

#[test]
fn where_documents_end_is_part_of_the_hash() {
    let sha = |files: &[(&str, &str)]| load(folder(files).path(), 0.0).unwrap().corpus.sha256;
    assert_ne!(sha(&[("a.txt", "ab"), ("b.txt", "c")]), sha(&[("a.txt", "a"), ("b.txt", "bc")]));
}

#[test]
fn a_folder_without_text_is_refused() {
    let dir = folder(&[("notes.pdf", "no")]);
    let error = message(load(dir.path(), 0.1));
    assert!(error.contains("holds no text") && error.contains("1 .pdf"), "{error}");
}

#[test]
fn splits_can_be_named_one_by_one() {
    let dir = folder(&[("w/test.txt", "train on this"), ("w/valid.txt", "judge by this"), ("x", "and this")]);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let spec = format!("train={},validation={},test={}", at("w/test.txt"), at("w/valid.txt"), at("x"));
    let corpus = open(&spec, &[], Path::new("data"), 0.1).unwrap();
    let corpus = Loaded::new(corpus);
    assert_eq!(corpus.corpus.name, "w");
    assert_eq!((&*corpus.train, &*corpus.validation, &*corpus.test), ("train on this", "judge by this", "and this"));
}

#[test]
fn an_unknown_split_is_refused() {
    assert!(message(open("train=a,dev=b", &[], Path::new("data"), 0.1)).contains("\"dev\""));
    assert!(message(open("train=a,train=b", &[], Path::new("data"), 0.1)).contains("twice"));
}

#[test]
fn a_corpus_that_was_not_fetched_names_the_command() {
    let dir = folder(&[]);
    for name in ["wikitext-2", "tinyshakespeare"] {
        let error = message(open(name, &[], dir.path(), 0.1));
        assert!(error.contains(&format!("`rustyflow data fetch {name}`")), "{error}");
    }
}

#[test]
fn an_unknown_corpus_lists_what_there_is() {
    let error = message(open("no-such-thing", &[], Path::new("data"), 0.1));
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
