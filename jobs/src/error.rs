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
    eprintln!("error: {error}");
    let mut shown = error.to_string();
    let mut hint = None;
    for cause in error.chain() {
        let text = cause.to_string();
        if text != shown {
            eprintln!("  because {text}");
            shown = text;
        }
        hint = hint.or_else(|| hint_of(cause));
    }
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
}

fn hint_of(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<JobError>() {
        return error.hint();
    }
    if let Some(error) = error.downcast_ref::<PipelineError>() {
        return error.hint();
    }
    error.downcast_ref::<crate::tasks::ImportError>().and_then(crate::tasks::ImportError::hint)
}
