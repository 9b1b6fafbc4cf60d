//! The pipelines of our own tokenizers, written as `tokenizer.json` documents.
//!
//! - char: each character is a pre-token, looked up as a word.
//! - word: line breaks become `<eos>`, white space splits, words are looked up.
//! - byte-level BPE: GPT-2's (Radford et al. 2019). A pattern splits text, bytes are written as printable characters,
//!   and pairs are merged in the order in which training found them.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::sync_channel;

use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model as _, Trainer as _};

use super::segment::{Boundary, Segmenter};
use super::splitter::{GPT2, Splitter};
use super::{BPE_SAMPLE_BYTES, encode, error};
use crate::corpus::{Corpus, Split};
use rustyflow_base::error::Result;

/// The end of a line, and a word outside the vocabulary, as WikiText writes them.
pub(super) const EOS: &str = "<eos>";
const UNKNOWN: &str = "<unk>";

/// The token that separates documents in GPT-2's vocabulary.
pub(super) const END_OF_TEXT: &str = "<|endoftext|>";

/// GPT-2's token as a special one, with this id.
fn end_of_text(id: impl Into<Value>) -> Value {
    special_token(id, END_OF_TEXT)
}

/// A token that is found in a text before it is split.
pub(super) fn special_token(id: impl Into<Value>, content: &str) -> Value {
    json!({
        "id": id.into(),
        "content": content,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
        "special": true,
    })
}

/// The token that separates documents, for a vocabulary of so many others, if the corpus has several documents.
fn separator(corpus: &Corpus, tokens: usize) -> Value {
    if corpus.has_documents() { json!([end_of_text(tokens)]) } else { json!([]) }
}

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

/// Every character of the corpus, in order of code point.
pub(super) fn char_document(corpus: &Corpus) -> Result<Value> {
    let mut chars = BTreeSet::new();
    for split in Split::ALL {
        corpus.read(split, &mut |piece| {
            if let Some(text) = piece.text() {
                chars.extend(text.chars());
            }
            Ok(())
        })?;
    }
    let mut document = char_vocabulary(chars);
    document["added_tokens"] = separator(corpus, document["model"]["vocab"].as_object().map_or(0, Map::len));
    Ok(document)
}

pub(super) fn char_vocabulary(chars: BTreeSet<char>) -> Value {
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

/// Every word of the corpus, `<eos>` and `<unk>`; the most frequent first, equals in order of appearance.
pub(super) fn word_document(corpus: &Corpus) -> Result<Value> {
    // As a word it would have an id of its own.
    let separates = corpus.has_documents();
    let mut order = vec![EOS.to_string()];
    let mut counts = HashMap::from([(EOS.to_string(), 0_u64)]);
    let mut count = |word: &str| match counts.get_mut(word) {
        Some(count) => *count += 1,
        None => {
            order.push(word.to_string());
            counts.insert(word.to_string(), 1);
        }
    };
    for split in Split::ALL {
        each_segment(corpus, split, &Boundary::Word, &mut |text| {
            for line in text.split_inclusive('\n') {
                let words = line.split_whitespace().filter(|word| !separates || *word != END_OF_TEXT);
                words.chain(line.ends_with('\n').then_some(EOS)).for_each(&mut count);
            }
            Ok(())
        })?;
    }
    if !counts.contains_key(UNKNOWN) {
        order.push(UNKNOWN.to_string());
        counts.insert(UNKNOWN.to_string(), 0);
    }
    order.sort_by_key(|word| std::cmp::Reverse(counts[word]));
    let tokens = order.len();
    let vocab: Map<String, Value> = order.into_iter().zip(0..).map(|(word, id)| (word, json!(id))).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN});
    let mut document = document(word_normalizer(), word_pre_tokenizer(), word_decoder(), model);
    document["added_tokens"] = separator(corpus, tokens);
    Ok(document)
}

/// The text of a split, cut only where `boundary` allows it.
fn each_segment(
    corpus: &Corpus,
    split: Split,
    boundary: &Boundary,
    take: &mut dyn FnMut(String) -> Result<()>,
) -> Result<()> {
    let mut segmenter = Segmenter::new(boundary, None);
    corpus.read(split, &mut |piece| match piece.text() {
        // Words at the edge of a prompt are those of the whole text: near enough to count them.
        Some(text) => segmenter.push(text, true, &mut |segment| take(segment.text)),
        None => segmenter.end_document(&mut |segment| take(segment.text)),
    })
}

pub(super) fn byte_level_document(vocab: Value, merges: Value) -> Value {
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

/// Longest pre-token in BPE training, bytes; longer ones are split into parts of this size. The library's training is
/// quadratic in the length, and pairs are as frequent in the parts.
const LONGEST_TRAINED: usize = 512;

/// Largest BPE vocabulary, far above any tokenizer's: training allocates memory for it in advance.
const MAX_BPE_VOCAB: usize = 1 << 24;

/// Trains byte-level BPE, on a sample of a long text. Deterministic: ties go to the lower ids.
pub(super) fn train_bpe(corpus: &Corpus, vocab_size: usize) -> Result<Value> {
    let failed = |cause: tokenizers::Error| error("bpe", cause.to_string());
    let separators = usize::from(corpus.has_documents());
    if vocab_size < 256 + separators {
        let least = 256 + separators;
        let message = format!("vocab_size must be at least {least}, one token per byte, got {vocab_size}");
        return Err(error("bpe", message));
    }
    if vocab_size > MAX_BPE_VOCAB {
        return Err(error("bpe", format!("vocab_size must be at most {MAX_BPE_VOCAB}, got {vocab_size}")));
    }
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab_size - separators)
        // A pair that occurs once teaches nothing.
        .min_frequency(2)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let boundary = Boundary::Pattern(Box::new(Splitter::new(GPT2).expect("it is known")));
    let Boundary::Pattern(splitter) = &boundary else { unreachable!() };
    let symbols = encode::symbols();
    let words = |text: &str| {
        let mut words = vec![];
        splitter.split(&mut splitter.cache(), text, |token| {
            let parts = token.as_bytes().chunks(LONGEST_TRAINED);
            words.extend(parts.map(|part| part.iter().map(|byte| symbols[usize::from(*byte)]).collect()));
        });
        Ok(words)
    };
    let (sender, segments) = sync_channel::<String>(16);
    let (fed, read) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let sender = sender; // dropped at the end, which ends the training text
            let mut sample = Sample::new(corpus.bytes());
            each_segment(corpus, Split::Train, &boundary, &mut |text| {
                if sample.takes(text.len()) {
                    // It fails only if the trainer has failed, which says why.
                    let _ = sender.send(text);
                }
                Ok(())
            })
        });
        let fed = trainer.feed(segments.into_iter(), words);
        (fed, reader.join().expect("reading does not panic"))
    });
    read?;
    fed.map_err(failed)?;
    let mut model = BPE::default();
    trainer.train(&mut model).map_err(failed)?;
    let tokens = model.get_vocab_size();
    let model = serde_json::to_value(&model).map_err(|cause| error("bpe", cause.to_string()))?;
    let mut document = byte_level_document(model["vocab"].clone(), model["merges"].clone());
    document["added_tokens"] = separator(corpus, tokens);
    Ok(document)
}

/// Takes parts of a text, evenly spread, of [`BPE_SAMPLE_BYTES`] in all.
struct Sample {
    share: f64,
    seen: f64,
    taken: f64,
}

impl Sample {
    fn new(bytes: u64) -> Sample {
        Sample { share: (BPE_SAMPLE_BYTES as f64 / bytes.max(1) as f64).min(1.0), seen: 0.0, taken: 0.0 }
    }

    fn takes(&mut self, bytes: usize) -> bool {
        self.seen += bytes as f64;
        let takes = self.taken + bytes as f64 <= self.seen * self.share;
        self.taken += if takes { bytes as f64 } else { 0.0 };
        takes
    }
}

/// The character of a byte in byte-level vocabularies: itself if it is printable, otherwise the next of those from
/// U+0100 on (`bytes_to_unicode` in OpenAI's encoder.py).
pub(super) fn symbol_of(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before).expect("U+0100 to U+01FF are characters")
}

/// The bytes of a token in a byte-level vocabulary; `None` if it has other characters than byte symbols.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    static BYTES: std::sync::LazyLock<HashMap<char, u8>> =
        std::sync::LazyLock::new(|| (0..=255).map(|byte| (symbol_of(byte), byte)).collect());
    token.chars().map(|symbol| BYTES.get(&symbol).copied()).collect()
}
