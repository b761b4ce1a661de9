use std::path::{Path, PathBuf};

/// What can go wrong between messages, text and tokens.
///
/// `Display` says what failed and where; the cause is only in `source`. What to do next is in [`ChatError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A file could not be read.
    #[error("cannot read a file of the model folder")]
    Read {
        /// Names the path.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file does not parse.
    #[error("`{}` is not valid JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A key of a JSON file has an unexpected value.
    #[error("`{}`: key `{key}` {problem}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with dots between levels.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// `tokenizer.json` was refused by the tokenizers library.
    #[error("`{}` is not a tokenizer that can be loaded", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's reason.
        #[source]
        source: tokenizers::Error,
    },
    /// A text could not be tokenized, or ids could not be decoded.
    #[error("the tokenizer failed on a text of {n_chars} characters")]
    Encode {
        /// Length of the text (or number of ids).
        n_chars: usize,
        /// The library's reason.
        #[source]
        source: tokenizers::Error,
    },
    /// The model folder has no chat template.
    #[error("no chat template in `{}`", dir.display())]
    NoTemplate {
        /// The model folder.
        dir: PathBuf,
    },
    /// The chat template does not parse or refuses a dialogue.
    #[error("chat template `{origin}` failed{}", at_line(*line))]
    Template {
        /// File, and key or name where the file holds several.
        origin: String,
        /// One-based line in the template's text, where known.
        line: Option<usize>,
        /// What the template says; `source` says it too.
        problem: String,
        /// The template engine's own error.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// After an assistant message the template writes nothing that ends a turn.
    #[error("chat template `{origin}` writes no end-of-turn token after an assistant message")]
    NoTurnEnd {
        /// File, and key or name where the file holds several.
        origin: String,
    },
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" at line {line}")).unwrap_or_default()
}

impl ChatError {
    /// What the user can do about it, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoTemplate { .. } => {
                Some("add `chat_template.jinja`, or `chat_template` in `tokenizer_config.json`".to_owned())
            }
            Self::Template { problem, .. } if problem.contains("strftime_now") => {
                Some("pass `date = \"YYYY-MM-DD\"` among the template's variables".to_owned())
            }
            Self::NoTurnEnd { .. } => Some(
                "the token that ends a turn must be a special token, or one of the `eos_token_id`s"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value, ChatError> {
    let text = read_text(path)?;
    serde_json::from_str(&text).map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

/// Reads a JSON file that may be absent.
pub(crate) fn read_json_if_present(path: &Path) -> Result<Option<serde_json::Value>, ChatError> {
    if path.exists() { read_json(path).map(Some) } else { Ok(None) }
}

/// Reads a text file.
pub(crate) fn read_text(path: &Path) -> Result<String, ChatError> {
    fs_err::read_to_string(path).map_err(|source| ChatError::Read { source })
}
