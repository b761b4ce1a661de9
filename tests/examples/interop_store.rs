//! Writes a small store with every table, for readers of other languages: values at the edges of each type, NULLs in
//! every column that may hold one, an empty part, two steps and two attempts.
//!
//! ```text
//! cargo run -p envace-tests --example interop_store -- FOLDER
//! tests/interop/run.sh FOLDER
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array,
    LargeListArray, LargeStringArray, RecordBatch, UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;
use envace_schemas::{Table, write_batches};

/// Rows of a part; the last part of each table has none.
const N_ROWS: &[usize] = &[7, 1, 0];

const TEXTS: &[&str] =
    &["", "plain", "{\"a\": {}, \"b\": [1, null]}", "zwölf Boxkämpfer 🥊", "tab\tand\nnewline", "'\"\\"];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: interop_store FOLDER")?;
    for table in Table::ALL {
        for (step, attempt) in [(0, 0), (12, 0), (12, 1)] {
            for (part, n_rows) in N_ROWS.iter().enumerate() {
                let output =
                    format!("run=made-up/stage=made/step={step:06}/attempt={attempt}/part-{part:05}.parquet");
                let path = Path::new(&folder).join("tables").join(table.name()).join(output);
                fs_err::create_dir_all(path.parent().ok_or("a path without a folder")?)?;
                fs_err::write(path, write_batches(*table, &[batch(*table, *n_rows)?])?)?;
            }
        }
    }
    Ok(())
}

fn batch(table: Table, n_rows: usize) -> Result<RecordBatch, Box<dyn Error>> {
    let columns = table.columns().into_iter().enumerate();
    let columns = columns.map(|(index, column)| values(&column.data_type, column.is_nullable, index, n_rows));
    Ok(RecordBatch::try_new(table.schema(), columns.collect::<Result<_, _>>()?)?)
}

/// `n` values of a type; every third is NULL if it may be, the first of the second column on.
fn values(
    data_type: &DataType,
    is_nullable: bool,
    shift: usize,
    n: usize,
) -> Result<ArrayRef, Box<dyn Error>> {
    let places = (shift..shift + n).map(|place| (!is_nullable || !place.is_multiple_of(3)).then_some(place));
    Ok(match data_type {
        DataType::LargeUtf8 => {
            Arc::new(LargeStringArray::from_iter(places.map(|p| p.map(|p| TEXTS[p % TEXTS.len()]))))
                as ArrayRef
        }
        DataType::Boolean => {
            Arc::new(BooleanArray::from_iter(places.map(|p| p.map(|p| p.is_multiple_of(2)))))
        }
        DataType::Int32 => Arc::new(Int32Array::from_iter(places.map(|p| p.map(|p| i32::MAX - p as i32)))),
        DataType::Int64 => Arc::new(Int64Array::from_iter(places.map(|p| p.map(|p| (1 << 50) + p as i64)))),
        DataType::UInt32 => Arc::new(UInt32Array::from_iter(places.map(|p| p.map(|p| u32::MAX - p as u32)))),
        DataType::Float32 => Arc::new(Float32Array::from_iter(places.map(|p| p.map(|p| -0.1 * p as f32)))),
        DataType::Float64 => {
            Arc::new(Float64Array::from_iter(places.map(|p| p.map(|p| 1e-3 / (p as f64 + 1.0)))))
        }
        DataType::Decimal128(precision, scale) => {
            let array = Decimal128Array::from_iter(places.map(|p| p.map(|p| p as i128 - 2)));
            Arc::new(array.with_precision_and_scale(*precision, *scale)?)
        }
        DataType::LargeList(item) => {
            // Lists of 0, 1, 2, … values.
            let items = values(item.data_type(), item.is_nullable(), shift, n * n.saturating_sub(1) / 2)?;
            Arc::new(LargeListArray::new(Arc::clone(item), OffsetBuffer::from_lengths(0..n), items, None))
        }
        other => return Err(format!("no values for the type {other}").into()),
    })
}
