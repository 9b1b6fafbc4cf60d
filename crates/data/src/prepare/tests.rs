use super::*;
use crate::{ChatSpec, Loader, Order, Position, TokenType};
use std::fs;
use tempfile::tempdir;

/// Makes the tokens of a corpus, with a cache or without; how much was read and tokenized, bytes.
fn prepare(corpus: &Path, tokenizer: &str, cache: Option<&Path>) -> Result<(Prepared, [u64; 2])> {
    let mut done = [0; 2];
    let spec = spec(corpus.to_str().unwrap(), tokenizer, cache);
    let corpus = Corpus::open(&spec.corpus, &mut |read| done[0] = read)?;
    let prepared = spec.prepare(&corpus, None, &mut |_| Ok(()), &mut |progress| done[1] = progress.done)?;
    Ok((prepared, done))
}

fn spec<'a>(corpus: &'a str, tokenizer: &'a str, cache: Option<&'a Path>) -> DataSpec<'a> {
    let corpus = CorpusSpec {
        corpus,
        files: &[],
        validation_fraction: 0.25,
        data_dir: Path::new("data"),
        cache,
        chat: ChatSpec::default(),
    };
    DataSpec { corpus, tokenizer, vocab_size: 300, packing: None }
}

fn all(tokens: &Tokens) -> Vec<u32> {
    let mut ids = vec![];
    tokens.each_part(|part| ids.extend(part));
    ids
}

#[test]
fn tokens_are_those_of_the_text() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.txt");
    let text = "the cat sat on the mat\nwith the other cat\n".repeat(20_000);
    fs::write(&path, &text).unwrap();
    for tokenizer in ["char", "word", "bpe"] {
        let (prepared, _) = prepare(&path, tokenizer, None).unwrap();
        let joined = [all(&prepared.train), all(&prepared.validation)].concat();
        assert_eq!(joined, prepared.tokenizer.encode(&text).unwrap(), "{tokenizer}");
        assert_eq!(prepared.meta.train_tokens as usize, prepared.train.len());
        let share = prepared.validation.len() as f64 / joined.len() as f64;
        assert!((share - 0.25).abs() < 0.01, "{tokenizer}: {share}");
    }
}

#[test]
fn a_second_start_finds_everything_done() {
    let (dir, cache) = (tempdir().unwrap(), tempdir().unwrap());
    let path = dir.path().join("a.txt");
    fs::write(&path, "some words and other words\n".repeat(100)).unwrap();
    for tokenizer in ["char", "bpe"] {
        let (first, _) = prepare(&path, tokenizer, Some(cache.path())).unwrap();
        let (second, done) = prepare(&path, tokenizer, Some(cache.path())).unwrap();
        assert_eq!(done, [0, 0], "{tokenizer} was read or tokenized again");
        assert_eq!((all(&first.train), &first.meta), (all(&second.train), &second.meta));
        assert_eq!((first.tokenizer.name(), second.tokenizer.name()), (tokenizer, tokenizer));
    }
    fs::write(&path, "another text of other words\n".repeat(100)).unwrap();
    let (_, done) = prepare(&path, "char", Some(cache.path())).unwrap();
    assert!(done[1] > 0, "the tokens of the old text were taken");
}

#[test]
fn damaged_token_files_are_made_again() {
    let (dir, cache) = (tempdir().unwrap(), tempdir().unwrap());
    let path = dir.path().join("a.txt");
    fs::write(&path, "some words and other words\n".repeat(100)).unwrap();
    let (first, _) = prepare(&path, "char", Some(cache.path())).unwrap();
    let ids = all(&first.train);
    let [meta, train] = [META, TRAIN].map(|name| first.folder.join(name));
    drop(first);
    for damage in [
        |meta: &Path, _: &Path| fs::write(meta, "{").unwrap(),
        |_: &Path, train: &Path| fs::write(train, [0; 4]).unwrap(),
    ] {
        damage(&meta, &train);
        let (again, done) = prepare(&path, "char", Some(cache.path())).unwrap();
        assert!(done[1] > 0);
        assert_eq!(ids, all(&again.train));
    }
}

#[test]
fn documents_end_with_a_token_of_their_own() {
    let dir = tempdir().unwrap();
    for (name, text) in [("a.txt", "aa\n"), ("b.md", "bb"), ("c.txt", "cc")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    for tokenizer in ["char", "word", "bpe"] {
        let (prepared, _) = prepare(dir.path(), tokenizer, None).unwrap();
        let (end, token) = prepared.tokenizer.end_of_text().expect("there is one");
        for (tokens, documents) in [(&prepared.train, 2), (&prepared.validation, 1)] {
            let ids = all(tokens);
            assert_eq!(ids.iter().filter(|&&id| id == end).count(), documents, "{tokenizer} {ids:?}");
            assert_eq!(ids.last(), Some(&end), "{tokenizer}");
        }
        assert!(prepared.tokenizer.decode(&all(&prepared.train)).unwrap().contains(token), "{tokenizer}");
        assert_eq!(prepared.meta.notes, [""; 0]);
    }
}

#[test]
fn documents_end_in_the_declared_eos_token() {
    let (dir, cache) = (tempdir().unwrap(), tempdir().unwrap());
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    let plain = Corpus::of_texts("x", "ab\n", "", None).unwrap();
    let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &plain, Path::new("data")).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&tokenizer.to_json().unwrap()).unwrap();
    let token = |id: usize, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    document["added_tokens"] = serde_json::json!([token(3, "</s>"), token(4, "<eos>")]);
    fs::write(model.join(TOKENIZER), document.to_string()).unwrap();
    let rows = r#"{"prompt": "a", "completion": "b"}"#.to_string() + "\n";
    fs::write(dir.path().join("rows.jsonl"), rows.repeat(4)).unwrap();
    let first = || {
        let (prepared, _) =
            prepare(&dir.path().join("rows.jsonl"), model.to_str().unwrap(), Some(cache.path())).unwrap();
        (all(&prepared.train)[..3].to_vec(), prepared.train.first_prompt(9))
    };
    assert_eq!(first(), (vec![1, 2, 3], Some(vec![1])));
    // Tokens that are kept are not those of another end.
    fs::write(model.join("tokenizer_config.json"), r#"{"eos_token": "<eos>"}"#).unwrap();
    assert_eq!(first(), (vec![1, 2, 4], Some(vec![1])));
    assert_eq!(
        prepare(&dir.path().join("rows.jsonl"), model.to_str().unwrap(), None).unwrap().0.train.first_prompt(1),
        None
    );
}

#[test]
fn what_ends_documents_is_no_part_of_what_is_covered() {
    let dir = tempdir().unwrap();
    for (name, text) in [("a.txt", "one two <|endoftext|> three"), ("b.txt", "two"), ("c.txt", "three")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let (prepared, _) = prepare(dir.path(), "word", None).unwrap();
    let Coverage { decodable_bytes, lossless, .. } = prepared.meta.coverage;
    // "two" and "three" are held out.
    assert_eq!((lossless, decodable_bytes), (true, 8), "{:?}", prepared.meta.coverage);
}

#[test]
fn a_text_that_changes_while_it_is_read_leaves_nothing_behind() {
    let (dir, cache) = (tempdir().unwrap(), tempdir().unwrap());
    let path = dir.path().join("a.txt");
    fs::write(&path, "some words\n".repeat(100)).unwrap();
    let spec = spec(path.to_str().unwrap(), "char", Some(cache.path()));
    let corpus = Corpus::open(&spec.corpus, &mut |_| {}).unwrap();
    fs::write(&path, "some other words\n".repeat(100)).unwrap();
    let error = spec.prepare(&corpus, None, &mut |_| Ok(()), &mut |_| {}).err().unwrap().to_string();
    assert!(error.contains("a.txt: has changed while it was read"), "{error}");
    assert_eq!(fs::read_dir(cache.path().join("tokens")).unwrap().count(), 0);
}

#[test]
fn an_interrupted_preparation_is_no_corpus() {
    let dir = tempdir().unwrap();
    let (text, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    fs::write(&text, "ab").unwrap();
    let plain = spec(text.to_str().unwrap(), "char", None);
    let corpus = Corpus::open(&plain.corpus, &mut |_| {}).unwrap();
    fs::remove_file(&text).unwrap();
    assert!(plain.write_to(&corpus, &out, &mut |_| {}).is_err());
    assert!(!out.join(TRAIN).exists());
}

#[test]
fn a_single_text_gets_no_token_of_its_own() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "abc\n".repeat(10)).unwrap();
    let (prepared, _) = prepare(dir.path(), "char", None).unwrap();
    assert_eq!((prepared.tokenizer.vocab_size(), prepared.tokenizer.end_of_text()), (4, None));
}

#[test]
fn without_such_a_token_documents_end_in_a_line_break() {
    let dir = tempdir().unwrap();
    for (name, text) in [("a.txt", "aa\n"), ("b.txt", "ab"), ("c.txt", "a")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let plain = Corpus::of_texts("x", "ab\n", "", None).unwrap();
    let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &plain, Path::new("data")).unwrap();
    let spec = spec(dir.path().to_str().unwrap(), "char", None);
    let corpus = Corpus::open(&spec.corpus, &mut |_| {}).unwrap();
    let prepared = spec.prepare(&corpus, Some(tokenizer), &mut |_| Ok(()), &mut |_| {}).unwrap();
    let mut texts = [&prepared.train, &prepared.validation].map(|t| prepared.tokenizer.decode(&all(t)).unwrap());
    texts.sort();
    assert!(texts.concat().matches('\n').count() == 3, "{texts:?}");
    assert!(prepared.meta.notes[0].contains("has no end-of-text token"), "{:?}", prepared.meta.notes);
}

#[test]
fn token_folders_are_corpora() {
    let dir = tempdir().unwrap();
    let (text, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    fs::write(&text, "some words and other words\n".repeat(100)).unwrap();
    let spec = spec(text.to_str().unwrap(), "bpe", None);
    let corpus = Corpus::open(&spec.corpus, &mut |_| {}).unwrap();
    let written = spec.write_to(&corpus, &out, &mut |_| {}).unwrap();
    let (read, _) = prepare(&out, "bpe", None).unwrap();
    assert_eq!(all(&written.train), all(&read.train));
    assert_eq!(all(&written.validation), all(&read.validation));
    assert_eq!(read.meta.coverage, written.meta.coverage);
    fs::write(&text, "other words\n".repeat(100)).unwrap();
    let corpus = Corpus::open(&spec.corpus, &mut |_| {}).unwrap();
    let again = spec.write_to(&corpus, &out, &mut |_| {}).unwrap();
    assert_ne!(again.meta.text_sha256, written.meta.text_sha256);
    let (read, _) = prepare(&out, "bpe", None).unwrap();
    assert_ne!(all(&again.train), all(&written.train));
    assert_eq!(all(&read.train), all(&again.train), "the earlier tokens are replaced");
    fs::remove_file(out.join("meta.json")).unwrap();
    let error = spec.write_to(&corpus, &out, &mut |_| {}).err().unwrap().to_string();
    assert!(error.contains("holds a train.bin that `data prepare` did not write"), "{error}");
}

#[test]
fn nanogpts_token_files_need_their_tokenizer() {
    let dir = tempdir().unwrap();
    let ids: Vec<u16> = (0..200).map(|i| i % 4).collect();
    fs::write(dir.path().join("train.bin"), bytemuck::cast_slice(&ids)).unwrap();
    let error = |tokenizer: &str| prepare(dir.path(), tokenizer, None).err().unwrap().to_string();
    assert!(error("bpe").contains("name their tokenizer"), "{}", error("bpe"));
    let made = |letters: &str| {
        let corpus = Corpus::of_texts("x", letters, "", None).unwrap();
        let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &corpus, Path::new("data")).unwrap();
        let path = dir.path().join(format!("{letters}.json"));
        fs::write(&path, tokenizer.to_json().unwrap()).unwrap();
        path.display().to_string()
    };
    assert!(error(&made("abc")).contains("token id 3 (as 2-byte ids"));
    let (prepared, _) = prepare(dir.path(), &made("abcd"), None).unwrap();
    assert_eq!((prepared.train.len(), prepared.validation.len()), (150, 50));
    assert_eq!(prepared.meta.coverage.decodable_bytes, 50);
    assert_eq!(all(&prepared.validation)[..4], [2, 3, 0, 1]);
    fs::write(dir.path().join("train.bin"), [0; 7]).unwrap();
    assert!(error(&made("abcd")).contains("not a multiple of 2"));
}

#[test]
fn loaders_take_mapped_tokens_as_they_take_others() {
    let dir = tempdir().unwrap();
    let ids: Vec<u32> = (0..1000).map(|i| i * 67 % 60_000).collect();
    for token_type in [TokenType::U16, TokenType::U32] {
        let path = dir.path().join("x.bin");
        let mut file = TokenWriter::create(&path, token_type).unwrap();
        ids.chunks(300).for_each(|part| file.write(part).unwrap());
        file.finish().unwrap();
        let mapped = Tokens::map(&path, token_type, None).unwrap();
        assert_eq!(all(&mapped), ids);
        assert_eq!(all(&mapped.slice(10..900).slice(5..20)), ids[15..30]);
        let mut loaders = [mapped, ids.clone().into()]
            .map(|tokens| Loader::new(tokens, Order::Shuffled, 3, 16, 7, Position::default()).unwrap());
        for _ in 0..50 {
            let [left, right] = loaders.each_mut().map(Loader::next_batch);
            assert_eq!(left, right);
        }
    }
}

#[test]
fn a_long_line_is_tokenized_in_parts() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.txt");
    let line = "one line of words that never ends, ".repeat(100_000);
    fs::write(&path, &line).unwrap();
    let (prepared, _) = prepare(&path, "bpe", None).unwrap();
    let joined = [all(&prepared.train), all(&prepared.validation)].concat();
    assert_eq!(prepared.tokenizer.decode(&joined).unwrap(), line);
    assert_eq!(prepared.meta.notes, [""; 0]);
}

#[test]
fn rows_of_other_formats_are_told() {
    let dir = tempdir().unwrap();
    let share_gpt = r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#;
    let alpaca = r#"{"instruction": "a", "output": "b"}"#;
    fs::write(dir.path().join("a.jsonl"), [share_gpt, share_gpt, alpaca, alpaca, alpaca].join("\n")).unwrap();
    let mut spec = spec(dir.path().to_str().unwrap(), "char", None);
    spec.corpus.chat.template = "chatml";
    let corpus = Corpus::open(&spec.corpus, &mut |_| {}).unwrap();
    let notes = spec.prepare(&corpus, None, &mut |_| Ok(()), &mut |_| {}).unwrap().meta.notes;
    for told in ["2 rows in ShareGPT's format", "3 rows in Alpaca's format"] {
        assert!(
            notes.iter().any(|note| note.starts_with(told) && note.ends_with("were read as messages")),
            "{notes:?}"
        );
    }
}
