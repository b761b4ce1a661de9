//! Holding the rows of a result to the rows it is about.

use std::collections::HashSet;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use arrow::error::ArrowError;
use arrow::row::{Row, RowConverter, Rows, SortField};
use envace_schemas::Table;

use crate::SqlError;

/// Checks that a result speaks of each row of `source`, and of nothing else: both hold the same keys, by the columns
/// of the grain of `source`. A query of the user's own that filters or joins too much is found by this.
///
/// # Errors
/// [`SqlError::Uncovered`] if rows are left out or made up; [`SqlError::Arrow`] if the result lacks the columns.
pub fn check_covered(
    query: &str,
    (table, result): (Table, &[RecordBatch]),
    (source, rows): (Table, &[RecordBatch]),
) -> Result<(), SqlError> {
    let failed = |source| SqlError::Arrow { query: query.to_owned(), source };
    let (expected, found) =
        (columns(source.grain(), rows).map_err(failed)?, columns(source.grain(), result).map_err(failed)?);
    // One row each, in one order, is the usual case, and takes no hashing.
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (keys(&expected).map_err(failed)?, keys(&found).map_err(failed)?);
    let (expected, found): (HashSet<Row<'_>>, HashSet<Row<'_>>) =
        (expected.iter().flatten().collect(), found.iter().flatten().collect());
    let (n_missing, n_unknown) = (expected.difference(&found).count(), found.difference(&expected).count());
    if n_missing == 0 && n_unknown == 0 {
        return Ok(());
    }
    Err(SqlError::Uncovered { query: query.to_owned(), table, source_table: source, n_missing, n_unknown })
}

/// The columns of that name, whole.
fn columns(names: &[&str], batches: &[RecordBatch]) -> Result<Vec<ArrayRef>, ArrowError> {
    let Some(first) = batches.first() else { return Ok(Vec::new()) };
    let whole = |name: &&str| {
        let index = first.schema().index_of(name)?;
        let parts: Vec<&dyn Array> = batches.iter().map(|batch| batch.column(index).as_ref()).collect();
        concat(&parts)
    };
    names.iter().map(whole).collect()
}

/// Keys that can be compared and hashed; `None` of no rows.
fn keys(columns: &[ArrayRef]) -> Result<Option<Rows>, ArrowError> {
    if columns.is_empty() {
        return Ok(None);
    }
    let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
    RowConverter::new(fields)?.convert_columns(columns).map(Some)
}

#[cfg(test)]
mod tests {
    use envace_schemas::batches_of;
    use envace_schemas::tables::RewardRow;

    use super::*;

    fn rewards(keys: &[(&str, i32, &str)]) -> Vec<RecordBatch> {
        let row = |(task, sample, role): &(&str, i32, &str)| RewardRow {
            task_id: (*task).to_owned(),
            sample: *sample,
            role: (*role).to_owned(),
            reward: None,
            ungraded_reason: None,
            is_success: None,
            n_graded: 0,
            n_items: 0,
            n_kept_user_turns: 0,
            n_scripted_user_turns: 1,
        };
        batches_of(&keys.iter().map(row).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn what_is_left_out_and_what_is_made_up_is_counted() {
        let source = rewards(&[("a", 0, "actor"), ("a", 1, "actor"), ("b", 0, "actor")]);
        let check = |result: &[RecordBatch]| {
            check_covered("mine", (Table::Rewards, result), (Table::Trajectories, &source))
        };
        // Two roles a trajectory are two rows of one key.
        let both = rewards(&[("a", 0, "actor"), ("a", 0, "rehearsal"), ("a", 1, "actor"), ("b", 0, "actor")]);
        check(&both).unwrap();
        let error = check(&rewards(&[("a", 0, "actor"), ("c", 0, "actor")])).unwrap_err();
        assert!(matches!(error, SqlError::Uncovered { n_missing: 2, n_unknown: 1, .. }), "{error:?}");
        assert!(matches!(check(&[]).unwrap_err(), SqlError::Uncovered { n_missing: 3, n_unknown: 0, .. }));
    }
}
