//! What Hugging Face's transformers reads of a tokenizer: the pipeline, and beside it what class makes of it.
//!
//! Without `tokenizer_config.json`, `AutoTokenizer` takes the class of the model's family and drops the pipeline's own
//! rules. `PreTrainedTokenizerFast` keeps to the pipeline. Only tokens that the pipeline has as added tokens are named
//! as special: transformers would give any other an id of its own, which no embedding has.

use super::{Tokenizer, error};
use crate::error::Result;
use serde_json::{Map, Value, json};

/// What vocabularies call the token that ends a document: GPT-2's, Llama 3's and Llama 2's.
const END_OF_TEXT: [&str; 3] = ["<|endoftext|>", "<|end_of_text|>", "</s>"];

impl Tokenizer {
    /// The names and texts of the files from which `AutoTokenizer.from_pretrained` makes this tokenizer, for a model
    /// with a context of so many tokens. `named` are special tokens by what transformers calls them, where they are
    /// known: without that, the end of a text is the beginning too.
    ///
    /// # Errors
    /// If the pipeline cannot be written, which one that was read can.
    pub fn pretrained_files(&self, context: usize, named: &Map<String, Value>) -> Result<[(&'static str, String); 3]> {
        let pipeline = self.to_json()?;
        let mut special: Map<String, Value> = match self.end_of_text() {
            Some((_, token)) => ["bos_token", "eos_token"].map(|key| (key.into(), json!(token))).into_iter().collect(),
            None => Map::new(),
        };
        let added = self.inner.get_added_tokens_decoder();
        let is_added = |token: &Value| added.values().any(|added| Some(added.content.as_str()) == token.as_str());
        special
            .extend(named.iter().filter(|(_, token)| is_added(token)).map(|(key, token)| (key.clone(), token.clone())));
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context,
            "clean_up_tokenization_spaces": false,
        });
        let keys = config.as_object_mut().expect("it is an object");
        keys.extend(special.clone());
        Ok([
            ("tokenizer.json", pipeline),
            ("tokenizer_config.json", text(&config)),
            ("special_tokens_map.json", text(&Value::Object(special))),
        ])
    }

    /// The pipeline as a `tokenizer.json`.
    ///
    /// # Errors
    /// If it cannot be written, which one that was read can.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(true).map_err(|cause| error(&self.name, cause.to_string()))
    }

    /// What the pipeline puts before every text: `<s>` of Llama's and Mistral's tokenizers, nothing of most others.
    /// Texts are encoded without it, because they may be parts of others.
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

    /// Id and text of the token that ends a document, if there is one.
    pub fn end_of_text(&self) -> Option<(u32, &'static str)> {
        let added = self.inner.get_added_tokens_decoder();
        END_OF_TEXT.into_iter().find_map(|token| {
            let (id, _) = added.iter().find(|(_, added)| added.special && added.content == token)?;
            Some((*id, token))
        })
    }
}

fn text(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("plain values serialize")
}
