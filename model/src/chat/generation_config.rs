use std::path::Path;

use serde_json::Value;

use super::error::{ChatError, read_json_if_present};
use super::special_tokens::SpecialTokens;
use super::tokenizer::Tokenizer;

/// What a model folder says about generating: every id that ends a generation, and its preferred sampling.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenerationConfig {
    /// Every end-of-sequence id, ascending: those of `generation_config.json` and of `config.json` (a number or a
    /// list), and the `eos_token` of `tokenizer_config.json`.
    pub eos_token_ids: Vec<u32>,
    /// `do_sample` of `generation_config.json`.
    pub do_sample: Option<bool>,
    /// Its `temperature`.
    pub temperature: Option<f32>,
    /// Its `top_p`.
    pub top_p: Option<f32>,
    /// Its `top_k`.
    pub top_k: Option<u32>,
}

impl GenerationConfig {
    /// Reads it from a model folder; missing files add nothing.
    ///
    /// # Errors
    /// [`ChatError::Json`] for a file that does not parse, [`ChatError::Key`] for a value of another type.
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let mut out = Self::default();
        let path = dir.join("generation_config.json");
        if let Some(json) = read_json_if_present(&path)? {
            out.eos_token_ids.extend(eos_ids(&path, &json)?);
            out.do_sample = optional(&path, &json, "do_sample", "is not true or false", Value::as_bool)?;
            out.temperature = optional(&path, &json, "temperature", "is not a number", as_f32)?;
            out.top_p = optional(&path, &json, "top_p", "is not a number", as_f32)?;
            out.top_k = optional(&path, &json, "top_k", "is not a whole number", as_u32)?;
        }
        let path = dir.join("config.json");
        if let Some(json) = read_json_if_present(&path)? {
            out.eos_token_ids.extend(eos_ids(&path, &json)?);
        }
        let named = SpecialTokens::load(dir)?;
        out.eos_token_ids.extend(named.get("eos_token").and_then(|text| tokenizer.token_id(text)));
        out.eos_token_ids.sort_unstable();
        out.eos_token_ids.dedup();
        Ok(out)
    }
}

fn eos_ids(path: &Path, json: &Value) -> Result<Vec<u32>, ChatError> {
    let ids = match json.get("eos_token_id") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(as_u32).collect(),
        Some(value) => as_u32(value).map(|id| vec![id]),
    };
    ids.ok_or_else(|| ChatError::Key {
        path: path.to_owned(),
        key: "eos_token_id".to_owned(),
        problem: "is neither a token id nor a list of token ids".to_owned(),
    })
}

fn optional<T>(
    path: &Path,
    json: &Value,
    key: &str,
    problem: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, ChatError> {
    match json.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| ChatError::Key {
            path: path.to_owned(),
            key: key.to_owned(),
            problem: problem.to_owned(),
        }),
    }
}

fn as_u32(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn as_f32(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32)
}
