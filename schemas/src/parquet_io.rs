use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::{Row, Table};

/// Rows of one row group, at most.
const ROWS_PER_GROUP: usize = 16_384;
/// Bytes in memory of one row group, at most, unless a single row is larger.
const BYTES_PER_GROUP: usize = 64 << 20;

/// A table that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// A column is missing, of another type, or out of place.
    #[error("column `{table}.{column}` is {found}, expected {expected}")]
    Column {
        /// The table.
        table: Table,
        /// The column.
        column: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A column that must be known is NULL somewhere.
    #[error("column `{table}.{column}` has {n_nulls} NULL values, expected none")]
    Null {
        /// The table.
        table: Table,
        /// The column.
        column: String,
        /// How many.
        n_nulls: usize,
    },
    /// The file is no readable Parquet.
    #[error("table `{table}` cannot be read or written as Parquet")]
    Parquet {
        /// The table.
        table: Table,
        /// What the Parquet library says.
        #[source]
        source: ParquetError,
    },
    /// Arrow refused the data.
    #[error("table `{table}` does not hold together")]
    Arrow {
        /// The table.
        table: Table,
        /// What Arrow says.
        #[source]
        source: ArrowError,
    },
    /// Rows could not become columns, or the other way round.
    #[error("rows of table `{table}` cannot be converted")]
    Rows {
        /// The table.
        table: Table,
        /// What the converter says.
        #[source]
        source: Box<serde_arrow::Error>,
    },
}

/// Converts rows to record batches, each small enough for one row group. No rows give no batch.
///
/// # Errors
/// [`TableError::Rows`] if a value does not fit its column.
pub fn batches_of<R: Row>(rows: &[R]) -> Result<Vec<RecordBatch>, TableError> {
    let schema = R::TABLE.schema();
    rows.chunks(ROWS_PER_GROUP)
        .map(|chunk| {
            let batch = serde_arrow::to_record_batch(schema.fields(), &chunk)
                .map_err(|source| TableError::Rows { table: R::TABLE, source: Box::new(source) })?;
            with_schema(R::TABLE, &schema, &batch)
        })
        .collect()
}

/// Converts record batches of the table's schema to rows.
///
/// # Errors
/// [`TableError::Column`] for another schema; [`TableError::Rows`] for a value that does not fit.
pub fn rows_of<R: Row>(batches: &[RecordBatch]) -> Result<Vec<R>, TableError> {
    let schema = R::TABLE.schema();
    let mut rows = Vec::new();
    for batch in batches {
        let batch = with_schema(R::TABLE, &schema, batch)?;
        let part: Vec<R> = serde_arrow::from_record_batch(&batch)
            .map_err(|source| TableError::Rows { table: R::TABLE, source: Box::new(source) })?;
        rows.extend(part);
    }
    Ok(rows)
}

/// Writes batches of the table's schema as one Parquet file: equal rows give equal bytes.
///
/// Row groups are bounded by rows and by bytes, the compression and the `created_by` field are pinned.
///
/// # Errors
/// [`TableError::Column`] or [`TableError::Null`] if a batch breaks the schema; [`TableError::Parquet`] if
/// writing fails.
pub fn write_batches(table: Table, batches: &[RecordBatch]) -> Result<Vec<u8>, TableError> {
    let parquet = |source| TableError::Parquet { table, source };
    let schema = table.schema();
    let level = ZstdLevel::try_new(3).map_err(parquet)?;
    let properties = WriterProperties::builder()
        .set_created_by("envace".to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROWS_PER_GROUP))
        .build();
    let mut bytes = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut bytes, Arc::clone(&schema), Some(properties)).map_err(parquet)?;
    // Row groups are cut by row content alone, so the cut into batches leaves no trace in the file.
    let batches: Vec<RecordBatch> =
        batches.iter().map(|batch| with_schema(table, &schema, batch)).collect::<Result<_, _>>()?;
    let whole = arrow::compute::concat_batches(&schema, &batches)
        .map_err(|source| TableError::Arrow { table, source })?;
    let mut start = 0;
    while start < whole.num_rows() {
        let n_rows = group_len(&whole, start);
        writer.write(&whole.slice(start, n_rows)).map_err(parquet)?;
        writer.flush().map_err(parquet)?;
        start += n_rows;
    }
    writer.close().map_err(parquet)?;
    Ok(bytes)
}

/// Rows of the row group that begins at `start`.
fn group_len(batch: &RecordBatch, start: usize) -> usize {
    let mut n_rows = (batch.num_rows() - start).min(ROWS_PER_GROUP);
    while n_rows > 1 && slice_bytes(batch, start, n_rows) > BYTES_PER_GROUP {
        n_rows = n_rows.div_ceil(2);
    }
    n_rows
}

fn slice_bytes(batch: &RecordBatch, start: usize, n_rows: usize) -> usize {
    let sizes = batch.columns().iter().map(|column| {
        // Sizes are only unknown for types that no table has; such a column counts as empty.
        column.slice(start, n_rows).to_data().get_slice_memory_size().unwrap_or(0)
    });
    sizes.sum()
}

/// Writes rows as one Parquet file; see [`write_batches`].
///
/// # Errors
/// As [`batches_of`] and [`write_batches`].
pub fn write_rows<R: Row>(rows: &[R]) -> Result<Vec<u8>, TableError> {
    write_batches(R::TABLE, &batches_of(rows)?)
}

/// Reads one Parquet file of a table.
///
/// # Errors
/// [`TableError::Parquet`] if it is no Parquet; [`TableError::Column`] or [`TableError::Null`] if it has
/// another schema.
pub fn read_batches(table: Table, bytes: Bytes) -> Result<Vec<RecordBatch>, TableError> {
    let parquet = |source| TableError::Parquet { table, source };
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(parquet)?.build().map_err(parquet)?;
    let schema = table.schema();
    reader
        .map(|batch| {
            let batch = batch.map_err(|source| TableError::Arrow { table, source })?;
            with_schema(table, &schema, &batch)
        })
        .collect()
}

/// Reads the columns of one Parquet file of a table that tell its rows apart: those of its grain, in its order.
///
/// # Errors
/// [`TableError::Parquet`] if it is no Parquet; [`TableError::Column`] if a column is missing or of another type.
pub fn read_keys(table: Table, bytes: Bytes) -> Result<Vec<RecordBatch>, TableError> {
    let parquet = |source| TableError::Parquet { table, source };
    let arrow = |source| TableError::Arrow { table, source };
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(parquet)?;
    check_schema(table, &table.schema(), reader.schema())?;
    let mask = ProjectionMask::columns(reader.parquet_schema(), table.grain().iter().copied());
    let reader = reader.with_projection(mask).build().map_err(parquet)?;
    reader.map(|batch| batch.map_err(arrow)).collect()
}

/// Reads one Parquet file of a table as rows.
///
/// # Errors
/// As [`read_batches`] and [`rows_of`].
pub fn read_rows<R: Row>(bytes: Bytes) -> Result<Vec<R>, TableError> {
    rows_of(&read_batches(R::TABLE, bytes)?)
}

/// Checks names, types and NULLs of `batch` and gives it the table's own schema, metadata included.
fn with_schema(table: Table, schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, TableError> {
    check_schema(table, schema, batch.schema_ref())?;
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        let n_nulls = column.null_count();
        if !field.is_nullable() && n_nulls > 0 {
            return Err(TableError::Null { table, column: field.name().clone(), n_nulls });
        }
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options)
        .map_err(|source| TableError::Arrow { table, source })
}

fn check_schema(table: Table, expected: &Schema, found: &Schema) -> Result<(), TableError> {
    for (index, field) in expected.fields().iter().enumerate() {
        let other = found.fields().get(index);
        let matches =
            other.is_some_and(|other| other.name() == field.name() && other.data_type() == field.data_type());
        if !matches {
            return Err(TableError::Column {
                table,
                column: field.name().clone(),
                found: other.map_or_else(
                    || "missing".to_owned(),
                    |other| format!("`{}` of type {}", other.name(), other.data_type()),
                ),
                expected: format!("{} as column {}", field.data_type(), index + 1),
            });
        }
    }
    match found.fields().get(expected.fields().len()) {
        None => Ok(()),
        Some(extra) => Err(TableError::Column {
            table,
            column: extra.name().clone(),
            found: format!("of type {}", extra.data_type()),
            expected: "no such column".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{RewardRow, SequenceRow};
    use crate::{Decimal, content_hash};

    fn rewards() -> Vec<RewardRow> {
        let row = RewardRow {
            task_id: "a".to_owned(),
            sample: 0,
            role: "actor".to_owned(),
            reward: Some("-0.123456789".parse().unwrap()),
            ungraded_reason: None,
            is_success: Some(false),
            n_graded: 2,
            n_items: 2,
            n_kept_user_turns: 1,
            n_scripted_user_turns: 1,
        };
        let ungraded = RewardRow { sample: 1, reward: None, is_success: None, ..row.clone() };
        vec![row, ungraded]
    }

    #[test]
    fn rows_survive_a_file() {
        let bytes = write_rows(&rewards()).unwrap();
        assert_eq!(read_rows::<RewardRow>(bytes.into()).unwrap(), rewards());
        let sequence = SequenceRow {
            task_id: "é\u{1f600}".to_owned(),
            sample: 3,
            sequence_index: 0,
            role: "actor".to_owned(),
            token_ids: vec![7, u32::MAX],
            loss_mask: vec![false, true],
            sampling_logprobs: vec![None, Some(-0.5)],
        };
        let bytes = write_rows(std::slice::from_ref(&sequence)).unwrap();
        assert_eq!(read_rows::<SequenceRow>(bytes.into()).unwrap(), [sequence]);
        let none: &[SequenceRow] = &[];
        assert_eq!(read_rows::<SequenceRow>(write_rows(none).unwrap().into()).unwrap(), none);
    }

    #[test]
    fn bytes_and_hash_do_not_depend_on_the_cut() {
        let rows: Vec<RewardRow> =
            (0..40).map(|sample| RewardRow { sample, ..rewards()[0].clone() }).collect();
        let whole = batches_of(&rows).unwrap();
        let cut: Vec<_> = rows.chunks(7).flat_map(|chunk| batches_of(chunk).unwrap()).collect();
        let table = Table::Rewards;
        assert_eq!(write_batches(table, &whole).unwrap(), write_batches(table, &cut).unwrap());
        assert_eq!(content_hash(table, &whole).unwrap(), content_hash(table, &cut).unwrap());
    }

    #[test]
    fn every_value_is_in_the_hash() {
        let hash = |rows: &[RewardRow]| content_hash(Table::Rewards, &batches_of(rows).unwrap()).unwrap();
        let original = hash(&rewards());
        let mut changed = rewards();
        changed[1].reward = Some(Decimal::ZERO);
        assert_ne!(hash(&changed), original, "0 is not NULL");
        let mut swapped = rewards();
        swapped.reverse();
        assert_ne!(hash(&swapped), original, "order counts");
    }

    #[test]
    fn another_schema_is_refused_by_column() {
        let bytes = write_rows(&rewards()).unwrap();
        let error = read_batches(Table::Advantages, bytes.into()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column `advantages.generation_index` is `role` of type LargeUtf8, expected Int32 as column 3"
        );
    }

    #[test]
    fn every_table_is_documented_and_sorted_by_its_grain() {
        for table in Table::ALL {
            let columns = table.columns();
            for column in &columns {
                assert!(!column.doc.trim().is_empty(), "{table}.{}", column.name);
                let says_null = column.doc.contains("NULL");
                assert_eq!(
                    says_null,
                    column.is_nullable || column.name == "sampling_logprobs",
                    "{table}.{}",
                    column.name
                );
            }
            for key in table.grain() {
                assert!(
                    columns.iter().any(|column| column.name == *key && !column.is_nullable),
                    "{table}.{key}"
                );
            }
        }
    }
}
