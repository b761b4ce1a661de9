//! The architecture of a model, read from the `config.json` of a Hugging Face folder.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::ModelError;

/// The file this configuration is read from.
pub const CONFIG_FILE: &str = "config.json";

/// Architectures that share the one code path of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Norms on every query and key head.
    Qwen3,
    /// Biases on the query, key and value projections.
    Qwen2,
    /// Neither; also SmolLM2 and most models of that shape.
    Llama,
}

/// How rotary frequencies are stretched beyond the context a model was first trained with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// By wavelength, as in Llama 3.1.
    Llama3 {
        /// Divides the frequencies of long waves.
        factor: f64,
        /// Waves longer than `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Waves shorter than `original_context / high_freq_factor` are left alone.
        high_freq_factor: f64,
        /// Positions of the first training.
        original_context: f64,
    },
}

/// Sizes and switches of a decoder-only transformer.
///
/// The switches (`has_qk_norm`, `has_qkv_bias`, …) say what the code does; `family` is only kept to write the file
/// back. Sizes are numbers of elements.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Which architecture the file names.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward block.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary wavelengths.
    pub rope_theta: f64,
    /// Stretching of the rotary wavelengths.
    pub rope_scaling: RopeScaling,
    /// Whether the output projection is the embedding.
    pub is_tied: bool,
    /// Whether each query and key head is normalized (Qwen3).
    pub has_qk_norm: bool,
    /// Whether the query, key and value projections have a bias.
    pub has_qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub has_output_bias: bool,
    /// The file as it was read: what a checkpoint writes back.
    pub source: Value,
}

impl ModelConfig {
    /// Reads `config.json` in a model folder.
    ///
    /// # Errors
    /// [`ModelError::Read`] and [`ModelError::Malformed`] on the file; [`ModelError::ConfigKey`] on a missing or
    /// impossible value; [`ModelError::Unsupported`] on a family or a feature this crate does not compute.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(CONFIG_FILE);
        let text = fs_err::read_to_string(&path)
            .map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let value = serde_json::from_str(&text).map_err(|e| ModelError::Malformed {
            path: path.clone(),
            kind: "JSON",
            source: e.into(),
        })?;
        Self::from_json(value, &path)
    }

    /// Reads a configuration from its JSON value; `path` is only used in errors.
    ///
    /// # Errors
    /// As [`ModelConfig::load`], without those on the file.
    pub fn from_json(value: Value, path: &Path) -> Result<Self, ModelError> {
        let keys = Keys { object: &value, prefix: String::new(), path };
        let family = match keys.text("model_type")? {
            "qwen3" => Family::Qwen3,
            "qwen2" => Family::Qwen2,
            "llama" => Family::Llama,
            _ => return Err(keys.unsupported("model_type")),
        };
        keys.refuse_unknown_features()?;
        let hidden_size = keys.positive("hidden_size")?;
        let n_heads = keys.positive("num_attention_heads")?;
        let n_kv_heads = keys.optional("num_key_value_heads", Keys::positive)?.unwrap_or(n_heads);
        let head_dim = match keys.optional("head_dim", Keys::positive)? {
            Some(head_dim) => head_dim,
            None if family == Family::Qwen3 => 128,
            None if hidden_size % n_heads == 0 => hidden_size / n_heads,
            None => return Err(keys.problem("head_dim", "is missing and does not follow from `hidden_size`")),
        };
        if n_heads % n_kv_heads != 0 {
            return Err(keys.problem("num_key_value_heads", "does not divide `num_attention_heads`"));
        }
        if head_dim % 2 != 0 {
            return Err(keys.problem("head_dim", "is odd, so rotary embedding cannot pair its elements"));
        }
        let attention_bias = keys.flag("attention_bias")?;
        let (rope_theta, rope_scaling) = read_rope(&keys)?;
        Ok(Self {
            family,
            vocab_size: keys.positive("vocab_size")?,
            hidden_size,
            intermediate_size: keys.positive("intermediate_size")?,
            n_layers: keys.positive("num_hidden_layers")?,
            n_heads,
            n_kv_heads,
            head_dim,
            context_length: keys.optional("max_position_embeddings", Keys::positive)?.unwrap_or(2048),
            rms_norm_eps: keys.optional("rms_norm_eps", Keys::number)?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            is_tied: keys.flag("tie_word_embeddings")?,
            has_qk_norm: family == Family::Qwen3,
            has_qkv_bias: family == Family::Qwen2 || attention_bias,
            has_output_bias: family != Family::Qwen2 && attention_bias,
            source: value,
        })
    }

    /// Width of the fused query, key and value rows.
    pub fn qkv_width(&self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// Width of all query heads: the input of the attention's output projection.
    pub fn attention_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Query heads that share one key and value head.
    pub fn group_width(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Number of trained parameters.
    pub fn n_parameters(&self) -> usize {
        let attention = self.hidden_size * (self.qkv_width() + self.attention_width());
        let biases = if self.has_qkv_bias { self.qkv_width() } else { 0 }
            + if self.has_output_bias { self.hidden_size } else { 0 };
        let head_norms = if self.has_qk_norm { 2 * self.head_dim } else { 0 };
        let feed_forward = 3 * self.hidden_size * self.intermediate_size;
        let layer = attention + biases + head_norms + feed_forward + 2 * self.hidden_size;
        let embeddings = self.vocab_size * self.hidden_size * if self.is_tied { 1 } else { 2 };
        self.n_layers * layer + embeddings + self.hidden_size
    }
}

fn read_rope(keys: &Keys<'_>) -> Result<(f64, RopeScaling), ModelError> {
    let theta = keys.optional("rope_theta", Keys::number)?;
    let (section, theta) = match keys.section("rope_parameters")? {
        Some(section) => {
            let own = section.optional("rope_theta", Keys::number)?;
            (Some(section), own.or(theta))
        }
        None => (keys.section("rope_scaling")?, theta),
    };
    let theta = theta.unwrap_or(10_000.0);
    let Some(section) = section else { return Ok((theta, RopeScaling::None)) };
    let kind_key = if section.has("rope_type") { "rope_type" } else { "type" };
    let kind = if section.has(kind_key) { section.text(kind_key)? } else { "default" };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "llama3" => RopeScaling::Llama3 {
            factor: section.number("factor")?,
            low_freq_factor: section.number("low_freq_factor")?,
            high_freq_factor: section.number("high_freq_factor")?,
            original_context: section.number("original_max_position_embeddings")?,
        },
        _ => return Err(section.unsupported(kind_key)),
    };
    Ok((theta, scaling))
}

/// Typed access to the keys of one JSON object, with errors that name file and key.
struct Keys<'a> {
    object: &'a Value,
    prefix: String,
    path: &'a Path,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn problem(&self, key: &str, problem: &str) -> ModelError {
        ModelError::ConfigKey {
            path: PathBuf::from(self.path),
            key: format!("{}{key}", self.prefix),
            problem: problem.into(),
        }
    }

    fn unsupported(&self, key: &str) -> ModelError {
        ModelError::Unsupported {
            path: PathBuf::from(self.path),
            key: format!("{}{key}", self.prefix),
            value: self.get(key).map(Value::to_string).unwrap_or_default(),
        }
    }

    fn required(&self, key: &str) -> Result<&'a Value, ModelError> {
        self.get(key).ok_or_else(|| self.problem(key, "is missing"))
    }

    fn optional<T>(
        &self,
        key: &str,
        read: impl Fn(&Self, &str) -> Result<T, ModelError>,
    ) -> Result<Option<T>, ModelError> {
        if self.has(key) { read(self, key).map(Some) } else { Ok(None) }
    }

    fn positive(&self, key: &str) -> Result<usize, ModelError> {
        match self.required(key)?.as_u64() {
            Some(value) if value > 0 && value <= u64::from(u32::MAX) => Ok(value as usize),
            _ => Err(self.problem(key, "is not a positive integer")),
        }
    }

    fn number(&self, key: &str) -> Result<f64, ModelError> {
        match self.required(key)?.as_f64() {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            _ => Err(self.problem(key, "is not a positive number")),
        }
    }

    fn text(&self, key: &str) -> Result<&'a str, ModelError> {
        self.required(key)?.as_str().ok_or_else(|| self.problem(key, "is not a string"))
    }

    fn flag(&self, key: &str) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.problem(key, "is neither true nor false")),
        }
    }

    fn section(&self, key: &str) -> Result<Option<Keys<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(object) if object.is_object() => {
                Ok(Some(Keys { object, prefix: format!("{key}."), path: self.path }))
            }
            Some(_) => Err(self.problem(key, "is not an object")),
        }
    }

    /// Refuses what would change the numbers and is not computed here.
    fn refuse_unknown_features(&self) -> Result<(), ModelError> {
        for key in ["use_sliding_window", "mlp_bias"] {
            if self.flag(key)? {
                return Err(self.unsupported(key));
            }
        }
        if self.has("hidden_act") && self.text("hidden_act")? != "silu" {
            return Err(self.unsupported("hidden_act"));
        }
        if self.has("quantization_config") {
            return Err(self.unsupported("quantization_config"));
        }
        let is_partial = |value: &Value| value.as_f64() != Some(1.0);
        if self.get("partial_rotary_factor").is_some_and(is_partial) {
            return Err(self.unsupported("partial_rotary_factor"));
        }
        if let Some(layers) = self.get("layer_types") {
            let is_full = |value: &Value| value.as_str() == Some("full_attention");
            if !layers.as_array().is_some_and(|layers| layers.iter().all(is_full)) {
                return Err(self.unsupported("layer_types"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tiny() -> Value {
        json!({
            "model_type": "qwen3", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 10,
            "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true,
            "use_sliding_window": false, "sliding_window": null, "rope_scaling": null,
        })
    }

    fn with(key: &str, value: Value) -> Result<ModelConfig, ModelError> {
        let mut config = tiny();
        config[key] = value;
        ModelConfig::from_json(config, Path::new("m/config.json"))
    }

    #[test]
    fn sizes_follow_from_the_file() {
        let config = with("attention_bias", json!(false)).unwrap();
        assert_eq!(config.qkv_width(), (4 + 2 + 2) * 4);
        assert!(config.has_qk_norm && !config.has_qkv_bias && config.is_tied);
        // Per layer 8*32 + 8*16 attention, 8 head norms, 3*8*16 feed-forward, 16 norms = 792; embedding 80, norm 8.
        assert_eq!(config.n_parameters(), 2 * 792 + 80 + 8);
    }

    #[test]
    fn both_forms_of_the_rope_section_are_read() {
        let scaling = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64, "rope_theta": 500.0,
        });
        let old = with("rope_scaling", scaling.clone()).unwrap();
        let new = with("rope_parameters", scaling).unwrap();
        assert_eq!(old.rope_scaling, new.rope_scaling);
        assert_eq!((old.rope_theta, new.rope_theta), (1_000_000.0, 500.0));
    }

    #[test]
    fn a_refused_file_names_the_key() {
        let cases = [
            (
                "model_type",
                json!("mamba"),
                "key `model_type` in `m/config.json` has an unsupported value: \"mamba\"",
            ),
            ("use_sliding_window", json!(true), "has an unsupported value: true"),
            ("hidden_act", json!("gelu"), "key `hidden_act`"),
            ("rope_scaling", json!({"type": "yarn"}), "key `rope_scaling.type`"),
            ("layer_types", json!(["sliding_attention"]), "key `layer_types`"),
            ("hidden_size", json!("8"), "key `hidden_size` in `m/config.json` is not a positive integer"),
            ("vocab_size", Value::Null, "key `vocab_size` in `m/config.json` is missing"),
            ("head_dim", json!(3), "is odd"),
            ("num_key_value_heads", json!(3), "does not divide"),
            ("rms_norm_eps", json!(-1.0), "is not a positive number"),
        ];
        for (key, value, expected) in cases {
            let error = with(key, value).unwrap_err().to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
    }
}
