use std::path::PathBuf;
use std::process::ExitCode;

use super::inspect::print_bytes;
use crate::config::keys::keys;
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
        let text = config.to_toml()?;
        print_bytes(text.as_bytes())?;
        print_bytes(left_out(&config)?.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The keys that have no value, as comments.
fn left_out(config: &Config) -> anyhow::Result<String> {
    let values = toml::Table::try_from(config)?;
    let is_given = |name: &str| {
        let mut parts = name.split('.');
        let first = parts.next().and_then(|part| values.get(part));
        parts.fold(first, |value, part| value.and_then(|value| value.get(part))).is_some()
    };
    let lines = keys()?.into_iter().filter(|key| !is_given(&key.name)).map(|key| {
        let value = key.default.map_or_else(String::new, |default| format!(" = {default}"));
        format!("# {}{value}: {}\n", key.name, key.meaning)
    });
    let lines: String = lines.collect();
    Ok(if lines.is_empty() { lines } else { format!("\n# Left out:\n{lines}") })
}
