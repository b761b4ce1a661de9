use std::path::PathBuf;
use std::process::ExitCode;

use super::inspect::print_bytes;
use crate::config::{Config, Preset};

/// Arguments of `config`.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    config: Option<PathBuf>,

    /// Preset to show
    #[arg(long, value_enum)]
    preset: Option<Preset>,
}

impl ConfigArgs {
    /// Prints the effective configuration as TOML.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let config = match self.config {
            Some(path) => Config::read(&path)?,
            None => self.preset.unwrap_or_default().config(),
        };
        print_bytes(config.to_toml()?.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
