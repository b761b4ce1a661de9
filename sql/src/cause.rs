use std::fmt;

use datafusion::error::DataFusionError;

/// What DataFusion says, once.
///
/// The text of a `DataFusionError` repeats the text of its own source, so a printed chain would say everything
/// several times over; this holds the innermost message and has no source.
#[derive(Debug)]
pub struct Cause(String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Cause {}

impl From<DataFusionError> for Cause {
    fn from(error: DataFusionError) -> Self {
        let root = error.find_root();
        let text = match root {
            // The parser's own text, not its debug form.
            DataFusionError::SQL(error, _) => error.to_string(),
            DataFusionError::SchemaError(error, _) => error.to_string(),
            DataFusionError::ArrowError(error, _) => error.to_string(),
            other => other.message().into_owned(),
        };
        // A backtrace, where one is recorded, follows the message.
        let text = text.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Self(lines.join(" ").trim_end_matches('.').to_owned())
    }
}
