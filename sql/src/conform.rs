//! Holding the result of a query to the table it must make.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, make_comparator};
use arrow::compute::{
    CastOptions, SortColumn, SortOptions, cast_with_options, concat_batches, lexsort_to_indices, partition,
    take_record_batch,
};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use envace_schemas::{Column, Table};

use crate::SqlError;

/// What a query must make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Its name, for messages.
    pub query: &'a str,
    /// The table.
    pub table: Table,
}

impl Target<'_> {
    /// Checks names and types.
    pub(crate) fn check(&self, schema: &Schema) -> Result<(), SqlError> {
        let columns = self.table.columns();
        for column in &columns {
            let found = match only(schema, column.name) {
                Ok(index) => schema.field(index).data_type(),
                Err(found) => return Err(self.column(column.name, found, column.data_type.to_string())),
            };
            if !converts(found, &column.data_type) {
                return Err(self.column(column.name, found.to_string(), column.data_type.to_string()));
            }
        }
        for field in schema.fields() {
            if columns.iter().all(|column| column.name != field.name()) {
                let expected = "no such column".to_owned();
                return Err(self.column(field.name(), field.data_type().to_string(), expected));
            }
        }
        Ok(())
    }

    fn column(&self, column: &str, found: String, expected: String) -> SqlError {
        let query = self.query.to_owned();
        SqlError::Column { query, table: self.table, column: column.to_owned(), found, expected }
    }

    fn arrow(&self, source: ArrowError) -> SqlError {
        SqlError::Arrow { query: self.query.to_owned(), source }
    }

    /// Converts a column and checks that it is known where it must be.
    fn convert(&self, column: &Column, array: &ArrayRef) -> Result<ArrayRef, SqlError> {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let converted =
            cast_with_options(array, &column.data_type, &options).map_err(|source| SqlError::Value {
                query: self.query.to_owned(),
                table: self.table,
                column: column.name.to_owned(),
                expected: column.data_type.to_string(),
                source,
            })?;
        let n_nulls = converted.null_count();
        if n_nulls > 0 && !column.is_nullable {
            let query = self.query.to_owned();
            return Err(SqlError::Null { query, table: self.table, column: column.name.to_owned(), n_nulls });
        }
        Ok(converted)
    }
}

/// Rows from outside as those of a table: columns found by name, converted where nothing can be lost, sorted by the
/// grain. `name` stands in messages.
///
/// # Errors
/// [`SqlError`] if a column is missing, too many, of another type, or NULL where it must be known, or if two rows have
/// one key.
pub fn conform_rows(name: &str, table: Table, batches: &[RecordBatch]) -> Result<Vec<RecordBatch>, SqlError> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    conform(Target { query: name, table }, &first.schema(), batches)
}

/// The result as rows of the table: its columns in its order and types, sorted by its grain.
pub(crate) fn conform(
    target: Target<'_>,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<Vec<RecordBatch>, SqlError> {
    target.check(schema)?;
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    // The plan's schema may promise less about NULL than the batches do; names and types are the same.
    let whole = concat_batches(&first.schema(), batches).map_err(|source| target.arrow(source))?;
    if whole.num_rows() == 0 {
        return Ok(Vec::new());
    }
    let mut arrays = Vec::new();
    for column in target.table.columns() {
        let index = only(schema, column.name)
            .map_err(|found| target.column(column.name, found, column.data_type.to_string()))?;
        arrays.push(target.convert(&column, whole.column(index))?);
    }
    let rows = RecordBatch::try_new(target.table.schema(), arrays).map_err(|source| target.arrow(source))?;
    // Queries of envace give their rows in this order, and looking is a tenth of the work of sorting.
    if is_sorted_by_grain(target.table, &rows).map_err(|source| target.arrow(source))? {
        return Ok(vec![rows]);
    }
    let sorted = sorted_by_grain(target.table, &rows).map_err(|source| target.arrow(source))?;
    check_keys(target, &sorted)?;
    Ok(vec![sorted])
}

/// Index of the only column of that name, or what there is instead.
fn only(schema: &Schema, name: &str) -> Result<usize, String> {
    let mut found = schema.fields().iter().enumerate().filter(|(_, field)| field.name() == name);
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Ok(index),
        (None, _) => Err("missing".to_owned()),
        (Some(_), Some(_)) => Err("there more than once".to_owned()),
    }
}

/// Whether values of one type become values of the other without loss, or with an error.
fn converts(found: &DataType, expected: &DataType) -> bool {
    let is_text =
        |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match (found, expected) {
        // `SELECT NULL AS ...`.
        (DataType::Null, _) => true,
        (found, expected) if found == expected => true,
        (found, DataType::LargeUtf8) => is_text(found),
        (found, DataType::Int32 | DataType::Int64 | DataType::UInt32) => {
            // Sums of counts are decimals without digits after the point.
            found.is_integer() || matches!(found, DataType::Decimal128(_, 0))
        }
        (found, DataType::Float64) => {
            found.is_integer() || matches!(found, DataType::Float32 | DataType::Decimal128(_, _))
        }
        // Not from floats: their sums depend on the order of rows.
        (DataType::Decimal128(_, scale), DataType::Decimal128(_, to)) => scale <= to,
        (found, DataType::Decimal128(_, _)) => found.is_integer(),
        _ => false,
    }
}

const KEY_ORDER: SortOptions = SortOptions { descending: false, nulls_first: true };

fn grain_columns(table: Table, rows: &RecordBatch) -> Vec<ArrayRef> {
    table.grain().iter().filter_map(|name| rows.column_by_name(name)).map(ArrayRef::clone).collect()
}

/// Whether each row's key is greater than the one before it: the rows are sorted, and no key is there twice.
fn is_sorted_by_grain(table: Table, rows: &RecordBatch) -> Result<bool, ArrowError> {
    let columns = grain_columns(table, rows);
    let comparators: Vec<_> = columns
        .iter()
        .map(|values| make_comparator(values, values, KEY_ORDER))
        .collect::<Result<_, ArrowError>>()?;
    Ok((1..rows.num_rows()).all(|row| {
        let order = comparators.iter().map(|compare| compare(row - 1, row)).find(|order| order.is_ne());
        order == Some(Ordering::Less)
    }))
}

fn sorted_by_grain(table: Table, rows: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let options = Some(KEY_ORDER);
    let keys: Vec<_> =
        grain_columns(table, rows).into_iter().map(|values| SortColumn { values, options }).collect();
    let order: UInt32Array = lexsort_to_indices(&keys, None)?;
    take_record_batch(rows, &order)
}

fn check_keys(target: Target<'_>, sorted: &RecordBatch) -> Result<(), SqlError> {
    let keys = grain_columns(target.table, sorted);
    let ranges = partition(&keys).map_err(|source| target.arrow(source))?.ranges();
    let Some(repeated) = ranges.iter().find(|range| range.len() > 1) else { return Ok(()) };
    let mut shown = Vec::new();
    for (name, values) in target.table.grain().iter().zip(&keys) {
        let formatter = ArrayFormatter::try_new(values.as_ref(), &FormatOptions::default())
            .map_err(|source| target.arrow(source))?;
        shown.push(format!("{name} {}", formatter.value(repeated.start)));
    }
    let query = target.query.to_owned();
    Err(SqlError::RepeatedKey { query, table: target.table, key: shown.join(", ") })
}
