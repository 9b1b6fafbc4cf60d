//! A model's text conventions: its tokenizer with the special tokens, its chat template, and what ends a text or an
//! answer. They are read from a model's folder, and written by checkpoints and exports.

use std::path::Path;

use serde_json::{Map, Value};

use super::chat::{ChatSpec, ChatTemplate};
use super::tokenizer::Tokenizer;
use rustyflow_base::error::{Error, Result};

const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";
const ENDS: &str = "eos_token_id";
/// Ids of special tokens in both files, by the special token that each is of.
const IDS: [(&str, &str); 3] = [(ENDS, "eos_token"), ("bos_token_id", "bos_token"), ("pad_token_id", "pad_token")];

/// Special-token ids declared in a model's configuration files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeclaredIds {
    /// `generation_config.json`, if there is one.
    generation: Option<Map<String, Value>>,
    /// `eos_token_id`, in order.
    ends: Vec<u32>,
    /// Those of [`IDS`] that are not null, as they are written.
    ids: Map<String, Value>,
}

impl DeclaredIds {
    /// Reads each id from the first folder that declares it (an adapter's folder before its model's), and there from
    /// `generation_config.json` before `config.json`.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged.
    pub fn read(folders: &[&Path]) -> Result<DeclaredIds> {
        let mut declared = DeclaredIds::default();
        for path in [GENERATION, CONFIG].iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))) {
            let Some(keys) = read_object(&path)? else { continue };
            for (key, _) in IDS {
                if let Some(value) = keys.get(key).filter(|value| !value.is_null() && !declared.ids.contains_key(key)) {
                    if key == ENDS {
                        declared.ends = ids_of(value).map_err(|message| damaged(&path, message))?;
                    }
                    declared.ids.insert(key.into(), value.clone());
                }
            }
            if path.ends_with(GENERATION) && declared.generation.is_none() {
                declared.generation = Some(keys);
            }
        }
        Ok(declared)
    }
}

/// A model's tokenizer, chat template and special tokens.
pub struct TextConventions {
    pub tokenizer: Tokenizer,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
    declared: DeclaredIds,
    /// The token that the template writes after an answer.
    answer_end: Option<u32>,
    /// The text that ends an answer if it is not a single token, so that `eos_token_id` cannot hold it.
    unwritten_end: Option<String>,
    /// A note for the user.
    pub note: Option<String>,
}

/// Ends of an answer, which are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Tokens.
    pub ids: Vec<u32>,
    /// Texts.
    pub texts: Vec<String>,
}

impl TextConventions {
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, declared: DeclaredIds) -> TextConventions {
        let end = template.as_ref().map(ChatTemplate::end_of_answer_of_any);
        let (end, note) = match end.transpose() {
            Ok(end) => (end, None),
            Err(error) => (None, Some(format!("the token that ends an answer is unknown: {error}"))),
        };
        let answer_end = end.as_ref().and_then(|end| tokenizer.first_added(end));
        let unwritten_end = end.filter(|end| answer_end.is_none() && !end.is_empty());
        TextConventions { tokenizer, template, declared, answer_end, unwritten_end, note }
    }

    /// Loads the conventions of the model with its tokenizer in `folder` and its weights in `base`. An invalid template
    /// is omitted, with a note.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn load(folder: &Path, base: &Path) -> Result<TextConventions> {
        let tokenizer = Tokenizer::from_folder(folder)?;
        let declared = DeclaredIds::read(&[folder, base])?;
        match ChatTemplate::find(&ChatSpec { template: "", folder: Some(folder) }) {
            Ok(template) => Ok(TextConventions::new(tokenizer, template, declared)),
            Err(error) => {
                let note = Some(format!("the model is used without its chat template: {error}"));
                Ok(TextConventions { note, ..TextConventions::new(tokenizer, None, declared) })
            }
        }
    }

    /// Distinct ids that end a text: `eos_token_id`, the tokenizer's end-of-text token, and the template's end of an
    /// answer.
    pub fn ends(&self) -> Vec<u32> {
        let further = [self.tokenizer.end_of_text().map(|(id, _)| id), self.answer_end];
        let mut ends = vec![];
        for id in self.declared.ends.iter().copied().chain(further.into_iter().flatten()) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    /// The token that ends an answer, if it is not the end of a text.
    pub fn answer_end(&self) -> Option<u32> {
        self.answer_end.filter(|end| self.tokenizer.end_of_text().is_none_or(|(id, _)| id != *end))
    }

    /// A warning for a written model whose files cannot hold the end of an answer.
    pub fn warning_of_end(&self) -> Option<String> {
        self.unwritten_end.as_ref().map(|end| {
            format!(
                "the chat template ends an answer with {end:?}, which is not a special token of the tokenizer, so \
                 eos_token_id cannot hold it: transformers' pipeline will not stop there; set data.chat_template to \
                 a template that ends an answer with one special token of the tokenizer"
            )
        })
    }

    /// The ends of an answer in a conversation that starts with `system`: the template's end of an answer, the ends of
    /// a text, and `stops`.
    ///
    /// # Errors
    /// If the template cannot render such a conversation.
    pub fn ending(&self, template: &ChatTemplate, system: &[Value], stops: Vec<String>) -> Result<Ending> {
        let end = template.end_of_answer(system)?;
        let (mut ids, mut texts) = (self.ends(), stops);
        ids.extend(self.tokenizer.first_added(&end));
        texts.push(end);
        Ok(Ending { ids, texts })
    }

    /// `eos_token_id`, `bos_token_id` and `pad_token_id`, if there are such tokens, for `config.json` and
    /// `generation_config.json`.
    pub fn ids(&self) -> Map<String, Value> {
        let mut ids = self.declared.ids.clone();
        for (key, name) in IDS {
            if let Some((id, _)) = self.tokenizer.special_token(name).filter(|_| !ids.contains_key(key)) {
                ids.insert(key.into(), id.into());
            }
        }
        match self.ends()[..] {
            [] => {}
            [end] if !self.declared.ids.get(ENDS).is_some_and(Value::is_array) => {
                drop(ids.insert(ENDS.into(), end.into()))
            }
            ref ends => drop(ids.insert(ENDS.into(), ends.into())),
        }
        ids
    }

    /// The model's `generation_config.json` with all ids that end a text; `None` if it has none.
    pub fn generation_config(&self) -> Option<String> {
        let mut keys = self.declared.generation.clone()?;
        if let Some(ends) = self.ids().remove(ENDS) {
            keys.insert(ENDS.into(), ends);
        }
        Some(serde_json::to_string_pretty(&keys).expect("plain values serialize"))
    }
}

fn ids_of(value: &Value) -> std::result::Result<Vec<u32>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("eos_token_id is {value}; expected a token id, or a list of token ids"))
    };
    match value {
        Value::Array(all) => all.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

fn damaged(path: &Path, message: String) -> Error {
    Error::Checkpoint { path: path.to_path_buf(), message }
}

/// An object in JSON; `None` if there is no such file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
    serde_json::from_str(&text).map(Some).map_err(|error| damaged(path, format!("is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Corpus, TokenizerSpec};
    use serde_json::json;
    use std::fs;

    const CHATML: &str = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}<e>\n{% endfor %}";

    /// A folder with a tokenizer of characters, `<s>` (3), `<e>` (4) and `<end>` (5), and these files.
    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let corpus = Corpus::of_texts("test", "abc", "", None).unwrap();
        let tokenizer = Tokenizer::build(&TokenizerSpec::Char, 0, &corpus, Path::new(".")).unwrap();
        let mut document: Value = serde_json::from_str(&tokenizer.to_json().unwrap()).unwrap();
        let token = |(id, content): (usize, &str)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        document["added_tokens"] = [(3, "<s>"), (4, "<e>"), (5, "<end>")].map(token).into_iter().collect();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), document.to_string()).unwrap();
        for (name, value) in files {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn load(folder: &tempfile::TempDir) -> TextConventions {
        TextConventions::load(folder.path(), folder.path()).unwrap()
    }

    #[test]
    fn the_ends_are_those_of_the_model_and_what_ends_an_answer() {
        let tokens = ("tokenizer_config.json", json!({"eos_token": "<end>", "bos_token": "<s>"}));
        let template = ("chat_template.jinja", CHATML.into());
        let generation = |ids: Value| ("generation_config.json", json!({"eos_token_id": ids, "top_k": 3}));
        for (files, ends, written) in [
            (vec![tokens.clone()], vec![5], json!(5)),
            (vec![tokens.clone(), template.clone()], vec![5, 4], json!([5, 4])),
            (vec![tokens.clone(), template.clone(), generation(json!([2, 4]))], vec![2, 4, 5], json!([2, 4, 5])),
            (vec![tokens.clone(), generation(json!([5]))], vec![5], json!([5])),
            (vec![tokens.clone(), ("config.json", json!({"eos_token_id": 1}))], vec![1, 5], json!([1, 5])),
            (vec![template.clone()], vec![4], json!(4)),
        ] {
            let text = load(&folder(&files));
            assert_eq!((text.ends(), &text.ids()["eos_token_id"]), (ends, &written), "{files:?}");
            if let Some(generation) = text.generation_config() {
                let generation: Value = serde_json::from_str(&generation).unwrap();
                assert_eq!((&generation["eos_token_id"], &generation["top_k"]), (&written, &3.into()));
            }
        }
        let text = load(&folder(&[tokens, template]));
        assert_eq!((text.ids()["bos_token_id"].clone(), text.answer_end()), (3.into(), Some(4)));
        let none = load(&folder(&[]));
        assert_eq!((none.ends(), none.ids(), none.generation_config()), (vec![], Map::new(), None));
    }

    #[test]
    fn an_end_of_several_tokens_is_warned_of() {
        let warning = |template: &str| load(&folder(&[("chat_template.jinja", template.into())])).warning_of_end();
        let several = warning("{% for m in messages %}{{ m.content }}abc\n{% endfor %}").unwrap();
        assert!(several.contains("ends an answer with \"abc\"") && several.contains("eos_token_id"), "{several}");
        assert!(several.contains("transformers' pipeline will not stop") && several.contains("data.chat_template"));
        assert_eq!(warning(CHATML), None);
        assert_eq!(warning("{% for m in messages %}{{ m.content }}{% endfor %}"), None);
        assert_eq!(load(&folder(&[])).warning_of_end(), None);
    }

    #[test]
    fn an_answer_ends_at_texts_too() {
        let text = load(&folder(&[("generation_config.json", json!({"eos_token_id": 2}))]));
        let template = ChatTemplate::new("test", CHATML, Map::new()).unwrap();
        let ending = text.ending(&template, &[], vec!["stop".into()]).unwrap();
        assert_eq!(ending, Ending { ids: vec![2, 4], texts: vec!["stop".into(), "<e>".into()] });
    }

    #[test]
    fn an_adapter_has_what_its_model_says() {
        let base = folder(&[
            ("generation_config.json", json!({"eos_token_id": 2})),
            ("config.json", json!({"pad_token_id": 1})),
        ]);
        let adapter = folder(&[("config.json", json!({"eos_token_id": 0}))]);
        let text = TextConventions::load(adapter.path(), base.path()).unwrap();
        assert_eq!((text.ends(), &text.ids()["pad_token_id"]), (vec![2], &1.into()));
    }

    #[test]
    fn a_template_that_is_none_is_left_out_and_a_damaged_file_refused() {
        let text = load(&folder(&[("chat_template.jinja", "{% if %}".into())]));
        assert!(text.template.is_none() && text.note.unwrap().contains("without its chat template"));
        let text = load(&folder(&[("chat_template.jinja", "{{ raise_exception('no system') }}".into())]));
        assert!(text.template.is_some() && text.note.unwrap().contains("no system"));
        let damaged = folder(&[("generation_config.json", json!({"eos_token_id": "c"}))]);
        let error = TextConventions::load(damaged.path(), damaged.path()).err().unwrap().to_string();
        assert!(error.contains("generation_config.json") && error.contains("eos_token_id is \"c\""), "{error}");
    }
}
