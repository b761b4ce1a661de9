use bytesize::ByteSize;
use envace_model::{Device, DeviceName, ModelError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigError, JudgeEndpoints, require};

/// What must not change a result: in no stage key. Where it is computed can change last bits; that is in the key as the
/// arithmetic fingerprint, with the kind of processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionConfig {
    /// Where models compute: "cpu", or "cuda:N" for an NVIDIA GPU, counted from 0, with a program that was built with the
    /// feature `cuda`. Default: "cpu".
    pub device: String,
    /// Generations the engine decodes together. Default: 64.
    pub max_batch: usize,
    /// Memory for keys and values of a policy's engine, such as "512 MiB" or "2GB"; taken as it is needed, and then
    /// kept for prompts that begin alike. A sequence that does not fit it alone is an error. "auto": 4 GiB, or what the
    /// longest sequence needs, if that is more. Default: "auto".
    pub kv_memory: String,
    /// A setting of earlier versions, in the stored configurations of their runs. It has no effect.
    #[serde(skip_serializing, deserialize_with = "ignored")]
    #[schemars(skip)]
    pub kv_tokens: (),
    /// Where training keeps gradients and the optimizer's state between uses. Default: `memory`.
    pub optimizer_state: StatePlace,
    /// Folder of the scratch file of `optimizer_state = "disk"`, best on a fast local disk. It takes 12 bytes for each
    /// weight of a checkpoint in 32 bits, 16 for each in 16 bits. Empty: among the files under way of a store that is a
    /// folder, else the system's folder for temporary files. An adapter is small and needs none.
    pub scratch_folder: String,
    /// Memory that a query of `score`, `advantage` or `evaluate` may take for its joins, sums and sorts, such as "512 MiB",
    /// beside the part that it reads and the rows that it makes. What can be moved to a temporary file is; if the rest does
    /// not fit, the stage fails. Empty: no limit. Default: "".
    pub query_memory: String,
    /// Whether a stage that needs more memory than is available is refused before it begins. Default: true.
    pub check_memory: bool,
    /// Where judge models are.
    pub judge: JudgeEndpoints,
}

/// Where training keeps what is needed once a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StatePlace {
    /// In memory.
    #[default]
    Memory,
    /// In a file without a name, read and written one parameter at a time; memory holds the weights, the gradients of
    /// one layer, and activations. The results are the same, bit for bit.
    Disk,
}

/// What [`ExecutionConfig::kv_memory`] may be in place of a size.
const AUTO: &str = "auto";

fn ignored<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(drop)
}

impl Default for ExecutionConfig {
    fn default() -> Self {
        Self {
            device: DeviceName::Cpu.to_string(),
            max_batch: 64,
            kv_memory: AUTO.to_owned(),
            kv_tokens: (),
            optimizer_state: StatePlace::Memory,
            scratch_folder: String::new(),
            query_memory: String::new(),
            check_memory: true,
            judge: JudgeEndpoints::default(),
        }
    }
}

impl ExecutionConfig {
    /// [`ExecutionConfig::kv_memory`] in bytes; 0 for a text that [`ExecutionConfig::check`] refuses.
    pub fn kv_bytes(&self) -> u64 {
        if self.is_kv_enlarged() {
            return 4 << 30;
        }
        self.kv_memory.parse::<ByteSize>().map_or(0, |size| size.as_u64())
    }

    /// Whether a sequence that does not fit [`ExecutionConfig::kv_bytes`] gets what it needs, instead of an error.
    pub fn is_kv_enlarged(&self) -> bool {
        self.kv_memory == AUTO
    }

    /// [`ExecutionConfig::query_memory`] in bytes; `None`: no limit, as for a text that [`ExecutionConfig::check`] refuses.
    pub fn query_bytes(&self) -> Option<usize> {
        let size = self.query_memory.parse::<ByteSize>().ok()?;
        Some(usize::try_from(size.as_u64()).unwrap_or(usize::MAX))
    }

    /// Whether models compute elsewhere than on the processor.
    pub fn is_on_gpu(&self) -> bool {
        self.device.parse().is_ok_and(|name: DeviceName| name != DeviceName::Cpu)
    }

    /// Opens [`ExecutionConfig::device`]: the one place that does.
    ///
    /// # Errors
    /// [`ModelError::NoCuda`] and [`ModelError::Device`] if it cannot be used.
    pub fn open_device(&self) -> Result<Device, ModelError> {
        self.device.parse::<DeviceName>()?.open()
    }

    /// Says what is wrong with it.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting and what it may be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_device = self.device.parse::<DeviceName>().is_ok();
        require(is_device, "execution.device", "must be \"cpu\" or \"cuda:N\", such as \"cuda:0\"")?;
        let is_sound = (1..=65_536).contains(&self.max_batch);
        require(is_sound, "execution.max_batch", "must be between 1 and 65536")?;
        require(
            self.kv_bytes() > 0,
            "execution.kv_memory",
            "must be \"auto\", or a size above 0, such as \"4 GiB\"",
        )?;
        require(
            self.query_memory.is_empty() || self.query_bytes().is_some_and(|bytes| bytes > 0),
            "execution.query_memory",
            "must be empty, or a size above 0, such as \"1 GiB\"",
        )?;
        self.judge.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_by_hand() {
        for (text, bytes) in [("512 MiB", 512 << 20), ("2GB", 2_000_000_000), ("auto", 4 << 30), ("100", 100)]
        {
            let config = ExecutionConfig { kv_memory: text.to_owned(), ..Default::default() };
            assert_eq!(config.kv_bytes(), bytes, "{text}");
            assert!(config.check().is_ok());
        }
        for (text, bytes) in [("", None), ("3 KiB", Some(3072))] {
            let config = ExecutionConfig { query_memory: text.to_owned(), ..Default::default() };
            assert_eq!(config.query_bytes(), bytes, "{text}");
            assert!(config.check().is_ok());
        }
        let config = ExecutionConfig { query_memory: "0".to_owned(), ..Default::default() };
        assert!(config.check().unwrap_err().to_string().contains("query_memory"));
        for text in ["", "0", "much", "-1 GiB", "4 GiB or so"] {
            let config = ExecutionConfig { kv_memory: text.to_owned(), ..Default::default() };
            assert!(config.check().is_err(), "{text}");
        }
    }

    #[test]
    fn devices_are_named_and_opened() {
        for (text, is_on_gpu) in [("cpu", false), ("cuda:0", true), ("cuda:11", true)] {
            let config = ExecutionConfig { device: text.to_owned(), ..Default::default() };
            assert!(config.check().is_ok(), "{text}");
            assert_eq!(config.is_on_gpu(), is_on_gpu, "{text}");
        }
        assert!(ExecutionConfig::default().open_device().unwrap().is_cpu());
        for text in ["", "gpu", "cuda", "cuda:-1", "cpu:0"] {
            let config = ExecutionConfig { device: text.to_owned(), ..Default::default() };
            assert!(config.check().unwrap_err().to_string().contains("execution.device"), "{text}");
        }
    }

    #[test]
    fn the_setting_of_earlier_versions_is_taken_and_forgotten() {
        let config: ExecutionConfig = toml::from_str("max_batch = 3\nkv_tokens = 131072\n").unwrap();
        assert_eq!(config, ExecutionConfig { max_batch: 3, ..Default::default() });
        assert!(!toml::to_string(&config).unwrap().contains("kv_tokens"));
        assert!(toml::from_str::<ExecutionConfig>("kv_token = 1").is_err());
    }
}
