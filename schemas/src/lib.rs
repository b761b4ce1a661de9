//! Every table of envace: name, columns, grain, meaning of NULL, and the only Parquet reader and writer.
//!
//! A table is declared once, in [`tables`]; its Rust row type, its Arrow schema, the documentation in the
//! README and the checks of the stage runner all derive from that declaration. This crate knows nothing of
//! stages, of DataFusion or of models.

mod column;
mod content;
mod decimal;
mod parquet_io;
mod query;
pub mod tables;

pub use column::{Column, ColumnType};
pub use content::{ContentHash, content_hash};
pub use decimal::{Decimal, DecimalError};
pub use parquet_io::{
    TableError, batches_of, read_batches, read_keys, read_rows, rows_of, write_batches, write_rows,
};
pub use query::Query;
pub use tables::{Row, Table};
