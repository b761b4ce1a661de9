//! What every table must satisfy before it is taken: its schema, its order, and no row twice.

use std::cmp::Ordering;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::row::{OwnedRow, RowConverter, SortField};
use arrow::util::display::array_value_to_string;
use envace_schemas::{ContentHash, Table, TableError, content_hash, write_batches};

use crate::PipelineError;
use crate::key::hash_hex;

/// A table part as it will be stored.
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) n_rows: u64,
    pub(crate) content_hash: ContentHash,
    pub(crate) byte_hash: String,
}

/// Checks a part and encodes it.
pub(crate) fn encode(table: Table, part: u32, batches: &[RecordBatch]) -> Result<Encoded, PipelineError> {
    let unsound = |source| PipelineError::Table { table, part, source };
    let bytes = write_batches(table, batches).map_err(unsound)?;
    check_order(table, part, batches)?;
    let n_rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let content_hash = content_hash(table, batches).map_err(unsound)?;
    let byte_hash = hash_hex(&bytes);
    Ok(Encoded { bytes, n_rows, content_hash, byte_hash })
}

/// Checks that rows ascend strictly by the table's grain. Texts compare by their bytes.
fn check_order(table: Table, part: u32, batches: &[RecordBatch]) -> Result<(), PipelineError> {
    let arrow = |source| PipelineError::Table { table, part, source: TableError::Arrow { table, source } };
    let schema = table.schema();
    let fields = table
        .grain()
        .iter()
        .map(|name| schema.field_with_name(name).map(|field| SortField::new(field.data_type().clone())));
    let fields: Vec<_> = fields.collect::<Result<_, _>>().map_err(arrow)?;
    let converter = RowConverter::new(fields).map_err(arrow)?;
    let mut before: Option<OwnedRow> = None;
    let mut n_before = 0;
    for batch in batches {
        let columns = grain_columns(table, batch).map_err(arrow)?;
        let rows = converter.convert_columns(&columns).map_err(arrow)?;
        for (index, row) in rows.iter().enumerate() {
            let order = match index.checked_sub(1) {
                Some(last) => Some(rows.row(last).cmp(&row)),
                None => before.as_ref().map(|before| before.row().cmp(&row)),
            };
            let Some(order @ (Ordering::Equal | Ordering::Greater)) = order else { continue };
            let (row, key) = (n_before + index, shown_key(table, batch, index).map_err(arrow)?);
            return Err(match order {
                Ordering::Equal => PipelineError::Duplicate { table, part, row, key },
                _ => PipelineError::Unsorted { table, part, row, key },
            });
        }
        if let Some(last) = batch.num_rows().checked_sub(1) {
            before = Some(rows.row(last).owned());
        }
        n_before += batch.num_rows();
    }
    Ok(())
}

fn grain_columns(table: Table, batch: &RecordBatch) -> Result<Vec<arrow::array::ArrayRef>, ArrowError> {
    table
        .grain()
        .iter()
        .map(|name| batch.schema_ref().index_of(name).map(|index| batch.columns()[index].clone()))
        .collect()
}

fn shown_key(table: Table, batch: &RecordBatch, row: usize) -> Result<String, ArrowError> {
    let columns = grain_columns(table, batch)?;
    let shown = table.grain().iter().zip(&columns).map(|(name, column)| {
        array_value_to_string(column.as_ref(), row).map(|value| format!("{name}={value}"))
    });
    shown.collect::<Result<Vec<_>, _>>().map(|shown| shown.join(", "))
}

#[cfg(test)]
mod tests {
    use envace_schemas::batches_of;
    use envace_schemas::tables::TimingRow;

    use super::*;

    fn row(subject: &str, metric: &str) -> TimingRow {
        TimingRow { subject: subject.to_owned(), metric: metric.to_owned(), value: 1.0 }
    }

    fn check(keys: &[(&str, &str)], cut: usize) -> Result<(), String> {
        let rows: Vec<_> = keys.iter().map(|(subject, metric)| row(subject, metric)).collect();
        let batches: Vec<_> = rows.chunks(cut).flat_map(|chunk| batches_of(chunk).unwrap()).collect();
        encode(Table::Timings, 2, &batches).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_out_of_order_and_repeated_rows_are_named() {
        let sorted = [("B", "z"), ("a", "x"), ("a", "y"), ("é", "a")];
        let swapped = [("a", "x"), ("B", "z"), ("a", "y")];
        let repeated = [("a", "x"), ("a", "y"), ("a", "y")];
        for cut in 1..=3 {
            assert_eq!(check(&sorted, cut), Ok(()), "{cut}");
            assert_eq!(
                check(&swapped, cut).unwrap_err(),
                "row 1 of `timings`, part 2, is out of order: subject=B, metric=z"
            );
            assert_eq!(
                check(&repeated, cut).unwrap_err(),
                "row 2 of `timings`, part 2, repeats the one before: subject=a, metric=y"
            );
        }
        assert_eq!(check(&[], 1), Ok(()));
    }

    #[test]
    fn another_schema_is_refused() {
        let batches = batches_of(&[row("a", "b")]).unwrap();
        let Err(error) = encode(Table::Rewards, 0, &batches) else { panic!("taken") };
        assert_eq!(error.to_string(), "part 0 of `rewards` is no sound table");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("column `rewards.task_id` is `subject`"), "{source}");
    }
}
