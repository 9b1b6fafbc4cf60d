//! A tokenizer's files for Hugging Face's transformers: the pipeline, and the configuration of its class.
//!
//! Without `tokenizer_config.json`, `AutoTokenizer` takes the class of the model's family and drops the pipeline's own
//! rules. `PreTrainedTokenizerFast` keeps to the pipeline. For a model of type `qwen2`, transformers 5 takes
//! `Qwen2Tokenizer` whatever the file names (`MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS`), unless there is an
//! `auto_map`: then that names a class in a file beside it, which is `PreTrainedTokenizerFast` too.
//!
//! Only tokens that the pipeline has are named as special: transformers would give any other an id of its own, which no
//! embedding has.

use super::pretrained_config::text_of;
use super::{Kind, Tokenizer, error};
use rustyflow_base::error::Result;
use serde_json::{Map, Value, json};

/// Names of the end-of-text token, if none is declared: GPT-2's, Llama 3's and Llama 2's.
const END_OF_TEXT: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "</s>"];

/// Special tokens by what transformers calls them, in the lists of `tokenizer_config.json`.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The file of the class in an `auto_map`.
pub const OWN_CLASS: &str = "pipeline_tokenizer.py";
const OWN_CLASS_TEXT: &str = r#""""A tokenizer that keeps to tokenizer.json, for a model whose family has a tokenizer of its own."""

from transformers import PreTrainedTokenizerFast


class PipelineTokenizer(PreTrainedTokenizerFast):
    pass
"#;

impl Tokenizer {
    /// The names and texts of the files from which `AutoTokenizer.from_pretrained` makes this tokenizer, for a model of
    /// this type (`model_type` of its `config.json`) with a context of so many tokens. The special tokens and all else
    /// that `tokenizer_config.json` says are those that the tokenizer was loaded with; for one that was built, the end
    /// of a text is the beginning too.
    ///
    /// # Errors
    /// If the pipeline cannot be written, which one that was read can.
    pub fn pretrained_files(&self, context: usize, model_type: &str) -> Result<Vec<(&'static str, String)>> {
        let mut config = self.pretrained_keys();
        let special: Map<String, Value> = config
            .iter()
            .filter(|(key, token)| !token.is_null() && (key.ends_with("_token") || LISTS.contains(&key.as_str())))
            .filter(|(_, token)| text_of(token).is_some() || token.is_array())
            .map(|(key, token)| (key.clone(), token.clone()))
            .collect();
        // In the order in which it is read back, so that a resumed run writes the same bytes.
        config.entry("clean_up_tokenization_spaces").or_insert(false.into());
        config.insert("model_max_length".into(), context.into());
        let mut files = vec![("tokenizer.json", self.to_json()?)];
        files.extend(self.name_class(&mut config, model_type));
        files.push(("tokenizer_config.json", text(&Value::Object(config))));
        files.push(("special_tokens_map.json", text(&Value::Object(special))));
        Ok(files)
    }

    /// Names the class in a `tokenizer_config.json`, for a model of this type, that keeps to the pipeline. Gives the
    /// file that this takes beside it, if it takes one.
    #[doc(hidden)]
    pub fn name_class(&self, config: &mut Map<String, Value>, model_type: &str) -> Option<(&'static str, String)> {
        let is_forced = model_type == "qwen2";
        let is_theirs = is_forced && self.is_rebuilt_as_qwen2();
        let class = if is_theirs { "Qwen2Tokenizer" } else { "PreTrainedTokenizerFast" };
        config.insert("tokenizer_class".into(), class.into());
        if !is_forced || is_theirs {
            return None;
        }
        config.insert("auto_map".into(), json!({"AutoTokenizer": [null, "pipeline_tokenizer.PipelineTokenizer"]}));
        Some((OWN_CLASS, OWN_CLASS_TEXT.to_string()))
    }

    /// Whether transformers' `Qwen2Tokenizer`, which takes the vocabulary and the merges alone, gives the same ids.
    fn is_rebuilt_as_qwen2(&self) -> bool {
        let is_theirs = self.config.as_ref().is_some_and(|config| config.class == "Qwen2Tokenizer");
        let is_normalized = matches!(self.kind, Kind::ByteLevel { normalizes: true, .. });
        is_theirs && is_normalized && self.pre_tokenizer() == Ok("qwen2")
    }

    /// The preserved keys of its `tokenizer_config.json`, without special tokens that it does not have.
    fn pretrained_keys(&self) -> Map<String, Value> {
        let Some(config) = &self.config else {
            let end = self.end_of_text();
            return end
                .into_iter()
                .flat_map(|(_, end)| ["bos_token", "eos_token"].map(|key| (key.into(), json!(end))))
                .collect();
        };
        let is_known = |token: &Value| text_of(token).is_none_or(|token| self.inner.token_to_id(token).is_some());
        let mut keys = config.keys.clone();
        keys.retain(|key, token| !key.ends_with("_token") || is_known(token));
        for list in LISTS {
            if let Some(Value::Array(tokens)) = keys.get_mut(list) {
                tokens.retain(is_known);
            }
        }
        keys
    }

    /// Its `tokenizer_config.json`, for a folder without a model.
    pub(crate) fn config_json(&self) -> Option<String> {
        let class = self.config.as_ref()?.class.as_str();
        let mut keys = self.pretrained_keys();
        keys.insert("tokenizer_class".into(), class.into());
        Some(text(&Value::Object(keys)))
    }

    /// Id and text of a special token by transformers' name: `bos_token`, `eos_token` and so on. `None` if it is not
    /// declared or does not exist.
    pub fn special_token(&self, name: &str) -> Option<(u32, &str)> {
        let token = self.config.as_ref()?.token(name)?;
        Some((self.inner.token_to_id(token)?, token))
    }

    /// Whether an id is a special token, which is not displayed.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// The first added token in the ids of `text`, such as the end of an answer.
    pub(crate) fn first_added(&self, text: &str) -> Option<u32> {
        let added = self.inner.get_added_tokens_decoder();
        self.encode(text).ok()?.into_iter().find(|id| added.contains_key(id))
    }

    /// The pipeline as a `tokenizer.json`.
    ///
    /// # Errors
    /// If serialization fails, which does not happen for a loaded pipeline.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(true).map_err(|cause| error(&self.name, cause.to_string()))
    }

    /// Tokens that the pipeline adds before every text: `<s>` for Llama and Mistral, none for most others.
    /// [`Tokenizer::encode`] does not add them, because a text may be a part of another.
    ///
    /// # Errors
    /// If the parts of the pipeline contradict each other.
    pub fn begin_of_text(&self) -> Result<Vec<u32>> {
        if self.inner.get_post_processor().is_none() {
            return Ok(vec![]);
        }
        let ids = |special| self.guarded(|inner| Ok(inner.encode("a", special)?.get_ids().to_vec()));
        let (plain, whole) = (ids(false)?, ids(true)?);
        let at = whole.windows(plain.len().max(1)).position(|ids| ids == plain).unwrap_or(0);
        Ok(whole[..at].to_vec())
    }

    /// Id and text of the end-of-text token: the declared `eos_token`, or a token with a usual name. `None` if there is
    /// none.
    pub fn end_of_text(&self) -> Option<(u32, &str)> {
        self.special_token("eos_token").or_else(|| self.end_of_text_by_name())
    }

    /// The end-of-text token by its usual names, if none is declared.
    pub(crate) fn end_of_text_by_name(&self) -> Option<(u32, &'static str)> {
        END_OF_TEXT.into_iter().find_map(|token| {
            let id = self.inner.token_to_id(token)?;
            self.is_special(id).then_some((id, token))
        })
    }
}

fn text(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("plain values serialize")
}
