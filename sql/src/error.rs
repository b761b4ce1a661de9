use arrow::error::ArrowError;
use envace_schemas::{Table, TableError};

use crate::Cause;

/// A query that cannot be run, or whose result is not what it must be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// The text is no SQL.
    #[error("query `{query}` is no valid SQL")]
    Syntax {
        /// Name of the query.
        query: String,
        /// What the parser says.
        #[source]
        source: Cause,
    },
    /// The text is something else than one question.
    #[error("query `{query}` must be one SELECT: {found}")]
    NotOneSelect {
        /// Name of the query.
        query: String,
        /// What it is.
        found: String,
    },
    /// A table, column, function or parameter is unknown, or types do not fit.
    #[error("query `{query}` does not fit its tables")]
    Plan {
        /// Name of the query.
        query: String,
        /// Tables it may read.
        tables: Vec<String>,
        /// Parameters it may use.
        params: Vec<String>,
        /// What DataFusion says.
        #[source]
        source: Cause,
    },
    /// It failed while it ran.
    #[error("query `{query}` failed")]
    Execution {
        /// Name of the query.
        query: String,
        /// What DataFusion says.
        #[source]
        source: Cause,
    },
    /// It needs more memory than it may take.
    #[error("query `{query}` needs more memory than the {limit} bytes that it may take")]
    Memory {
        /// Name of the query.
        query: String,
        /// The limit, in bytes.
        limit: usize,
        /// What DataFusion says.
        #[source]
        source: Cause,
    },
    /// A result column is missing, of another type, or does not belong to the table.
    #[error("query `{query}`: column `{table}.{column}` is {found}, expected {expected}")]
    Column {
        /// Name of the query.
        query: String,
        /// The table it must make.
        table: Table,
        /// The column.
        column: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A result value does not fit its column.
    #[error("query `{query}`: a value of column `{table}.{column}` does not fit {expected}")]
    Value {
        /// Name of the query.
        query: String,
        /// The table it must make.
        table: Table,
        /// The column.
        column: String,
        /// The column's type.
        expected: String,
        /// What Arrow says.
        #[source]
        source: ArrowError,
    },
    /// A result column that must be known is NULL somewhere.
    #[error("query `{query}`: column `{table}.{column}` has {n_nulls} NULL values, expected none")]
    Null {
        /// Name of the query.
        query: String,
        /// The table it must make.
        table: Table,
        /// The column.
        column: String,
        /// How many.
        n_nulls: usize,
    },
    /// Two result rows are the same one.
    #[error("query `{query}`: table `{table}` has more than one row of {key}")]
    RepeatedKey {
        /// Name of the query.
        query: String,
        /// The table it must make.
        table: Table,
        /// The columns of its grain with their values.
        key: String,
    },
    /// The result leaves out rows of the table it is about, or speaks of rows that are not there.
    #[error(
        "query `{query}`: table `{table}` leaves out {n_missing} rows of `{source_table}` and has {n_unknown} that are \
         not there"
    )]
    Uncovered {
        /// Name of the query.
        query: String,
        /// The table it must make.
        table: Table,
        /// The table whose rows it must cover.
        source_table: Table,
        /// Rows of that table that are left out.
        n_missing: usize,
        /// Rows of the result that are about none of them.
        n_unknown: usize,
    },
    /// An input is not the table it is said to be.
    #[error("an input of query `{query}` is unusable")]
    Input {
        /// Name of the query.
        query: String,
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// The store's tables could not be set up for questions.
    #[error("table `{table}` of the store cannot be opened")]
    Lake {
        /// The table.
        table: Table,
        /// What DataFusion says.
        #[source]
        source: Cause,
    },
    /// The answer cannot be written in that format.
    #[error("the answer cannot be written as {format}")]
    Format {
        /// The format.
        format: &'static str,
        /// Why.
        #[source]
        source: Cause,
    },
    /// Arrow refused to put the result together.
    #[error("the result of query `{query}` does not hold together")]
    Arrow {
        /// Name of the query.
        query: String,
        /// What Arrow says.
        #[source]
        source: ArrowError,
    },
}

impl SqlError {
    /// What the user can do about it, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotOneSelect { .. } => {
                Some("stored tables change through stages and `put` only".to_owned())
            }
            Self::Plan { tables, params, .. } => {
                let mut hint = format!("tables it can read: {}", tables.join(", "));
                if !params.is_empty() {
                    hint = format!("{hint}; parameters: ${}", params.join(", $"));
                }
                Some(hint)
            }
            Self::Column { expected, .. } if expected.starts_with("no such") => {
                Some("leave it out of the SELECT list".to_owned())
            }
            Self::Column { column, found, expected, .. } if found != "missing" => {
                Some(format!("write CAST({column} AS ...) to make it {expected}"))
            }
            Self::Uncovered { .. } => Some(
                "an inner join or a WHERE may drop rows: keep each one, and say why it does not count in a column"
                    .to_owned(),
            ),
            Self::Memory { .. } => Some(
                "raise `execution.query_memory`, or make parts of fewer tasks with `tasks.per_part`".to_owned(),
            ),
            Self::RepeatedKey { .. } => Some("a join may match more than one row".to_owned()),
            _ => None,
        }
    }
}
