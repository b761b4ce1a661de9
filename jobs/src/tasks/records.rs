//! Cuts the content of a file into records: JSON lines, a JSON array, or Parquet rows.

use std::borrow::Cow;
use std::fmt;

use arrow::json::LineDelimitedWriter;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ImportError;

/// Where a record stands in its file; 1-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line of JSON lines.
    Line(usize),
    /// An element of a JSON array, or a row of a Parquet file.
    Record(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record(record) => write!(f, "record {record}"),
        }
    }
}

/// One record of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record<'b> {
    /// Where it stands.
    pub place: Place,
    /// Its text, which need not be JSON, or why there is none.
    pub text: Result<Cow<'b, str>, String>,
}

/// The records of a file, in order; empty lines are none.
pub(super) fn records(bytes: &[u8]) -> Result<Vec<Record<'_>>, ImportError> {
    if bytes.starts_with(b"PAR1") {
        return parquet_records(bytes);
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.trim_ascii_start().starts_with(b"[") {
        let elements: Vec<&RawValue> =
            serde_json::from_slice(bytes).map_err(|source| ImportError::Array { source })?;
        let record =
            |(index, element): (usize, &'_ RawValue)| (Place::Record(index + 1), element.get().to_owned());
        let records = elements.into_iter().enumerate().map(record);
        return Ok(records.map(|(place, text)| Record { place, text: Ok(Cow::Owned(text)) }).collect());
    }
    Ok(lines(bytes))
}

fn lines(bytes: &[u8]) -> Vec<Record<'_>> {
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let record = |(index, line)| Record {
        place: Place::Line(index + 1),
        text: std::str::from_utf8(line).map(Cow::Borrowed).map_err(|_| "it is no UTF-8".to_owned()),
    };
    lines.map(record).collect()
}

/// Parquet rows as JSON text: nested columns become JSON, NULL fields are left out.
fn parquet_records(bytes: &[u8]) -> Result<Vec<Record<'static>>, ImportError> {
    let parquet = |source| ImportError::Parquet { source };
    let columns = |source| ImportError::Columns { source };
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::copy_from_slice(bytes)).map_err(parquet)?;
    let mut text = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut text);
    for batch in reader.build().map_err(parquet)? {
        writer.write(&batch.map_err(columns)?).map_err(columns)?;
    }
    writer.finish().map_err(columns)?;
    let records = lines(&text).into_iter().enumerate().map(|(index, record)| Record {
        place: Place::Record(index + 1),
        text: record.text.map(|text| Cow::Owned(text.into_owned())),
    });
    Ok(records.collect())
}

/// The id of a record, as far as one can be read.
pub(super) fn id_of(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Ids {
        task_id: Option<String>,
        uuid: Option<String>,
        id: Option<String>,
    }
    let ids: Ids = serde_json::from_str(text).ok()?;
    ids.task_id.or(ids.uuid).or(ids.id)
}

/// The JSON that `raw` is, or that its text holds: some writers put lists and objects into texts.
pub(super) fn unpacked(raw: &RawValue) -> Cow<'_, str> {
    if raw.get().starts_with('"')
        && let Ok(text) = serde_json::from_str::<String>(raw.get())
        && text.trim_start().starts_with(['[', '{'])
    {
        return Cow::Owned(text);
    }
    Cow::Borrowed(raw.get())
}

/// What a JSON parser says of one record, without a line number that means nothing to the reader.
pub(super) fn json_reason(what: &str, error: &serde_json::Error) -> String {
    format!("{what}: {}", error.to_string().replace(" at line 1 column ", " at column "))
}
