use super::*;
use tempfile::tempdir;

/// Text that trips tokenizers: contractions, runs of white space of several kinds, digits, scripts, emoji, controls.
pub(super) const TRICKY: &str = "\
    I'll say it's 1984's \"best\"  book,\n\n\tisn't it?   \r\n don't\u{a0}stop \u{85}now  \n\
    À la carte: 日本語 и русский, 👩‍👩‍👧 naïve e\u{301} x=\u{0}1_000;  'Tis 'S o'clock's<|endoftext|>\u{3000}end \n";

fn corpus(train: &str) -> Corpus {
    Corpus::of_texts("test", train, "", None).unwrap()
}

fn build(spec: TokenizerSpec, train: &str) -> Tokenizer {
    Tokenizer::build(&spec, 300, &corpus(train), Path::new("data")).unwrap()
}

/// The first of the sample's stories.
pub(super) fn sample() -> String {
    include_str!("../../../../data/sample.txt").chars().take(200_000).collect()
}

fn reload(tokenizer: &Tokenizer) -> Tokenizer {
    let dir = tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, &tokenizer.pretrained_files(8, "gpt2").unwrap()[0].1).unwrap();
    Tokenizer::from_file(&path).unwrap()
}

/// The ids by the library's own pipeline, without our quicker ways.
pub(super) fn by_the_library(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.inner.encode(text, false).unwrap().get_ids().to_vec()
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let pushed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pushed + &stream.finish().unwrap()
}

pub(super) fn load(document: &Value) -> Result<Tokenizer> {
    Tokenizer::from_document("test", document)
}

#[test]
fn specs_are_names_or_paths() {
    assert_eq!(TokenizerSpec::parse("char").unwrap(), TokenizerSpec::Char);
    assert_eq!(TokenizerSpec::parse("gpt2").unwrap(), TokenizerSpec::Gpt2);
    assert_eq!(TokenizerSpec::parse("x/y").unwrap(), TokenizerSpec::Path("x/y".into()));
    assert_eq!(TokenizerSpec::parse("my.json").unwrap(), TokenizerSpec::Path("my.json".into()));
    let error = TokenizerSpec::parse("bep").unwrap_err().to_string();
    assert!(error.contains("bep") && error.contains("char, word, bpe, gpt2"), "{error}");
}

#[test]
fn char_ids_follow_code_points_of_all_splits() {
    let corpus = Corpus::of_texts("test", "ca a", "b\n", Some("é")).unwrap();
    let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &corpus, Path::new("data")).unwrap();
    assert_eq!(tokenizer.vocab_size(), 6);
    assert_eq!(tokenizer.encode("\n abcé").unwrap(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn char_encodes_as_the_library_does() {
    let tokenizer = build(TokenizerSpec::Char, TRICKY);
    assert_eq!(tokenizer.encode(TRICKY).unwrap(), by_the_library(&tokenizer, TRICKY));
}

#[test]
fn char_gives_the_text_back() {
    let tokenizer = build(TokenizerSpec::Char, TRICKY);
    let ids = tokenizer.encode(TRICKY).unwrap();
    assert_eq!(ids.len(), TRICKY.chars().count());
    assert_eq!(tokenizer.decode(&ids).unwrap(), TRICKY);
    assert_eq!(tokenizer.inner.decode(&ids, false).unwrap(), TRICKY);
}

#[test]
fn an_unknown_char_is_an_error_that_names_it() {
    let error = build(TokenizerSpec::Char, "abc").encode("abéc").unwrap_err().to_string();
    assert!(error.contains("'é'") && error.contains("U+00E9") && error.contains("byte 2"), "{error}");
}

#[test]
fn an_unknown_char_is_unk_where_there_is_one() {
    let mut document = recipe::char_vocabulary("ab".chars().collect());
    document["model"]["vocab"]["<unk>"] = 2.into();
    assert_eq!(load(&document).unwrap().encode("axb").unwrap(), [0, 2, 1]);
}

#[test]
fn word_ids_follow_frequency_then_appearance() {
    let tokenizer = build(TokenizerSpec::Word, "b a a\nb a c\n");
    assert_eq!(tokenizer.vocab_size(), 5);
    // a 3 times, then <eos>, which is always seen first, and b twice, c once, <unk> never.
    assert_eq!(tokenizer.encode("a\nb c d").unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn word_counts_eos_and_unk_of_the_text_only_once() {
    assert_eq!(build(TokenizerSpec::Word, " a <unk> b <eos> \n").vocab_size(), 4);
}

#[test]
fn word_encodes_as_the_library_does() {
    let tokenizer = build(TokenizerSpec::Word, TRICKY);
    let text = TRICKY.to_string() + "something\nnew";
    assert_eq!(tokenizer.encode(&text).unwrap(), by_the_library(&tokenizer, &text));
}

#[test]
fn word_decodes_to_words_and_lines() {
    let text = "\nthe cat\n\nsat down .\non";
    let tokenizer = build(TokenizerSpec::Word, text);
    let ids = tokenizer.encode(" \n the  cat \n\n sat down . \n on ").unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert_eq!(tokenizer.inner.decode(&ids, false).unwrap(), text);
}

#[test]
fn bpe_gives_any_text_back() {
    let tokenizer = build(TokenizerSpec::Bpe, "the cat sat on the mat with the other cat\n");
    let text = TRICKY.to_string() + &('\u{1}'..'\u{3000}').collect::<String>();
    assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
}

#[test]
fn bpe_learns_pairs_up_to_the_size() {
    let text = "the cat sat on the mat with the other cat; ".repeat(20);
    let size = |vocab_size| {
        Tokenizer::build(&TokenizerSpec::Bpe, vocab_size, &corpus(&text), Path::new("data")).unwrap().vocab_size()
    };
    assert_eq!(size(256), 256);
    assert_eq!(size(270), 270);
    assert!((270..1000).contains(&size(1000)), "there are no more pairs to merge");
}

#[test]
fn bpe_is_trained_alike_every_time() {
    let json = || {
        Tokenizer::build(&TokenizerSpec::Bpe, 600, &corpus(&sample()), Path::new("data")).unwrap().to_json().unwrap()
    };
    assert_eq!(json(), json());
}

#[test]
fn bpe_below_one_token_per_byte_is_refused() {
    let result = Tokenizer::build(&TokenizerSpec::Bpe, 255, &corpus("abc"), Path::new("data"));
    assert!(result.err().unwrap().to_string().contains("at least 256"));
}

#[test]
fn byte_symbols_are_those_of_the_library() {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    assert_eq!((0..=255).map(recipe::symbol_of).collect::<std::collections::HashSet<_>>().len(), 256);
    assert!((0..=255).all(|byte| ByteLevel::alphabet().contains(&recipe::symbol_of(byte))));
    assert_eq!((recipe::symbol_of(b' '), recipe::symbol_of(b'\n')), ('Ġ', 'Ċ'));
}

/// The first lines of GPT-2's files, with the byte symbols that the test needs.
fn gpt2_folder() -> tempfile::TempDir {
    let dir = tempdir().unwrap();
    let folder = dir.path().join("gpt2");
    std::fs::create_dir(&folder).unwrap();
    let mut tokens: Vec<String> = (0..=255).map(|byte| recipe::symbol_of(byte).to_string()).collect();
    tokens.extend(["Ġt", "Ġa", "he", "Ġthe", "<|endoftext|>"].map(str::to_string));
    let vocab: serde_json::Map<String, Value> = tokens.into_iter().zip((0..).map(Value::from)).collect();
    std::fs::write(folder.join("vocab.json"), Value::Object(vocab).to_string()).unwrap();
    std::fs::write(folder.join("merges.txt"), "#version: 0.2\nĠ t\nĠ a\nh e\nĠt he\n").unwrap();
    dir
}

#[test]
fn gpt2_reads_vocab_and_merges() {
    let dir = gpt2_folder();
    let tokenizer = Tokenizer::build(&TokenizerSpec::Gpt2, 0, &corpus("x"), dir.path()).unwrap();
    assert_eq!((tokenizer.name(), tokenizer.vocab_size()), ("gpt2", 261));
    assert_eq!(tokenizer.encode("he the a<|endoftext|> t").unwrap(), [258, 259, 257, 260, 256]);
    assert_eq!(tokenizer.decode(&[258, 259, 260]).unwrap(), "he the<|endoftext|>");
}

#[test]
fn a_folder_with_vocab_and_merges_is_a_tokenizer() {
    let dir = gpt2_folder();
    let spec = TokenizerSpec::Path(dir.path().join("gpt2"));
    assert_eq!(Tokenizer::build(&spec, 0, &corpus("x"), Path::new("data")).unwrap().vocab_size(), 261);
}

#[test]
fn a_folder_with_a_tokenizer_json_is_a_tokenizer() {
    let dir = tempdir().unwrap();
    let files = build(TokenizerSpec::Char, "abc").pretrained_files(8, "gpt2").unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), &files[0].1).unwrap();
    let spec = TokenizerSpec::Path(dir.path().to_path_buf());
    assert_eq!(Tokenizer::build(&spec, 0, &corpus("x"), Path::new("data")).unwrap().name(), "char");
}

#[test]
fn gpt2_without_its_files_names_the_command() {
    let dir = tempdir().unwrap();
    let error = Tokenizer::build(&TokenizerSpec::Gpt2, 0, &corpus("x"), dir.path()).err().unwrap().to_string();
    assert!(error.contains("`rustyflow data fetch gpt2`"), "{error}");
}

#[test]
fn a_vocabulary_without_some_byte_refuses_texts_that_hold_it() {
    let document = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    let tokenizer = load(&document).unwrap();
    assert_eq!(tokenizer.encode("abba").unwrap(), [0, 1, 1, 0]);
    assert!(tokenizer.encode("abc").unwrap_err().to_string().contains("0x63 at 2"));
}

#[test]
fn saved_tokenizers_give_the_same_ids_again() {
    let dir = gpt2_folder();
    for spec in [TokenizerSpec::Char, TokenizerSpec::Word, TokenizerSpec::Bpe, TokenizerSpec::Gpt2] {
        let tokenizer = Tokenizer::build(&spec, 300, &corpus(TRICKY), dir.path()).unwrap();
        let again = reload(&tokenizer);
        let ids = tokenizer.encode(TRICKY).unwrap();
        assert_eq!(again.vocab_size(), tokenizer.vocab_size(), "{spec:?}");
        assert_eq!(again.encode(TRICKY).unwrap(), ids, "{spec:?}");
        assert_eq!(again.decode(&ids).unwrap(), tokenizer.decode(&ids).unwrap(), "{spec:?}");
        let same_kind = std::mem::discriminant(&again.kind) == std::mem::discriminant(&tokenizer.kind);
        assert!(same_kind && !matches!(again.kind, Kind::Other), "{spec:?} is not recognised");
    }
}

#[test]
fn streams_join_to_the_decoded_text() {
    let dir = gpt2_folder();
    for spec in [TokenizerSpec::Char, TokenizerSpec::Word, TokenizerSpec::Bpe, TokenizerSpec::Gpt2] {
        let tokenizer = Tokenizer::build(&spec, 300, &corpus(TRICKY), dir.path()).unwrap();
        let ids = tokenizer.encode(TRICKY).unwrap();
        assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids).unwrap(), "{spec:?}");
    }
}

#[test]
fn streams_never_give_half_a_character() {
    let tokenizer = build(TokenizerSpec::Bpe, "abc");
    let ids = tokenizer.encode("é日👩").unwrap();
    assert_eq!(ids.len(), 9);
    let mut stream = tokenizer.stream();
    let texts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(texts, ["", "é", "", "", "日", "", "", "", "👩"]);
}

#[test]
fn broken_bytes_decode_as_they_do_elsewhere() {
    let tokenizer = build(TokenizerSpec::Bpe, "abc");
    let id = |byte: u8| tokenizer.inner.token_to_id(&recipe::symbol_of(byte).to_string()).unwrap();
    for bytes in [&b"a\xffb"[..], b"\xe6\x97a", b"ok\xe6\x97", b"\xf0\x9f\xf0\x9f\x91\xa9\xc0\xaf"] {
        let ids: Vec<u32> = bytes.iter().map(|&byte| id(byte)).collect();
        assert_eq!(tokenizer.decode(&ids).unwrap(), String::from_utf8_lossy(bytes));
    }
}

/// A pipeline that none of our quicker ways fits: SentencePiece style, where the first space is dropped.
fn metaspace() -> Tokenizer {
    load(&serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace",
            "replacement": "▁", "prepend_scheme": "always", "split": true}]},
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {
            "?": 0, "▁the": 1, "▁cat": 2, "<0xE6>": 3, "<0x97>": 4, "<0xA5>": 5}},
    }))
    .unwrap()
}

#[test]
fn other_pipelines_are_left_to_the_library_but_never_cut_short() {
    let mut document = serde_json::to_value(&metaspace().inner).unwrap();
    document["normalizer"] = serde_json::json!({"type": "NFKC"});
    let tokenizer = load(&document).unwrap();
    assert!(matches!(tokenizer.kind, Kind::Other));
    assert_eq!(tokenizer.encode("the cat the dog").unwrap(), [1, 2, 1, 0]);
    assert_eq!(tokenizer.decode(&[1, 2, 1]).unwrap(), "the cat the");
}

#[test]
fn streams_of_other_pipelines_join_to_the_decoded_text() {
    let tokenizer = metaspace();
    let ids = [1, 2, 2, 3, 4, 5, 1, 3, 4];
    assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids).unwrap());
    let mut stream = tokenizer.stream();
    let texts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(texts[..7], ["the", " cat", " cat", "", "", "日", " the"]);
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    for tokenizer in [build(TokenizerSpec::Char, "abc"), metaspace()] {
        let size = tokenizer.vocab_size() as u32;
        assert!(tokenizer.decode(&[0, size]).unwrap_err().to_string().contains(&size.to_string()));
        assert!(tokenizer.stream().push(u32::MAX).is_err());
    }
}

#[test]
fn damaged_files_are_errors() {
    let char = recipe::char_vocabulary("abc".chars().collect());
    let damaged = |path: &str, value: Value| {
        let mut document = char.clone();
        *document.pointer_mut(path).unwrap() = value;
        load(&document).err().unwrap_or_else(|| panic!("{path} was not refused")).to_string()
    };
    assert!(damaged("/model/vocab", serde_json::json!({})).contains("empty"));
    assert!(damaged("/model/vocab/a", 4_000_000_000_u32.into()).contains("4000000000"));
    assert!(damaged("/model/vocab/a", Value::from(-1)).contains("not a usable tokenizer.json"));
    assert!(damaged("/pre_tokenizer/pattern/Regex", "(".into()).contains("not a usable tokenizer.json"));
    assert!(damaged("/version", "2.0".into()).contains("version"));
    for bytes in [&b""[..], b"{", b"[]", b"null", b"\xff\xfe", b"{}"] {
        assert!(Tokenizer::from_bytes("test", bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn a_file_that_makes_the_library_panic_is_an_error() {
    let document = serde_json::json!({
        "version": "1.0",
        "model": {"type": "BPE", "continuing_subword_prefix": "####", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
    });
    assert!(load(&document).err().unwrap().to_string().contains("contradict each other"));
}

#[test]
fn added_tokens_must_have_the_ids_they_claim() {
    let mut document = recipe::char_vocabulary("abc".chars().collect());
    document["added_tokens"] = serde_json::json!([{
        "id": 7, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }]);
    assert!(load(&document).err().unwrap().to_string().contains("<pad>"));
    document["added_tokens"][0]["id"] = 3.into();
    assert_eq!(load(&document).unwrap().vocab_size(), 4);
}

#[test]
fn damaged_vocab_and_merges_are_errors() {
    for (file, content) in [("vocab.json", "[]"), ("merges.txt", "a b c\n"), ("merges.txt", "no pe\n")] {
        let dir = gpt2_folder();
        std::fs::write(dir.path().join("gpt2").join(file), content).unwrap();
        assert!(Tokenizer::build(&TokenizerSpec::Gpt2, 0, &corpus("x"), dir.path()).is_err(), "{file} {content}");
    }
}

#[test]
fn what_the_tokens_keep_of_a_text_is_told() {
    let text = "a  b\tc\n\n d unheard-of word \n";
    let lossless = Coverage { decodable_bytes: text.len(), unknown_share: 0.0, lossless: true };
    for spec in [TokenizerSpec::Char, TokenizerSpec::Bpe] {
        let tokenizer = build(spec, text);
        assert_eq!(tokenizer.coverage(text, &tokenizer.encode(text).unwrap()).unwrap(), lossless);
    }
    let words = build(TokenizerSpec::Word, "a b c d\n");
    let ids = words.encode(text).unwrap();
    // a b c \n \n d <unk> <unk> \n: of which "a b c\n\nd\n" comes back.
    let expected = Coverage { decodable_bytes: 9, unknown_share: 2.0 / 9.0, lossless: false };
    assert_eq!((ids.len(), words.coverage(text, &ids).unwrap()), (9, expected));
    // White space that is the vocabulary's own is kept.
    let plain = "a b\nc d\n";
    assert!(words.coverage(plain, &words.encode(plain).unwrap()).unwrap().lossless);
}

/// What transformers reads of a tokenizer: names of files, and their contents.
fn pretrained(tokenizer: &Tokenizer, model_type: &str) -> HashMap<&'static str, Value> {
    let json = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    tokenizer.pretrained_files(32, model_type).unwrap().iter().map(|(name, text)| (*name, json(text))).collect()
}

#[test]
fn transformers_is_told_to_keep_to_the_pipeline() {
    // A token that the pipeline has not as an added token would get an id of its own.
    for spec in [TokenizerSpec::Char, TokenizerSpec::Word, TokenizerSpec::Bpe] {
        let tokenizer = build(spec, TRICKY);
        for model_type in ["gpt2", "llama", "mistral", "qwen3"] {
            let files = pretrained(&tokenizer, model_type);
            let config = &files["tokenizer_config.json"];
            assert_eq!(
                (&config["tokenizer_class"], &config["model_max_length"]),
                (&"PreTrainedTokenizerFast".into(), &32.into())
            );
            assert_eq!((files.len(), &files["special_tokens_map.json"]), (3, &serde_json::json!({})));
            assert!(config.as_object().unwrap().keys().all(|key| !key.ends_with("_token")), "{config}");
            assert!(config.get("auto_map").is_none(), "{config}");
        }
        assert_eq!(tokenizer.end_of_text(), None);
        // For a qwen2 it would take Qwen's tokenizer.
        let files = pretrained(&tokenizer, "qwen2");
        let class = serde_json::json!({"AutoTokenizer": [null, "pipeline_tokenizer.PipelineTokenizer"]});
        assert_eq!(files["tokenizer_config.json"]["auto_map"], class);
        let source = files["pipeline_tokenizer.py"].as_str().unwrap();
        assert!(source.contains("class PipelineTokenizer(PreTrainedTokenizerFast)"), "{source}");
    }
    let gpt2 = load(&with_added_token(5, "<|endoftext|>")).unwrap();
    let files = pretrained(&gpt2, "gpt2");
    let tokens = serde_json::json!({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"});
    assert_eq!(
        (&files["special_tokens_map.json"], &files["tokenizer_config.json"]["eos_token"]),
        (&tokens, &tokens["eos_token"])
    );
    assert_eq!(gpt2.end_of_text(), Some((5, "<|endoftext|>")));
}

#[test]
fn special_tokens_are_those_that_the_tokenizer_was_loaded_with() {
    let folder = tempdir().unwrap();
    let write = |name: &str, value: &Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let mut document = with_added_token(5, "<eos>");
    document["added_tokens"].as_array_mut().unwrap().push(recipe::special_token(6, "</s>"));
    write("tokenizer.json", &document);
    let config = serde_json::json!({
        "tokenizer_class": "LlamaTokenizer", "bos_token": null, "eos_token": {"content": "<eos>", "lstrip": false},
        "unk_token": "a", "pad_token": "<pad>", "additional_special_tokens": ["</s>", "<none>"],
        "padding_side": "left", "model_max_length": 7, "chat_template": "x",
    });
    write("tokenizer_config.json", &config);
    let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
    // Declared, where by its name it would be another.
    assert_eq!((tokenizer.end_of_text(), tokenizer.end_of_text_by_name()), (Some((5, "<eos>")), Some((6, "</s>"))));
    assert_eq!((tokenizer.special_token("pad_token"), tokenizer.special_token("bos_token")), (None, None));
    assert!(tokenizer.is_special(5) && !tokenizer.is_special(0));
    let expected = serde_json::json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": null,
        "eos_token": {"content": "<eos>", "lstrip": false}, "unk_token": "a", "additional_special_tokens": ["</s>"],
        "padding_side": "left", "model_max_length": 32, "clean_up_tokenization_spaces": false,
    });
    let files = pretrained(&tokenizer, "llama");
    assert_eq!(files["tokenizer_config.json"], expected);
    // What is written is read as the same, to the byte.
    let files = tokenizer.pretrained_files(32, "llama").unwrap();
    for (name, text) in &files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(Tokenizer::from_folder(folder.path()).unwrap().pretrained_files(32, "llama").unwrap(), files);
}

#[test]
fn what_a_pipeline_puts_before_texts_is_told_and_no_part_of_them() {
    let mut document = with_added_token(5, "<s>");
    assert!(load(&document).unwrap().begin_of_text().unwrap().is_empty());
    let special = |id: &str| serde_json::json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let template = |single: Value| {
        let token = serde_json::json!({"id": "<s>", "ids": [5], "tokens": ["<s>"]});
        let special = serde_json::json!({"<s>": token});
        serde_json::json!({"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special})
    };
    for (single, first) in [
        (serde_json::json!([special("<s>"), text]), vec![5]),
        (serde_json::json!([text, special("<s>")]), vec![]),
        (serde_json::json!([special("<s>"), special("<s>"), text, special("<s>")]), vec![5, 5]),
    ] {
        document["post_processor"] = template(single);
        let tokenizer = load(&document).unwrap();
        assert_eq!(tokenizer.begin_of_text().unwrap(), first);
        assert_eq!(tokenizer.encode("ab").unwrap(), [0, 1]);
    }
}

/// Five characters, and a special token.
fn with_added_token(id: u32, content: &str) -> Value {
    let mut document = recipe::char_vocabulary("abcde".chars().collect());
    document["added_tokens"] = serde_json::json!([{
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    }]);
    document
}
