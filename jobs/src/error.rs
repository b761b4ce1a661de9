//! Everything that can go wrong while a job runs.

use std::path::PathBuf;

use envace_grpo::loss::LossError;
use envace_model::ModelError;
use envace_model::chat::ChatError;
use envace_pipeline::PipelineError;
use envace_schemas::TableError;
use envace_sql::SqlError;

use crate::config::ConfigError;
use crate::task::TaskError;

/// Everything that can go wrong while a job runs.
///
/// `Display` says what failed and where; the cause is only in `source`. What to do next is in
/// [`JobError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The store, a plan or a manifest.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A query.
    #[error(transparent)]
    Sql(#[from] SqlError),
    /// Weights, training or generation.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tokenizer or chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The objective.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A task.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// A file.
    #[error("{action}: {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// JSON that cannot be made or read.
    #[error("{what} is not valid JSON")]
    Json {
        /// What it is.
        what: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A run without what the stage needs.
    #[error("{what}")]
    Missing {
        /// What is missing, and where.
        what: String,
        /// What to do.
        hint: String,
    },
    /// Data that a stage refuses to work with.
    #[error("{what}")]
    Refused {
        /// What is wrong, and where.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A worker that died.
    #[error("{what} stopped early")]
    Worker {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        source: tokio::task::JoinError,
    },
}

impl JobError {
    /// What the user can do about it, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Pipeline(error) => error.hint(),
            Self::Sql(error) => error.hint(),
            Self::Model(error) => error.hint(),
            Self::Missing { hint, .. } | Self::Refused { hint, .. } => Some(hint.clone()),
            _ => None,
        }
    }

    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    pub(crate) fn missing(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), hint: hint.into() }
    }

    pub(crate) fn refused(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), hint: hint.into() }
    }
}

/// Prints an error with its causes, then what the user can do.
pub fn print_error(error: &anyhow::Error) {
    eprintln!("{}", report(error));
}

fn report(error: &anyhow::Error) -> String {
    let mut lines = vec![format!("error: {error}")];
    let mut said = error.to_string();
    let mut hint = None;
    for cause in error.chain() {
        // Some errors say at their end what their cause says, or one line of it.
        let text = cause.to_string();
        let news: Vec<&str> = text.lines().filter(|line| !said.ends_with(line)).collect();
        if !news.is_empty() {
            lines.push(format!("  because {}", news.join("\n")));
            said = text;
        }
        hint = hint.or_else(|| hint_of(cause));
    }
    lines.extend(hint.map(|hint| format!("hint: {hint}")));
    lines.join("\n")
}

fn hint_of(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<JobError>() {
        return error.hint();
    }
    if let Some(error) = error.downcast_ref::<PipelineError>() {
        return error.hint();
    }
    if let Some(error) = error.downcast_ref::<SqlError>() {
        return error.hint();
    }
    error.downcast_ref::<crate::tasks::ImportError>().and_then(crate::tasks::ImportError::hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_an_error_and_its_causes_have_in_common_is_said_once() {
        let unknown = Config::parse("[rollout]\nfoo = 1\n", "run.toml").unwrap_err();
        let said = report(&unknown.into());
        assert_eq!(said.matches("unknown field `foo`").count(), 1, "{said}");
        assert!(said.contains("because TOML parse error at line 2, column 1"), "{said}");
        let broken = serde_json::from_str::<u8>("{").unwrap_err();
        let cause = broken.to_string();
        let outer = anyhow::Error::new(broken).context(format!("header: {cause}")).context("no file");
        assert_eq!(report(&outer), format!("error: no file\n  because header: {cause}"));
        // A query's own hint is told on its way through a stage and from `sql`.
        let repeated = || SqlError::RepeatedKey {
            query: "q".to_owned(),
            table: envace_schemas::Table::Rewards,
            key: "k".to_owned(),
        };
        for error in [anyhow::Error::new(repeated()), JobError::from(repeated()).into()] {
            assert!(report(&error).contains("hint: a join may match"), "{error:?}");
        }
        let missing = JobError::missing("there is none", "make one");
        assert_eq!(report(&missing.into()), "error: there is none\nhint: make one");
    }
}
