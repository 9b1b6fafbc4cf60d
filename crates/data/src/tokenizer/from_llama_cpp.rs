//! Builds a `tokenizer.json` from what llama.cpp's files hold of a tokenizer: the opposite of `llama_cpp.rs`.
//!
//! - `gpt2` is byte-level BPE: a vocabulary, merges, and the name of the pattern that cuts pre-tokens.
//! - `llama` is SentencePiece's BPE: a vocabulary with scores. The merges are all pairs of tokens that make a token, by
//!   its score, as transformers converts them. Bytes without a token fall back to `<0x00>` to `<0xFF>`.

use super::segment::META_SPACE;
use super::{Tokenizer, splitter};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

/// The types of tokens (`llama_token_type`).
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Limits of SentencePiece's vocabularies, far above those of language models: a file may be hostile.
const MOST_TOKEN_BYTES: usize = 256;
const MOST_MERGES_PER_TOKEN: usize = 64;

/// A tokenizer as a file of llama.cpp holds it, by the names of its keys (`tokenizer.ggml.*`).
#[derive(Debug, Clone, Default)]
pub struct LlamaCppVocabulary {
    pub model: String,
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// As many as there are tokens, or none: all are normal.
    pub token_type: Vec<i32>,
    pub scores: Vec<f32>,
    pub merges: Vec<String>,
    pub bos_token_id: Option<u32>,
    pub eos_token_id: Option<u32>,
    pub add_bos_token: Option<bool>,
    pub add_eos_token: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

impl LlamaCppVocabulary {
    /// The text of a `tokenizer.json`.
    ///
    /// # Errors
    /// If there is no such pipeline: why.
    pub fn to_tokenizer_json(&self) -> Result<String, String> {
        let count = self.tokens.len();
        let is_whole = |length: usize| length == 0 || length == count;
        if count == 0 || !is_whole(self.token_type.len()) || !is_whole(self.scores.len()) {
            return Err("tokenizer.ggml.tokens, token_type and scores do not have the same length".into());
        }
        let document = match self.model.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => return Err(format!("tokenizer.ggml.model is {other:?}; gpt2 and llama are read")),
        };
        let text = document.to_string();
        Tokenizer::from_bytes("its tokenizer", text.as_bytes()).map_err(|e| e.to_string())?;
        Ok(text)
    }

    /// The text of a token.
    pub fn token(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(id? as usize).map(String::as_str)
    }

    /// The ids of tokens that end an answer: those that the file names, and control tokens that llama.cpp knows as
    /// such.
    pub fn ends(&self, eot_token_id: Option<u32>) -> Vec<u32> {
        const KNOWN: [&str; 7] =
            ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"];
        let known =
            (0..).zip(&self.tokens).filter(|(id, text)| self.is(*id, CONTROL) && KNOWN.contains(&text.as_str()));
        let mut ends: Vec<u32> = Vec::new();
        for id in self.eos_token_id.into_iter().chain(eot_token_id).chain(known.map(|(id, _)| id)) {
            if !ends.contains(&id) && (id as usize) < self.tokens.len() {
                ends.push(id);
            }
        }
        ends
    }

    fn is(&self, id: u32, kind: i32) -> bool {
        self.token_type.get(id as usize) == Some(&kind)
    }

    fn byte_level(&self) -> Result<Value, String> {
        let pre = self.pre.as_deref().unwrap_or("default");
        let bytes = |use_regex: bool| {
            json!({
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex,
            })
        };
        let split = |pattern: &str| {
            let split =
                json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
            json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
        };
        let is_llama3 = matches!(pre, "llama-bpe" | "llama3" | "llama-v3");
        let pre_tokenizer = match pre {
            "gpt-2" | "gpt2" | "phi-2" => bytes(true),
            "smollm" | "starcoder" | "refact" | "command-r" => {
                let digits = json!({"type": "Digits", "individual_digits": true});
                json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]})
            }
            _ if is_llama3 => split(splitter::pattern_of_llama_cpp("llama-bpe").unwrap_or_default()),
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" => {
                split(splitter::pattern_of_llama_cpp("qwen2").unwrap_or_default())
            }
            other => {
                return Err(format!(
                    "tokenizer.ggml.pre is {other:?}; gpt-2, smollm, starcoder, llama-bpe and qwen2 are known"
                ));
            }
        };
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": is_llama3,
            "vocab": self.vocabulary(), "merges": self.merges,
        });
        let parts = [Value::Null, pre_tokenizer, bytes(true)];
        Ok(self.document(model, parts, self.add_bos_token.unwrap_or(is_llama3)))
    }

    fn sentence_piece(&self) -> Result<Value, String> {
        if self.scores.is_empty() {
            return Err("has no tokenizer.ggml.scores".into());
        }
        if let Some(long) = self.tokens.iter().find(|token| token.len() > MOST_TOKEN_BYTES) {
            return Err(format!(
                "has a token of {} bytes; SentencePiece's have at most {MOST_TOKEN_BYTES}",
                long.len()
            ));
        }
        let merges = self.merges_by_score();
        if merges.len() > MOST_MERGES_PER_TOKEN * self.tokens.len() {
            return Err(format!("has {} pairs of tokens that make a token, too many for a vocabulary", merges.len()));
        }
        let unknown = (0..).zip(&self.tokens).find(|(id, _)| self.is(*id, UNKNOWN)).map(|(_, text)| text);
        let has_bytes = self.tokens.iter().any(|token| token == "<0x00>");
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": has_bytes, "ignore_merges": false,
            "vocab": self.vocabulary(), "merges": merges,
        });
        let adds_space = self.add_space_prefix.unwrap_or(true);
        let prepend = adds_space.then(|| json!({"type": "Prepend", "prepend": META_SPACE.to_string()}));
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let space = META_SPACE.to_string();
        let normalizers: Vec<Value> = prepend.into_iter().chain([replace(" ", &space)]).collect();
        let strip = adds_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        let decoders: Vec<Value> = [replace(&space, " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})]
            .into_iter()
            .chain(strip)
            .collect();
        let parts = [
            json!({"type": "Sequence", "normalizers": normalizers}),
            Value::Null,
            json!({"type": "Sequence", "decoders": decoders}),
        ];
        Ok(self.document(model, parts, self.add_bos_token.unwrap_or(true)))
    }

    /// Every text with its id; of equal texts the first id counts.
    fn vocabulary(&self) -> HashMap<&str, u32> {
        let mut vocabulary = HashMap::new();
        for (id, text) in (0..).zip(&self.tokens).filter(|(id, _)| !self.is(*id, UNUSED)) {
            vocabulary.entry(text.as_str()).or_insert(id);
        }
        vocabulary
    }

    /// All pairs of tokens that make a token: those of the highest score first, of one token by the ids of the pair.
    fn merges_by_score<'v>(&'v self) -> Vec<String> {
        let vocabulary = self.vocabulary();
        let is_merged = |id: u32| !self.is(id, CONTROL) && !self.is(id, UNKNOWN) && !self.is(id, USER_DEFINED);
        let pairs_of = |(text, id): (&'v str, u32)| {
            let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
            let ids = |part: &str| vocabulary.get(part).copied().filter(|id| is_merged(*id));
            let pairs = cuts.filter_map(|(left, right)| Some(((ids(left)?, ids(right)?), (left, right))));
            let score = self.scores[id as usize];
            pairs.map(|(ids, pair)| (score, id, ids, pair)).collect::<Vec<_>>()
        };
        let merged: Vec<(&str, u32)> =
            vocabulary.iter().map(|(text, id)| (*text, *id)).filter(|(_, id)| is_merged(*id)).collect();
        let mut merges: Vec<_> = merged.into_par_iter().flat_map_iter(pairs_of).collect();
        merges.par_sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        merges.into_iter().map(|(.., (left, right))| format!("{left} {right}")).collect()
    }

    fn document(&self, model: Value, [normalizer, pre_tokenizer, decoder]: [Value; 3], adds_begin: bool) -> Value {
        let added: Vec<Value> = (0..)
            .zip(&self.tokens)
            .filter(|(id, text)| (self.is(*id, CONTROL) || self.is(*id, USER_DEFINED)) && !text.is_empty())
            .map(|(id, text)| {
                json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": self.is(id, CONTROL),
                })
            })
            .collect();
        let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let begin = self.bos_token_id.filter(|_| adds_begin);
        let end = self.eos_token_id.filter(|_| self.add_eos_token.unwrap_or(false));
        let [begin, end] = [begin, end].map(|id| Some((id?, self.token(id)?)));
        let around = [begin, end].into_iter().flatten();
        let tokens = around.map(|(id, text)| (text.to_string(), json!({"id": text, "ids": [id], "tokens": [text]})));
        let tokens: serde_json::Map<String, Value> = tokens.collect();
        let mut single = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
        begin.iter().for_each(|(_, text)| single.insert(0, special(text)));
        end.iter().for_each(|(_, text)| single.push(special(text)));
        let post_processor = (!tokens.is_empty()).then(|| {
            json!({
                "type": "TemplateProcessing", "single": single, "special_tokens": tokens,
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            })
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer goes to llama.cpp and comes back with the same ids.
    #[test]
    fn a_byte_level_vocabulary_comes_back() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer");
        let tokenizer = Tokenizer::from_file(&folder.join("bpe.json")).unwrap();
        let there = tokenizer.for_llama_cpp(tokenizer.vocab_size()).unwrap();
        let (tokens, token_type) = there.tokens.iter().map(|(text, kind)| (text.clone(), *kind as i32)).unzip();
        let back = LlamaCppVocabulary {
            model: there.model.into(),
            pre: Some(there.pre.into()),
            tokens,
            token_type,
            merges: there.merges.clone(),
            ..LlamaCppVocabulary::default()
        };
        let back = Tokenizer::from_bytes("back", back.to_tokenizer_json().unwrap().as_bytes()).unwrap();
        for text in ["the fox sees  the red fox\n", "", " ", "ÿ\u{1f600}1234 it's", "<|endoftext|>a"] {
            assert_eq!(back.encode(text).unwrap(), tokenizer.encode(text).unwrap(), "{text:?}");
        }
        assert!(back.difference(&tokenizer).is_none());
    }

    /// Pairs are merged by the score of what they make, spaces are `▁`, and bytes stand for what has no token.
    #[test]
    fn sentence_piece_merges_by_score() {
        let mut tokens: Vec<(String, i32, f32)> =
            [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0)].map(|(t, k, s)| (t.into(), k, s)).into();
        tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
        let scored = [("▁a", -2.0), ("ab", -1.0), ("▁ab", -3.0), ("▁", -10.0), ("a", -11.0), ("b", -12.0)];
        tokens.extend(scored.map(|(text, score)| (text.to_string(), 1, score)));
        let mut vocabulary = LlamaCppVocabulary {
            model: "llama".into(),
            tokens: tokens.iter().map(|(text, ..)| text.clone()).collect(),
            token_type: tokens.iter().map(|(_, kind, _)| *kind).collect(),
            scores: tokens.iter().map(|(.., score)| *score).collect(),
            bos_token_id: Some(1),
            eos_token_id: Some(2),
            ..LlamaCppVocabulary::default()
        };
        assert_eq!(vocabulary.merges_by_score(), ["a b", "▁ a", "▁a b", "▁ ab"]);
        let built =
            |v: &LlamaCppVocabulary| Tokenizer::from_bytes("x", v.to_tokenizer_json().unwrap().as_bytes()).unwrap();
        let (space, a) = (262, 263);
        let ids = |text: &str| built(&vocabulary).encode(text).unwrap();
        assert_eq!(ids("ab"), [261]);
        assert_eq!(ids("a a"), [259, 259]);
        assert_eq!(ids("é"), [space, 3 + 0xc3, 3 + 0xa9]);
        assert_eq!(built(&vocabulary).decode(&[259, 260]).unwrap(), "aab");
        assert_eq!(vocabulary.ends(None), [2]);
        vocabulary.add_space_prefix = Some(false);
        assert_eq!(built(&vocabulary).encode("a").unwrap(), [a]);
    }

    #[test]
    fn unsupported_vocabularies_are_refused() {
        let refused = |vocabulary: LlamaCppVocabulary, told: &str| {
            let error = vocabulary.to_tokenizer_json().unwrap_err();
            assert!(error.contains(told), "{error}");
        };
        let of = |model: &str, pre: &str| LlamaCppVocabulary {
            model: model.into(),
            pre: Some(pre.into()),
            tokens: vec!["a".into()],
            ..LlamaCppVocabulary::default()
        };
        refused(of("bert", ""), "tokenizer.ggml.model is \"bert\"");
        refused(of("gpt2", "tekken"), "tokenizer.ggml.pre is \"tekken\"");
        refused(of("llama", ""), "has no tokenizer.ggml.scores");
        let scored =
            |tokens: Vec<String>| LlamaCppVocabulary { scores: vec![0.0; tokens.len()], tokens, ..of("llama", "") };
        refused(scored(vec!["a".repeat(300)]), "has a token of 300 bytes");
        refused(scored((1..=200).map(|n| "a".repeat(n)).collect()), "pairs of tokens that make a token, too many");
        refused(LlamaCppVocabulary { merges: vec!["a b c".into()], ..of("gpt2", "gpt-2") }, "its tokenizer");
        refused(LlamaCppVocabulary { token_type: vec![1, 1], ..of("gpt2", "gpt-2") }, "do not have the same length");
    }
}
