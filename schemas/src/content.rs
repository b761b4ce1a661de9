use std::fmt;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, Int32Type, Int64Type, UInt32Type,
};
use serde::{Deserialize, Serialize};

use crate::{Table, TableError};

/// Hex digest of a table part's rows: what lineage compares, whatever wrote the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentHash(pub String);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hashes the rows of `batches`, in order: table, version, column names, and every value's bits.
///
/// How the rows are cut into batches does not matter.
///
/// # Errors
/// [`TableError::Column`] if a batch does not have the table's schema.
pub fn content_hash(table: Table, batches: &[RecordBatch]) -> Result<ContentHash, TableError> {
    let mut whole = blake3::Hasher::new();
    update_framed(&mut whole, table.name().as_bytes());
    whole.update(&table.version().to_le_bytes());
    let n_rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    whole.update(&(n_rows as u64).to_le_bytes());
    for (index, column) in table.columns().iter().enumerate() {
        let mut hasher = blake3::Hasher::new();
        for batch in batches {
            let array = batch.columns().get(index).filter(|array| array.data_type() == &column.data_type);
            let array = array.ok_or_else(|| TableError::Column {
                table,
                column: column.name.to_owned(),
                found: batch
                    .columns()
                    .get(index)
                    .map_or_else(|| "no such column".to_owned(), |array| array.data_type().to_string()),
                expected: column.data_type.to_string(),
            })?;
            for row in 0..array.len() {
                update_value(&mut hasher, array.as_ref(), row);
            }
        }
        update_framed(&mut whole, column.name.as_bytes());
        whole.update(hasher.finalize().as_bytes());
    }
    Ok(ContentHash(whole.finalize().to_hex().to_string()))
}

fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// Feeds one value; NULL, an empty text and an empty list differ from one another.
fn update_value(hasher: &mut blake3::Hasher, array: &dyn Array, row: usize) {
    if array.is_null(row) {
        hasher.update(&[0]);
        return;
    }
    hasher.update(&[1]);
    match array.data_type() {
        DataType::LargeUtf8 => update_framed(hasher, array.as_string::<i64>().value(row).as_bytes()),
        DataType::Boolean => {
            hasher.update(&[u8::from(array.as_boolean().value(row))]);
        }
        DataType::Int32 => {
            hasher.update(&array.as_primitive::<Int32Type>().value(row).to_le_bytes());
        }
        DataType::Int64 => {
            hasher.update(&array.as_primitive::<Int64Type>().value(row).to_le_bytes());
        }
        DataType::UInt32 => {
            hasher.update(&array.as_primitive::<UInt32Type>().value(row).to_le_bytes());
        }
        DataType::Float32 => {
            hasher.update(&array.as_primitive::<Float32Type>().value(row).to_bits().to_le_bytes());
        }
        DataType::Float64 => {
            hasher.update(&array.as_primitive::<Float64Type>().value(row).to_bits().to_le_bytes());
        }
        DataType::Decimal128(_, _) => {
            hasher.update(&array.as_primitive::<Decimal128Type>().value(row).to_le_bytes());
        }
        DataType::LargeList(_) => {
            let items = array.as_list::<i64>().value(row);
            hasher.update(&(items.len() as u64).to_le_bytes());
            for item in 0..items.len() {
                update_value(hasher, items.as_ref(), item);
            }
        }
        // `content_hash` admits only the types that `ColumnType` declares, which are those above.
        other => update_framed(hasher, other.to_string().as_bytes()),
    }
}
