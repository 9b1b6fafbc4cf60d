//! Detects pipelines that have a faster encoder here.

use super::segment::{Boundary, META_SPACE};
use super::splitter::{self, Splitter};
use super::{Kind, recipe};
use serde_json::{Value, json};
use std::collections::HashMap;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{AddedToken, DecoderWrapper, PreTokenizerWrapper, Tokenizer};

/// How the pipeline's texts become ids, and where they may be cut.
pub(super) fn recognise(inner: &Tokenizer, vocab: &HashMap<String, u32>) -> (Kind, Boundary) {
    let other = (Kind::Other, Boundary::Nowhere);
    // Added tokens that look at what is around them could see the end of a segment.
    let is_spaced = |token: &AddedToken| token.content.contains(char::is_whitespace);
    if looks_around(inner) || inner.get_added_tokens_decoder().values().any(is_spaced) {
        return other;
    }
    let known = match inner.get_model() {
        ModelWrapper::WordLevel(model) => chars(inner, vocab, &model.unk_token)
            .or_else(|| words(inner, vocab, &model.unk_token))
            .or_else(|| spaces(inner, vocab)),
        ModelWrapper::BPE(model) => byte_level(inner, vocab, model).or_else(|| spaces(inner, vocab)),
        _ => spaces(inner, vocab),
    };
    known.unwrap_or(other)
}

/// Whether matching an added token depends on its neighbours.
pub(super) fn looks_around(inner: &Tokenizer) -> bool {
    inner.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip || token.single_word)
}

/// Whether it is byte-level BPE but for added tokens with white space in them.
pub(super) fn is_byte_level_with_spaced_tokens(inner: &Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = inner.get_model() else { return false };
    !looks_around(inner) && byte_level(inner, &inner.get_vocab(true), model).is_some()
}

/// A part of a pipeline as it is written; null if it is not there.
fn part(part: Option<impl serde::Serialize>) -> Value {
    serde_json::to_value(part).unwrap_or(Value::Null)
}

/// Whether a text that does not begin with a space gets one.
pub(super) fn adds_space(inner: &Tokenizer) -> bool {
    fn adds(part: &Value) -> bool {
        match part {
            Value::Array(parts) => parts.iter().any(adds),
            Value::Object(keys) => match keys.get("type").and_then(Value::as_str) {
                Some("Prepend") => true,
                Some("Metaspace") => keys.get("prepend_scheme") != Some(&"never".into()),
                Some("ByteLevel") => keys.get("add_prefix_space") == Some(&true.into()),
                _ => keys.values().any(adds),
            },
            _ => false,
        }
    }
    adds(&part(inner.get_normalizer())) || adds(&part(inner.get_pre_tokenizer()))
}

fn chars(inner: &Tokenizer, vocab: &HashMap<String, u32>, unknown: &str) -> Option<(Kind, Boundary)> {
    let fits = inner.get_normalizer().is_none()
        && part(inner.get_pre_tokenizer()) == recipe::char_pre_tokenizer()
        && part(inner.get_decoder()) == recipe::char_decoder();
    let single = |token: &str| {
        let mut chars = token.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    let ids = vocab.iter().filter_map(|(token, id)| Some((single(token)?, *id))).collect();
    fits.then(|| (Kind::Char { ids, unknown: vocab.get(unknown).copied() }, Boundary::Anywhere))
}

fn words(inner: &Tokenizer, vocab: &HashMap<String, u32>, unknown: &str) -> Option<(Kind, Boundary)> {
    let fits = part(inner.get_normalizer()) == recipe::word_normalizer()
        && part(inner.get_pre_tokenizer()) == recipe::word_pre_tokenizer()
        && part(inner.get_decoder()) == recipe::word_decoder();
    let (eos, unknown) = (*vocab.get(recipe::EOS)?, *vocab.get(unknown)?);
    fits.then(|| (Kind::Word { ids: vocab.clone(), eos, unknown }, Boundary::Word))
}

fn byte_level(inner: &Tokenizer, vocab: &HashMap<String, u32>, model: &BPE) -> Option<(Kind, Boundary)> {
    let normalizer = part(inner.get_normalizer());
    let normalizes = normalizer == json!({"type": "NFC"});
    if !(normalizer.is_null() || normalizes)
        || model.dropout.is_some_and(|dropout| dropout > 0.0)
        || !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)))
    {
        return None;
    }
    let splitter = Splitter::new(&pattern(inner)?)?;
    let missing = (0..=255).filter(|byte| !vocab.contains_key(&recipe::symbol_of(*byte).to_string())).collect();
    Some((Kind::ByteLevel { missing, normalizes }, Boundary::Pattern(Box::new(splitter))))
}

/// Whether it is byte-level BPE with GPT-2's pattern, of which every digit is a pre-token: SmolLM's and StarCoder's.
pub(super) fn is_byte_level_by_digits(inner: &Tokenizer) -> bool {
    let document = part(inner.get_pre_tokenizer());
    let Some([digits, bytes]) = document["pretokenizers"].as_array().map(Vec::as_slice) else { return false };
    let cuts = digits["type"] == "Digits" && digits["individual_digits"] == true;
    let is_plain = bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] == false && bytes["use_regex"] == true;
    let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(model) if model.dropout.is_none_or(|d| d == 0.0));
    let decodes = matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
    cuts && is_plain && is_bpe && decodes && inner.get_normalizer().is_none() && !looks_around(inner)
}

/// The pattern by which a byte-level pre-tokenizer splits.
pub(super) fn pattern(inner: &Tokenizer) -> Option<String> {
    match inner.get_pre_tokenizer()? {
        PreTokenizerWrapper::ByteLevel(bytes) => {
            (bytes.use_regex && !bytes.add_prefix_space).then(|| splitter::GPT2.to_string())
        }
        sequence @ PreTokenizerWrapper::Sequence(_) => {
            let document = part(Some(sequence));
            let [split, bytes] = document["pretokenizers"].as_array()?.as_slice() else { return None };
            let splits = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] == false;
            let is_plain =
                bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] == false && bytes["use_regex"] == false;
            (splits && is_plain).then(|| split["pattern"]["Regex"].as_str().map(str::to_string))?
        }
        _ => None,
    }
}

fn spaces(inner: &Tokenizer, vocab: &HashMap<String, u32>) -> Option<(Kind, Boundary)> {
    let Some(PreTokenizerWrapper::Metaspace(spaces)) = inner.get_pre_tokenizer() else { return None };
    // Without pre-tokens, merges know no bounds but those of the vocabulary.
    let is_bounded = match inner.get_model() {
        ModelWrapper::BPE(model) => {
            let begins_or_lacks = |token: &String| !token.trim_start_matches(META_SPACE).contains(META_SPACE);
            !model.ignore_merges && vocab.contains_key(&META_SPACE.to_string()) && vocab.keys().all(begins_or_lacks)
        }
        _ => false,
    };
    let draws = matches!(inner.get_model(), ModelWrapper::BPE(model) if model.dropout.is_some_and(|d| d > 0.0));
    if inner.get_normalizer().is_some()
        || draws
        || spaces.get_replacement() != META_SPACE
        || !(spaces.get_split() || is_bounded)
    {
        return None;
    }
    let prepend = spaces.get_prepend_scheme() != PrependScheme::Never;
    Some((Kind::Spaces { prepend, splits: spaces.get_split() }, Boundary::Space))
}
