use std::path::Path;

use serde_json::{Map, Value, json};

use crate::checkpoint::write_synced;
use crate::error::ModelError;

/// The file that makes a folder an adapter.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

/// Last names of the matrices that can be adapted: the seven projections of a decoder layer.
pub const TARGET_MODULES: [&str; 7] =
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Keys that say nothing about what the adapter computes, whatever their value.
const NOTES: [&str; 9] = [
    "peft_version",
    "inference_mode",
    "auto_mapping",
    "revision",
    "megatron_core",
    "runtime_config",
    "eva_config",
    "ensure_weight_tying",
    // Only with `use_qalora`, which is refused.
    "qalora_group_size",
];
/// Initializations that leave the base as it is; others write a base of their own beside the adapter.
const INITIALIZATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// What an adapter is, as `adapter_config.json` says it.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    /// Folder of the base model, `base_model_name_or_path`; where it is relative, from the adapter's folder.
    pub base: String,
    /// Rank of the added term, `r`; at least 1.
    pub rank: usize,
    /// Its weight before it is divided by the rank or its root, `lora_alpha`.
    pub alpha: f64,
    /// Whether the weight is divided by the root of the rank, `use_rslora`.
    pub is_rank_stabilized: bool,
    /// Names of the adapted matrices, whole or from some dot on, such as `q_proj`; sorted, each once.
    pub target_modules: Vec<String>,
    /// Share of the inputs that training drops, `lora_dropout`. Only 0 can be trained here; no other use depends on it.
    pub dropout: f64,
}

impl AdapterConfig {
    /// What the product of the factors is multiplied by.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        (self.alpha / if self.is_rank_stabilized { rank.sqrt() } else { rank }) as f32
    }

    /// What is wrong with [`AdapterConfig::scale`], if anything: with 0 nothing is changed and nothing can be trained.
    pub(super) fn problem_of_scale(&self) -> Option<&'static str> {
        match self.scale() {
            0.0 => Some("makes the weight of the adapter 0, so that it would change nothing"),
            scale if scale.is_finite() => None,
            _ => Some("makes the weight of the adapter larger than a number of 32 bits"),
        }
    }

    /// Reads `adapter_config.json` of an adapter's folder.
    ///
    /// # Errors
    /// [`ModelError::Read`] and [`ModelError::Malformed`] on the file; [`ModelError::ConfigKey`] for a key that is
    /// missing or impossible; [`ModelError::Unsupported`] for everything that would change what is computed and is
    /// not done here: another method, trained biases, ranks by module, DoRA, whole modules saved beside the factors.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(ADAPTER_CONFIG_FILE);
        let text = fs_err::read_to_string(&path)
            .map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let value = serde_json::from_str(&text).map_err(|error| ModelError::Malformed {
            path: path.clone(),
            kind: "JSON",
            source: error.into(),
        })?;
        Self::from_json(&value, &path)
    }

    /// Reads the content of the file; `path` names it in errors.
    ///
    /// # Errors
    /// As [`AdapterConfig::load`], without those on the file.
    pub fn from_json(value: &Value, path: &Path) -> Result<Self, ModelError> {
        let bad_key = |key: &str, problem: &str| ModelError::ConfigKey {
            path: path.into(),
            key: key.into(),
            problem: problem.into(),
        };
        let unsupported = |key: &str, value: &Value| ModelError::Unsupported {
            path: path.into(),
            key: key.into(),
            value: value.to_string(),
        };
        let map = value.as_object().ok_or_else(|| bad_key("", "is not an object"))?;
        if let Some((key, value)) = map.iter().find(|(key, value)| !is_computed(key, value)) {
            return Err(unsupported(key, value));
        }
        let required = |key: &str| map.get(key).ok_or_else(|| bad_key(key, "is missing"));
        if required("peft_type")?.as_str() != Some("LORA") {
            return Err(unsupported("peft_type", required("peft_type")?));
        }
        let base = required("base_model_name_or_path")?.as_str().filter(|base| !base.is_empty());
        let rank = required("r")?.as_u64().and_then(|rank| usize::try_from(rank).ok());
        let alpha = required("lora_alpha")?.as_f64().filter(|alpha| alpha.is_finite());
        let dropout = number(map, "lora_dropout").filter(|dropout| (0.0..1.0).contains(dropout));
        let config = Self {
            base: base
                .ok_or_else(|| bad_key("base_model_name_or_path", "names no folder of a base model"))?
                .to_owned(),
            rank: rank
                .filter(|rank| *rank > 0)
                .ok_or_else(|| bad_key("r", "is not a whole number of 1 or more"))?,
            alpha: alpha.ok_or_else(|| bad_key("lora_alpha", "is not a number"))?,
            is_rank_stabilized: map.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
            target_modules: targets(required("target_modules")?).ok_or_else(|| {
                let value = map.get("target_modules").unwrap_or(&Value::Null);
                match value {
                    Value::String(_) => unsupported("target_modules", value),
                    _ => bad_key("target_modules", "is not a list of names of modules"),
                }
            })?,
            dropout: dropout.ok_or_else(|| bad_key("lora_dropout", "is not in [0, 1)"))?,
        };
        config.problem_of_scale().map_or(Ok(config), |problem| Err(bad_key("lora_alpha", problem)))
    }

    /// Writes `adapter_config.json` into a folder, with all keys that PEFT needs.
    ///
    /// # Errors
    /// [`ModelError::Write`] on the file.
    pub fn save(&self, dir: &Path) -> Result<(), ModelError> {
        let is_whole = self.alpha.fract() == 0.0 && self.alpha.abs() < 1e9;
        let value = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
            "r": self.rank,
            "lora_alpha": if is_whole { json!(self.alpha as i64) } else { json!(self.alpha) },
            "lora_dropout": self.dropout,
            "target_modules": self.target_modules,
            "bias": "none",
            "use_rslora": self.is_rank_stabilized,
            "use_dora": false,
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "layers_to_transform": null,
            "rank_pattern": {},
            "alpha_pattern": {},
        });
        write_synced(&dir.join(ADAPTER_CONFIG_FILE), format!("{value:#}\n").as_bytes())
    }

    /// The first setting in which the other differs in what it computes or trains, if any: key and both values.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let pair = |config: &Self| {
            let Self { base: _, rank, alpha, is_rank_stabilized, target_modules, dropout: _ } = config;
            [
                ("r", rank.to_string()),
                ("lora_alpha", alpha.to_string()),
                ("use_rslora", is_rank_stabilized.to_string()),
                ("target_modules", target_modules.join(", ")),
            ]
        };
        let found = pair(self).into_iter().zip(pair(other)).find(|(own, other)| own != other);
        found.map(|((key, own), (_, other))| format!("`{key}` is {own}, not {other}"))
    }
}

/// Whether a key is read elsewhere, is a note, or asks for nothing.
fn is_computed(key: &str, value: &Value) -> bool {
    match key {
        "peft_type" | "base_model_name_or_path" | "r" | "lora_alpha" | "lora_dropout" | "target_modules" => {
            true
        }
        "use_rslora" => value.is_boolean() || value.is_null(),
        "task_type" => value.is_null() || value == "CAUSAL_LM",
        "bias" => value.is_null() || value == "none",
        "init_lora_weights" => match value {
            Value::String(name) => INITIALIZATIONS.contains(&name.as_str()),
            _ => true,
        },
        _ => NOTES.contains(&key) || is_nothing(value),
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn number(map: &Map<String, Value>, key: &str) -> Option<f64> {
    match map.get(key) {
        None | Some(Value::Null) => Some(0.0),
        Some(value) => value.as_f64(),
    }
}

/// `None` for what is no list of names; a text other than `all-linear` is an expression that is not read here.
fn targets(value: &Value) -> Option<Vec<String>> {
    let mut names: Vec<String> = match value {
        Value::String(text) if text == "all-linear" => TARGET_MODULES.map(str::to_owned).to_vec(),
        Value::Array(values) if !values.is_empty() => {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<_>>()?
        }
        _ => return None,
    };
    names.sort_unstable();
    names.dedup();
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PEFT 0.21.2 writes it for rank 8, alpha 32 and two targets.
    fn written_by_peft() -> Value {
        json!({
            "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
            "base_model_name_or_path": "base", "bias": "none", "corda_config": null,
            "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
            "inference_mode": true, "init_lora_weights": true, "kasa_config": null, "layer_replication": null,
            "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 32,
            "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null,
            "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
            "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 8, "rank_pattern": {},
            "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
            "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
            "use_qalora": false, "use_rslora": false, "velora_config": null,
        })
    }

    fn read(value: &Value) -> Result<AdapterConfig, String> {
        AdapterConfig::from_json(value, Path::new("a/adapter_config.json")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_peft_writes_is_read_and_what_is_written_is_read_again() {
        let config = read(&written_by_peft()).unwrap();
        assert_eq!(config.target_modules, ["q_proj", "v_proj"]);
        assert_eq!(config.scale(), 4.0);
        // 32 / sqrt(8), to the nearest f32.
        let stabilized = AdapterConfig { is_rank_stabilized: true, ..config.clone() };
        assert_eq!(stabilized.scale(), 11.313_708);
        let dir = tempfile::tempdir().unwrap();
        for config in [stabilized, AdapterConfig { alpha: 0.5, ..config }] {
            config.save(dir.path()).unwrap();
            assert_eq!(AdapterConfig::load(dir.path()).unwrap(), config);
        }
    }

    #[test]
    fn what_is_not_computed_is_refused() {
        let unsupported = [
            ("peft_type", json!("LOHA")),
            ("task_type", json!("SEQ_CLS")),
            ("bias", json!("lora_only")),
            ("use_dora", json!(true)),
            ("modules_to_save", json!(["lm_head"])),
            ("rank_pattern", json!({"q_proj": 4})),
            ("alpha_pattern", json!({"q_proj": 4})),
            ("fan_in_fan_out", json!(true)),
            ("init_lora_weights", json!("pissa")),
            ("target_modules", json!(".*q_proj")),
            ("layers_to_transform", json!([1])),
            ("something_new", json!(3)),
        ];
        for (key, value) in unsupported {
            let mut config = written_by_peft();
            config[key] = value.clone();
            let expected =
                format!("key `{key}` in `a/adapter_config.json` has an unsupported value: {value}");
            assert_eq!(read(&config).unwrap_err(), expected);
        }
        let impossible = [
            ("r", json!(0), "is not a whole number of 1 or more"),
            ("r", json!("8"), "is not a whole number of 1 or more"),
            ("lora_alpha", json!(null), "is not a number"),
            ("lora_alpha", json!(0), "makes the weight of the adapter 0, so that it would change nothing"),
            (
                "lora_alpha",
                json!(1e-60),
                "makes the weight of the adapter 0, so that it would change nothing",
            ),
            ("lora_alpha", json!(1e300), "makes the weight of the adapter larger than a number of 32 bits"),
            ("lora_dropout", json!(1.0), "is not in [0, 1)"),
            ("target_modules", json!([]), "is not a list of names of modules"),
            ("target_modules", json!(["q_proj", 3]), "is not a list of names of modules"),
            ("base_model_name_or_path", json!(null), "names no folder of a base model"),
        ];
        for (key, value, problem) in impossible {
            let mut config = written_by_peft();
            config[key] = value;
            let expected = format!("key `{key}` in `a/adapter_config.json` {problem}");
            assert_eq!(read(&config).unwrap_err(), expected);
        }
        for key in ["peft_type", "r", "lora_alpha", "target_modules", "base_model_name_or_path"] {
            let mut config = written_by_peft();
            config.as_object_mut().unwrap().remove(key);
            assert_eq!(
                read(&config).unwrap_err(),
                format!("key `{key}` in `a/adapter_config.json` is missing")
            );
        }
    }
}
