//! The pipelines of our own tokenizers, written as `tokenizer.json` documents.
//!
//! - char: each character is a pre-token, looked up as a word.
//! - word: line breaks become `<eos>`, white space splits, words are looked up.
//! - byte-level BPE: GPT-2's (Radford et al. 2019). A pattern splits text, bytes are written as printable characters,
//!   and pairs are merged in the order in which training found them.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::{chunks, error};
use crate::error::{Error, Result};

/// The end of a line, and a word outside the vocabulary, as WikiText writes them.
pub(super) const EOS: &str = "<eos>";
const UNKNOWN: &str = "<unk>";

/// The token that separates documents in GPT-2's vocabulary.
const END_OF_TEXT: &str = "<|endoftext|>";

fn document(normalizer: Value, pre_tokenizer: Value, decoder: Value, model: Value) -> Value {
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": decoder,
        "model": model,
    })
}

/// Splits between all characters. The pattern is not `.`, which leaves line breaks out.
pub(super) fn char_pre_tokenizer() -> Value {
    json!({"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": false})
}

pub(super) fn char_decoder() -> Value {
    json!({"type": "Fuse"})
}

/// Every character of the texts, in order of code point.
pub(super) fn char_document<'a>(texts: impl Iterator<Item = &'a String>) -> Value {
    let mut chars: Vec<char> = texts.flat_map(|text| text.chars()).collect::<HashSet<char>>().into_iter().collect();
    chars.sort_unstable();
    let vocab: Map<String, Value> = chars.iter().zip(0..).map(|(c, id)| (c.to_string(), json!(id))).collect();
    // The format asks for a name of the unknown token. It is not in the vocabulary, so unknown characters are errors.
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN});
    document(Value::Null, char_pre_tokenizer(), char_decoder(), model)
}

pub(super) fn word_normalizer() -> Value {
    json!({"type": "Replace", "pattern": {"String": "\n"}, "content": format!(" {EOS} ")})
}

pub(super) fn word_pre_tokenizer() -> Value {
    json!({"type": "WhitespaceSplit"})
}

/// Puts a space between words and none around line breaks.
pub(super) fn word_decoder() -> Value {
    let replace = |pattern: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": "\n"});
    json!({"type": "Sequence", "decoders": [
        replace(EOS),
        // Joins by spaces. Continuations would begin with the prefix, and no word holds a space.
        {"type": "WordPiece", "prefix": " ", "cleanup": false},
        {"type": "Fuse"},
        replace(" \n"),
        replace("\n "),
    ]})
}

/// Every word of the texts, `<eos>` and `<unk>`; the most frequent first, equals in order of appearance.
pub(super) fn word_document<'a>(texts: impl Iterator<Item = &'a String>) -> Value {
    let mut order = vec![EOS];
    let mut counts = HashMap::from([(EOS, 0_u64)]);
    for text in texts {
        for line in text.split_inclusive('\n') {
            let end = line.ends_with('\n').then_some(EOS);
            for word in line.split_whitespace().chain(end) {
                *counts.entry(word).or_insert_with(|| {
                    order.push(word);
                    0
                }) += 1;
            }
        }
    }
    if !counts.contains_key(UNKNOWN) {
        order.push(UNKNOWN);
        counts.insert(UNKNOWN, 0);
    }
    order.sort_by_key(|word| std::cmp::Reverse(counts[word]));
    let vocab: Map<String, Value> = order.iter().zip(0..).map(|(word, id)| (word.to_string(), json!(id))).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN});
    document(word_normalizer(), word_pre_tokenizer(), word_decoder(), model)
}

fn byte_level_document(vocab: Value, merges: Value) -> Value {
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let model = json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "vocab": vocab,
        "merges": merges,
    });
    document(Value::Null, byte_level.clone(), byte_level, model)
}

/// Trains byte-level BPE. The same text and size give the same tokenizer: equal counts are decided by the lower ids.
pub(super) fn train_bpe(text: &str, vocab_size: usize) -> Result<tokenizers::Tokenizer> {
    let failed = |cause: tokenizers::Error| error("bpe", cause.to_string());
    if vocab_size < 256 {
        let message = format!("vocab_size must be at least 256, one token per byte, got {vocab_size}");
        return Err(error("bpe", message));
    }
    let empty = byte_level_document(json!({}), json!([]));
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(empty.to_string()).map_err(failed)?;
    let mut trainer = TrainerWrapper::from(
        BpeTrainer::builder()
            .vocab_size(vocab_size)
            // A pair that occurs once teaches nothing.
            .min_frequency(2)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build(),
    );
    tokenizer.train(&mut trainer, chunks(text).into_iter()).map_err(failed)?;
    Ok(tokenizer)
}

/// Reads `vocab.json` and `merges.txt`, GPT-2's own format.
pub(super) fn read_vocab_and_merges(folder: &Path) -> Result<Value> {
    let read = |name: &str| {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let text = String::from_utf8(bytes).map_err(|_| error(&path.display().to_string(), "not UTF-8".to_string()))?;
        Ok::<_, Error>((path.display().to_string(), text))
    };
    let (path, vocab) = read("vocab.json")?;
    let vocab: Map<String, Value> = serde_json::from_str(&vocab)
        .map_err(|cause| error(&path, format!("expected an object of tokens and ids: {cause}")))?;
    let (path, text) = read("merges.txt")?;
    let mut merges = vec![];
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || (number == 0 && line.starts_with("#version")) {
            continue;
        }
        match line.split(' ').collect::<Vec<_>>()[..] {
            [left, right] => merges.push(json!([left, right])),
            _ => return Err(error(&path, format!("line {}: expected two tokens, got {line:?}", number + 1))),
        }
    }
    let end_of_text = vocab.get(END_OF_TEXT).cloned();
    let mut document = byte_level_document(Value::Object(vocab), Value::Array(merges));
    if let Some(id) = end_of_text {
        document["added_tokens"] = json!([{
            "id": id,
            "content": END_OF_TEXT,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": true,
        }]);
    }
    Ok(document)
}

/// The character that stands for a byte in byte-level vocabularies: itself if it is printable, otherwise the next of
/// those from U+0100 on (`bytes_to_unicode` in OpenAI's encoder.py).
pub(super) fn symbol_of(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("U+0100 to U+01FF are characters")
}

/// The bytes that a token of a byte-level vocabulary stands for; `None` if it is not made of byte symbols.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    static BYTES: std::sync::LazyLock<HashMap<char, u8>> =
        std::sync::LazyLock::new(|| (0..=255).map(|byte| (symbol_of(byte), byte)).collect());
    token.chars().map(|symbol| BYTES.get(&symbol).copied()).collect()
}
