//! Converts a tokenizer for llama.cpp: a vocabulary, and the name of an algorithm that is built into llama.cpp.
//!
//! - Byte-level BPE is its model `gpt2`, with the merges and the name of the pattern that cuts pre-tokens.
//! - Characters are its model `llama` (SentencePiece), which merges what the vocabulary holds: nothing, here. Spaces
//!   are `▁` there.
//!
//! If a file declares no end of text, llama.cpp assumes id 2 or 11, and would stop at a character with that id. So one
//! is always declared: the tokenizer's, or an id that no text has.

use super::segment::META_SPACE;
use super::{Kind, Tokenizer, error, recipe, recognise, splitter};
use rustyflow_base::error::Result;
use serde_json::Value;
use tokenizers::models::ModelWrapper;

/// Type of a token (`llama_token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    Normal = 1,
    /// A control token, without text.
    Control = 3,
    /// An added token with a text.
    UserDefined = 4,
    /// A row without a token.
    Unused = 5,
}

/// A tokenizer in llama.cpp's terms.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaCppTokenizer {
    /// `gpt2` or `llama` (`tokenizer.ggml.model`).
    pub model: &'static str,
    /// The pattern that cuts pre-tokens (`tokenizer.ggml.pre`).
    pub pre: &'static str,
    /// Text and type of each row of the model, and perhaps of an additional end-of-text token.
    pub tokens: Vec<(String, TokenKind)>,
    /// Merges in order of priority, as pairs separated by a space.
    pub merges: Vec<String>,
    /// The beginning-of-text token, and whether it is added to every text.
    pub begin: u32,
    pub adds_begin: bool,
    /// The end-of-text token.
    pub end: u32,
    /// Ids that must never be sampled: rows without a token, and an untrained end of text.
    pub suppressed: Vec<u32>,
}

impl Tokenizer {
    /// Converts the tokenizer for llama.cpp, for a model with this number of rows.
    ///
    /// # Errors
    /// If llama.cpp has no such tokenizer, with the reason.
    pub fn for_llama_cpp(&self, rows: usize) -> Result<LlamaCppTokenizer> {
        let refused = |why: &str| {
            let other = "--format safetensors keeps tokenizer.json as it is";
            error(&self.name, format!("llama.cpp has no such tokenizer: {why}; {other}"))
        };
        let (model, pre, merges) = match &self.kind {
            Kind::Char { unknown: Some(_), .. } => return Err(refused("it has a token for unknown characters")),
            // ▁ would be read back as a space.
            Kind::Char { ids, .. } if ids.contains_key(&META_SPACE) => {
                return Err(refused(&format!("the vocabulary has {META_SPACE:?}, which stands for a space there")));
            }
            Kind::Char { .. } => ("llama", "default", vec![]),
            Kind::ByteLevel { .. } => ("gpt2", self.pre_tokenizer().map_err(|why| refused(&why))?, self.merges()),
            // An added token with white space in it is one there too.
            Kind::Other
                if recognise::is_byte_level_with_spaced_tokens(&self.inner)
                    || recognise::is_byte_level_by_digits(&self.inner) =>
            {
                ("gpt2", self.pre_tokenizer().map_err(|why| refused(&why))?, self.merges())
            }
            Kind::Word { .. } => {
                return Err(refused("it cuts text into words at white space, which words are not part of"));
            }
            Kind::Spaces { .. } => {
                return Err(refused("it is SentencePiece's, whose scores tokenizer.json does not hold"));
            }
            Kind::Other if recognise::looks_around(&self.inner) => {
                return Err(refused("an added token takes the white space beside it, or is a word of its own"));
            }
            Kind::Other => return Err(refused("its pipeline is neither char, byte-level BPE nor one that is known")),
        };
        let mut tokens = self.tokens(rows, model == "llama").map_err(|why| refused(&why))?;
        let before = self.begin_of_text()?;
        if before.len() > 1 {
            return Err(refused(&format!("it adds {} tokens before every text, llama.cpp at most one", before.len())));
        }
        let mut suppressed: Vec<u32> =
            (0..).zip(&tokens).filter(|(_, (_, kind))| *kind == TokenKind::Unused).map(|(id, _)| id).collect();
        let end = self.end_of_text().map(|(id, _)| id);
        let end = end.unwrap_or_else(|| {
            let end = self.never_in_text(&suppressed).unwrap_or(tokens.len() as u32);
            tokens.resize(tokens.len().max(end as usize + 1), (String::new(), TokenKind::Unused));
            if !suppressed.contains(&end) {
                suppressed.push(end);
            }
            // llama.cpp knows it by this name. A byte keeps its own: it is part of the alphabet.
            if tokens[end as usize].1 == TokenKind::Unused {
                tokens[end as usize] = (recipe::END_OF_TEXT.to_string(), TokenKind::Control);
            }
            end
        });
        let begin = before.first().copied().or(self.special_token("bos_token").map(|(id, _)| id)).unwrap_or(end);
        Ok(LlamaCppTokenizer { model, pre, tokens, merges, begin, adds_begin: !before.is_empty(), end, suppressed })
    }

    /// The tokens of all rows, with distinct texts.
    fn tokens(&self, rows: usize, is_sentence_piece: bool) -> std::result::Result<Vec<(String, TokenKind)>, String> {
        // Each becomes a text.
        if rows > 1 << 24 {
            return Err(format!("no model has {rows} rows"));
        }
        let added = self.inner.get_added_tokens_decoder();
        let token = |id: u32| match (added.get(&id), self.inner.id_to_token(id)) {
            (Some(token), _) if token.special => (token.content.clone(), TokenKind::Control),
            (Some(token), _) => (token.content.clone(), TokenKind::UserDefined),
            (None, Some(token)) if is_sentence_piece && token == " " => (META_SPACE.to_string(), TokenKind::Normal),
            (None, Some(token)) => (token, TokenKind::Normal),
            // What llama.cpp's own converter calls them.
            (None, None) => (format!("[PAD{id}]"), TokenKind::Unused),
        };
        let tokens: Vec<_> = (0..rows as u32).map(token).collect();
        let mut seen = std::collections::HashSet::new();
        match tokens.iter().find(|(text, _)| !seen.insert(text)) {
            None => Ok(tokens),
            Some((text, _)) => Err(format!("two ids have the text {text:?}")),
        }
    }

    /// An id that no text has: a row without a token, or a byte that is invalid in UTF-8.
    fn never_in_text(&self, unused: &[u32]) -> Option<u32> {
        let byte = || {
            let id = |byte: u8| self.inner.token_to_id(&recipe::symbol_of(byte).to_string());
            matches!(self.kind, Kind::ByteLevel { .. }).then(|| id(0xff)).flatten()
        };
        unused.first().copied().or_else(byte)
    }

    /// llama.cpp's name for how this byte-level BPE cuts and merges.
    pub(super) fn pre_tokenizer(&self) -> std::result::Result<&'static str, String> {
        let name = match recognise::is_byte_level_by_digits(&self.inner) {
            true => Some("smollm"),
            false => recognise::pattern(&self.inner).and_then(|pattern| splitter::llama_cpp_name(&pattern)),
        };
        let name = name.ok_or("its pre-tokenizer has an unknown pattern")?;
        let ModelWrapper::BPE(bpe) = self.inner.get_model() else { return Err("it is not BPE".into()) };
        // transformers writes "" where there is none.
        let marks = [&bpe.unk_token, &bpe.continuing_subword_prefix, &bpe.end_of_word_suffix];
        if marks.iter().any(|mark| mark.as_deref().is_some_and(|mark| !mark.is_empty())) {
            return Err("it has an unknown token, or marks at the beginning or end of words".into());
        }
        if bpe.byte_fallback {
            return Err("it falls back to bytes".into());
        }
        // Whether a pre-token that is a token is taken as it is: llama.cpp has that for Llama 3 alone.
        match (name, bpe.ignore_merges) {
            ("llama-bpe", false) => Err("it has Llama 3's pattern without its ignore_merges".into()),
            ("gpt-2" | "qwen2" | "smollm", true) => Err("it has ignore_merges, and not Llama 3's pattern".into()),
            _ => Ok(name),
        }
    }

    fn merges(&self) -> Vec<String> {
        let model = serde_json::to_value(self.inner.get_model()).unwrap_or_default();
        let pair = |pair: &Value| match pair {
            Value::String(pair) => pair.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default()),
        };
        model["merges"].as_array().into_iter().flatten().map(pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn chars(text: &str) -> Tokenizer {
        let chars: BTreeSet<char> = text.chars().collect();
        Tokenizer::from_document("char", &recipe::char_vocabulary(chars)).unwrap()
    }

    fn seed(name: &str) -> Tokenizer {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tokenizer");
        Tokenizer::from_file(&folder.join(name)).unwrap()
    }

    fn refused(tokenizer: &Tokenizer, told: &str) {
        let error = tokenizer.for_llama_cpp(tokenizer.vocab_size()).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn characters_are_tokens_and_the_end_a_row_of_its_own() {
        let got = chars("b a\n").for_llama_cpp(4).unwrap();
        let texts: Vec<&str> = got.tokens.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["\n", "▁", "a", "b", "<|endoftext|>"]);
        assert_eq!((got.model, got.end, got.begin, got.adds_begin), ("llama", 4, 4, false));
        assert_eq!(
            (got.suppressed, got.tokens[4].1, got.tokens[3].1),
            (vec![4], TokenKind::Control, TokenKind::Normal)
        );
    }

    #[test]
    fn rows_without_a_token_are_unused_and_the_first_ends_a_text() {
        let got = chars("b a\n").for_llama_cpp(7).unwrap();
        let end: Vec<_> = got.tokens[4..].iter().map(|(text, kind)| (text.as_str(), *kind)).collect();
        let unused = TokenKind::Unused;
        assert_eq!(end, [("<|endoftext|>", TokenKind::Control), ("[PAD5]", unused), ("[PAD6]", unused)]);
        assert_eq!((got.end, got.suppressed), (4, vec![4, 5, 6]));
    }

    #[test]
    fn bytes_keep_their_symbols_and_merges_their_order() {
        let tokenizer = seed("bpe.json");
        let rows = tokenizer.vocab_size();
        let got = tokenizer.for_llama_cpp(rows).unwrap();
        assert_eq!((got.model, got.pre, got.tokens.len()), ("gpt2", "gpt-2", rows));
        assert!(got.merges.iter().all(|merge| merge.split(' ').count() == 2) && !got.merges.is_empty());
        let of_byte = got.tokens.iter().position(|(text, _)| text == "ÿ");
        let has_end = tokenizer.end_of_text().is_some();
        assert!(has_end || (of_byte == Some(got.end as usize) && got.suppressed == [got.end]), "{got:?}");
    }

    #[test]
    fn digits_by_themselves_are_smollms() {
        let mut document: Value = serde_json::from_str(&seed("bpe.json").to_json().unwrap()).unwrap();
        document["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]});
        let tokenizer = Tokenizer::from_document("x", &document).unwrap();
        let got = tokenizer.for_llama_cpp(tokenizer.vocab_size()).unwrap();
        assert_eq!((got.model, got.pre), ("gpt2", "smollm"));
        document["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = false.into();
        refused(&Tokenizer::from_document("x", &document).unwrap(), "neither char, byte-level BPE nor");
    }

    #[test]
    fn what_llama_cpp_lacks_is_refused_with_the_reason() {
        refused(&seed("word.json"), "llama.cpp has no such tokenizer: it cuts text into words");
        refused(&chars("a ▁"), "has '▁', which stands for a space");
        let mut with_merges: Value = serde_json::from_str(&seed("bpe.json").to_json().unwrap()).unwrap();
        with_merges["model"]["ignore_merges"] = true.into();
        refused(&Tokenizer::from_document("x", &with_merges).unwrap(), "it has ignore_merges");
    }

    #[test]
    fn empty_marks_as_transformers_writes_them_are_none() {
        let mut document: Value = serde_json::from_str(&seed("bpe.json").to_json().unwrap()).unwrap();
        document["model"]["continuing_subword_prefix"] = "".into();
        document["model"]["end_of_word_suffix"] = "".into();
        let written = Tokenizer::from_document("x", &document).unwrap();
        let rows = written.vocab_size();
        assert_eq!(written.for_llama_cpp(rows).unwrap(), seed("bpe.json").for_llama_cpp(rows).unwrap());
        document["model"]["end_of_word_suffix"] = "</w>".into();
        refused(&Tokenizer::from_document("x", &document).unwrap(), "marks at the beginning or end of words");
    }

    #[test]
    fn an_added_token_of_several_words_goes_along() {
        let mut document: Value = serde_json::from_str(&seed("bpe.json").to_json().unwrap()).unwrap();
        let rows = seed("bpe.json").vocab_size();
        let mut token = recipe::special_token(rows, "two words");
        (token["normalized"], token["special"]) = (true.into(), false.into());
        document["added_tokens"] = serde_json::json!([token]);
        let got = Tokenizer::from_document("x", &document).unwrap().for_llama_cpp(rows + 1).unwrap();
        assert_eq!((got.pre, &got.tokens[rows]), ("gpt-2", &("two words".to_string(), TokenKind::UserDefined)));
        document["added_tokens"][0]["lstrip"] = true.into();
        refused(&Tokenizer::from_document("x", &document).unwrap(), "an added token takes the white space beside it");
    }

    #[test]
    fn tokens_that_the_folder_names_begin_and_end_a_text() {
        let mut document: Value = serde_json::from_str(&seed("bpe.json").to_json().unwrap()).unwrap();
        let rows = seed("bpe.json").vocab_size();
        document["added_tokens"] = serde_json::json!([]);
        for (id, token) in [(rows, "<s>"), (rows + 1, "<e>")] {
            document["added_tokens"].as_array_mut().unwrap().push(recipe::special_token(id, token));
        }
        document["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [rows], "tokens": ["<s>"]}},
        });
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        write("tokenizer.json", document.to_string());
        write("tokenizer_config.json", r#"{"eos_token": "<e>"}"#.into());
        let got = Tokenizer::from_folder(folder.path()).unwrap().for_llama_cpp(rows + 2).unwrap();
        assert_eq!((got.begin, got.adds_begin, got.end), (rows as u32, true, rows as u32 + 1));
        assert_eq!((got.tokens[rows].1, got.suppressed), (TokenKind::Control, vec![]));
    }
}
