//! Rows that another program wrote, as those of a table.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use envace_schemas::tables::GenerationRow;
use envace_schemas::{Table, batches_of, rows_of};
use envace_sql::conform_rows;

use crate::common::generation;

/// The rows as pandas or DuckDB would write them: shorter text offsets, wider integers, columns in another order.
fn foreign(rows: &[GenerationRow]) -> RecordBatch {
    let own = batches_of(rows).unwrap().remove(0);
    let schema = own.schema();
    let columns = schema.fields().iter().zip(own.columns()).rev().map(|(field, column)| {
        let data_type = match field.data_type() {
            DataType::LargeUtf8 => DataType::Utf8,
            DataType::Int32 => DataType::Int64,
            other => other.clone(),
        };
        (field.name().clone(), cast(column, &data_type).unwrap(), true)
    });
    RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<(String, ArrayRef, bool)>>()).unwrap()
}

#[test]
fn another_programs_types_and_order_are_taken() {
    let rows = vec![generation("b", 0, 0, "actor"), generation("a", 1, 0, "actor")];
    let conformed = conform_rows("file", Table::Generations, &[foreign(&rows)]).unwrap();
    // Sorted by the grain, and otherwise what was written.
    let expected = vec![rows[1].clone(), rows[0].clone()];
    assert_eq!(rows_of::<GenerationRow>(&conformed).unwrap(), expected);
}

#[test]
fn what_would_be_lost_or_is_missing_is_refused() {
    let batch = foreign(&[generation("a", 0, 0, "actor")]);
    let refused =
        |batch: RecordBatch| conform_rows("file", Table::Generations, &[batch]).unwrap_err().to_string();
    let without = batch.project(&(1..batch.num_columns()).collect::<Vec<_>>()).unwrap();
    assert!(refused(without).contains("top_k"), "the last column of the table is the first one here");
    let twice = foreign(&[generation("a", 0, 0, "actor"), generation("a", 0, 0, "actor")]);
    assert!(conform_rows("file", Table::Generations, &[twice]).is_err(), "two rows of one key");
    let too_large: ArrayRef = Arc::new(arrow::array::Int64Array::from(vec![i64::from(i32::MAX) + 1]));
    let schema = batch.schema();
    let mut columns: Vec<(String, ArrayRef, bool)> = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| (field.name().clone(), Arc::clone(column), true))
        .collect();
    let sample = columns.iter_mut().find(|(name, _, _)| name == "sample").unwrap();
    sample.1 = too_large;
    assert!(
        conform_rows(
            "file",
            Table::Generations,
            &[RecordBatch::try_from_iter_with_nullable(columns).unwrap()]
        )
        .is_err()
    );
}
