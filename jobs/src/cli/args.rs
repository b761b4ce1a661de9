use std::path::PathBuf;

use envace_pipeline::Store;

use crate::config::{Config, ExecutionConfig, Preset};
use crate::context::RunContext;

/// Where artifacts live.
#[derive(Debug, Clone, clap::Args)]
pub struct StoreArgs {
    /// Folder or URI of the store
    #[arg(long, value_name = "URI", default_value = "envace-store", env = "ENVACE_STORE")]
    pub store: String,
}

impl StoreArgs {
    /// Opens the store, creating a local folder.
    ///
    /// # Errors
    /// If it cannot be reached or written.
    pub fn open(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&self.store)?)
    }
}

/// One run in a store.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// The store
    #[command(flatten)]
    pub store: StoreArgs,

    /// Name of the run
    #[arg(long, value_name = "NAME")]
    pub run: String,

    /// Configuration file; later calls use the one stored with the run
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub config: Option<PathBuf>,

    /// Preset to use as it is, instead of a file
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,

    /// Put the given configuration in place of the one stored with the run
    #[arg(long)]
    pub reconfigure: bool,

    /// Memory for keys and values in this call, such as "2 GiB" or "auto", in place of the configured one; changes no
    /// result
    #[arg(long, value_name = "SIZE")]
    pub kv_memory: Option<String>,

    /// Memory for joins, sums and sorts of a query in this call, such as "1 GiB", in place of the configured one; changes no
    /// result
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,

    /// Where models compute in this call, `cpu` or `cuda:N`, in place of the configured device; the stages' keys say where
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

impl RunArgs {
    /// Opens the run: its stored configuration, or the given one, which is stored.
    ///
    /// # Errors
    /// If the configuration is not valid, or differs from the stored one without `--reconfigure`.
    pub async fn open(&self) -> anyhow::Result<RunContext> {
        let given = match (&self.config, self.preset) {
            (Some(path), _) => Some(Config::read(path)?),
            (None, Some(preset)) => Some(preset.config()),
            (None, None) => None,
        };
        let store = self.store.open()?;
        // Before anything of the run is stored.
        self.replace(ExecutionConfig::default()).check()?;
        let mut context = RunContext::open(store, &self.run, given, self.reconfigure).await?;
        context.config.execution = self.replace(context.config.execution);
        Ok(context)
    }

    /// Puts in what this call sets.
    fn replace(&self, execution: ExecutionConfig) -> ExecutionConfig {
        ExecutionConfig {
            kv_memory: self.kv_memory.clone().unwrap_or(execution.kv_memory),
            query_memory: self.memory_limit.clone().unwrap_or(execution.query_memory),
            device: self.device.clone().unwrap_or(execution.device),
            ..execution
        }
    }
}
