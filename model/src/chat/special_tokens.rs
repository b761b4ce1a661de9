use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::error::{ChatError, read_json_if_present};

/// The single tokens a tokenizer configuration may name.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The special tokens that `tokenizer_config.json` names, such as `eos_token`.
///
/// What it does not name is looked up in `special_tokens_map.json`, the older place. A chat template sees these
/// as variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    named: BTreeMap<String, String>,
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Reads them from a model folder; a missing file names none.
    ///
    /// # Errors
    /// [`ChatError::Json`] for a file that does not parse, [`ChatError::Key`] for a token that is not text.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let mut out = Self::default();
        for file in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = dir.join(file);
            let Some(json) = read_json_if_present(&path)? else { continue };
            for key in NAMED {
                if out.named.contains_key(key) {
                    continue;
                }
                match json.get(key) {
                    None | Some(Value::Null) => {}
                    Some(value) => {
                        let text = content_of(value).ok_or_else(|| ChatError::Key {
                            path: path.clone(),
                            key: key.to_owned(),
                            problem: "is neither text nor an object with `content`".to_owned(),
                        })?;
                        out.named.insert(key.to_owned(), text);
                    }
                }
            }
            if out.additional.is_empty()
                && let Some(Value::Array(values)) = json.get("additional_special_tokens")
            {
                out.additional = values.iter().filter_map(content_of).collect();
            }
        }
        Ok(out)
    }

    /// Text of a named token, such as `eos_token`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.named.get(name).map(String::as_str)
    }

    /// All named tokens, by name.
    pub fn named(&self) -> &BTreeMap<String, String> {
        &self.named
    }

    /// `additional_special_tokens`.
    pub fn additional(&self) -> &[String] {
        &self.additional
    }
}

fn content_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => map.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}
