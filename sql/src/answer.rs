use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::error::DataFusionError;
use datafusion::parquet::arrow::ArrowWriter;

use crate::SqlError;

/// What a question gave.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows.
    pub batches: Vec<RecordBatch>,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Ruled columns, for people.
    #[default]
    Table,
    /// Comma-separated values with a header; NULL is empty, a list is its text.
    Csv,
    /// One JSON object a line; NULL is `null`.
    JsonLines,
    /// Parquet.
    Parquet,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Table, Self::Csv, Self::JsonLines, Self::Parquet];

    /// As given on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Csv => "csv",
            Self::JsonLines => "jsonl",
            Self::Parquet => "parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("format must be `table`, `csv`, `jsonl` or `parquet`: {0}")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

impl Answer {
    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The answer as the bytes of a file or of standard output.
    ///
    /// # Errors
    /// [`SqlError::Format`] if a column has no such form.
    pub fn write(&self, format: Format) -> Result<Vec<u8>, SqlError> {
        let written = match format {
            Format::Table => self.table(),
            Format::Csv => self.csv(),
            Format::JsonLines => self.json_lines(),
            Format::Parquet => self.parquet(),
        };
        written.map_err(|source| SqlError::Format { format: format.name(), source: source.into() })
    }

    fn table(&self) -> Result<Vec<u8>, DataFusionError> {
        let shown = pretty_format_batches_with_schema(Arc::clone(&self.schema), &self.batches)?;
        Ok(format!("{shown}\n").into_bytes())
    }

    fn csv(&self) -> Result<Vec<u8>, DataFusionError> {
        let mut bytes = Vec::new();
        let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(&mut bytes);
        // Written even if there are no rows, for its header.
        writer.write(&lists_as_text(&self.whole()?)?)?;
        drop(writer);
        Ok(bytes)
    }

    fn json_lines(&self) -> Result<Vec<u8>, DataFusionError> {
        let mut bytes = Vec::new();
        let builder = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
        let mut writer = builder.build::<_, arrow::json::writer::LineDelimited>(&mut bytes);
        for batch in &self.batches {
            writer.write(batch)?;
        }
        writer.finish()?;
        drop(writer);
        Ok(bytes)
    }

    fn parquet(&self) -> Result<Vec<u8>, DataFusionError> {
        let whole = self.whole()?;
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, whole.schema(), None)?;
        writer.write(&whole)?;
        writer.close()?;
        Ok(bytes)
    }

    fn whole(&self) -> Result<RecordBatch, ArrowError> {
        match self.batches.first() {
            // Batches may know better than the plan what is NULL.
            Some(first) => concat_batches(&first.schema(), &self.batches),
            None => Ok(RecordBatch::new_empty(Arc::clone(&self.schema))),
        }
    }
}

/// CSV has no lists: they become text such as `[1, 2]`.
fn lists_as_text(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(Arc::clone(field));
            columns.push(Arc::clone(column));
            continue;
        }
        let formatter = ArrayFormatter::try_new(column.as_ref(), &FormatOptions::default())?;
        let texts =
            (0..column.len()).map(|row| (!column.is_null(row)).then(|| formatter.value(row).to_string()));
        columns.push(Arc::new(texts.collect::<StringArray>()));
        fields.push(Arc::new(Field::new(field.name(), DataType::Utf8, true)));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}
