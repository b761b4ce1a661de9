//! The `advantage` stage: turns rewards into group-relative advantages, by a query.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use envace_pipeline::{Execution, InputRef, Plan, StageOutput, StageSpec};
use envace_schemas::tables::AdvantageRow;
use envace_schemas::{Table, read_keys, rows_of};
use envace_sql::{check_covered, queries};

use crate::context::{GivenQuery, RunContext, StageOutcome, section};
use crate::error::JobError;

/// What the stage reads and writes.
pub const SPEC: StageSpec = StageSpec {
    name: "advantage",
    version: 1,
    inputs: &[Table::Generations, Table::Rewards],
    outputs: &[Table::Advantages],
    queries: &[queries::ADVANTAGES, queries::WHITENED],
    config: "advantage",
};

/// What the stage reads.
pub struct Inputs {
    rollout: StageOutput,
    score: StageOutput,
}

/// Plans the stage.
///
/// # Errors
/// [`JobError`] if rollout or score are missing or not of each other, or the step was made from something else.
pub async fn plan(ctx: &RunContext, step: u64) -> Result<(Plan, Inputs), JobError> {
    let rollout = ctx.output("rollout", step).await?;
    let score = ctx.output("score", step).await?;
    for table in [Table::Trajectories, Table::Messages] {
        ctx.check_made_from(&score, &InputRef::table(rollout.manifest(), table)?)?;
    }
    let inputs = vec![
        InputRef::table(rollout.manifest(), Table::Generations)?,
        InputRef::table(score.manifest(), Table::Rewards)?,
    ];
    let config = section("advantage", &ctx.config.advantage)?;
    let n_parts = rollout.n_parts(Table::Generations)? as usize;
    let plan = ctx.plan(&SPEC, step, config, inputs, None, n_parts).await?;
    Ok((plan, Inputs { rollout, score }))
}

/// Runs the stage, or reuses its output.
///
/// # Errors
/// As [`plan`], and whatever fails on the way.
pub async fn run(ctx: &RunContext, step: u64) -> Result<StageOutcome, JobError> {
    let (plan, inputs) = plan(ctx, step).await?;
    ctx.follow(&plan, async |execution| execute(ctx, &inputs, execution).await).await
}

/// Checks the query before there are rows to run it on.
///
/// # Errors
/// [`JobError::Sql`] if it cannot be run, or makes another table.
pub async fn check_query(ctx: &RunContext) -> Result<(), JobError> {
    let GivenQuery { name, text } = ctx.query(queries::ADVANTAGES);
    let params = ctx.config.advantage.to_params();
    let session = ctx.query_session();
    Ok(session.check_query(&name, &text, SPEC.inputs, &params, Table::Advantages).await?)
}

/// Runs the query on the missing parts: a group never crosses one. Where advantages are whitened, on all parts, for what
/// is whitened is all that the step has.
///
/// # Errors
/// [`JobError::Sql`] if a query fails, or a replaced one makes another table or other rows.
pub async fn execute(ctx: &RunContext, inputs: &Inputs, execution: &Execution) -> Result<(), JobError> {
    let missing = execution.missing_parts().await?;
    let is_whole = missing.len() == execution.n_parts() as usize;
    let mut has_signal = false;
    if ctx.config.advantage.whiten && !missing.is_empty() {
        let mut batches = Vec::new();
        let mut part_of_task = HashMap::new();
        for part in 0..execution.n_parts() {
            let of_part: Vec<RecordBatch> = advantages(ctx, inputs, part).await?;
            part_of_task.extend(tasks(&of_part).map(|task| (task, part)));
            batches.extend(of_part);
        }
        let GivenQuery { name, text } = ctx.query(queries::WHITENED);
        let tables = [(Table::Advantages, batches)];
        let params = ctx.config.advantage.to_whitening_params();
        let whitened =
            ctx.query_session().run_query(&name, &text, &tables, &params, Table::Advantages).await?;
        check_covered(&name, (Table::Advantages, &whitened), (tables[0].0, &tables[0].1))?;
        has_signal = whitened.iter().any(has_other_than_0);
        let mut rows: BTreeMap<u32, Vec<AdvantageRow>> = BTreeMap::new();
        for row in rows_of::<AdvantageRow>(&whitened)? {
            let Some(part) = part_of_task.get(&row.task_id) else {
                return Err(JobError::refused(
                    format!("whitening made a row of a task that no part has: {}", row.task_id),
                    "a query of one's own must keep `task_id` as it is",
                ));
            };
            rows.entry(*part).or_default().push(row);
        }
        for part in &missing {
            execution.write(*part, &rows.remove(part).unwrap_or_default()).await?;
            execution.finish_part(*part).await?;
        }
    } else {
        for part in missing {
            let batches = advantages(ctx, inputs, part).await?;
            has_signal |= batches.iter().any(has_other_than_0);
            execution.write_batches(Table::Advantages, part, &batches).await?;
            execution.finish_part(part).await?;
        }
    }
    if is_whole && !has_signal {
        tracing::warn!(
            step = execution.id().step,
            "no advantage is other than 0, so that an update learns nothing from the rewards of this step: nothing differs from \
             what it is compared with"
        );
    }
    Ok(())
}

/// The query's rows for a part.
async fn advantages(ctx: &RunContext, inputs: &Inputs, part: u32) -> Result<Vec<RecordBatch>, JobError> {
    let GivenQuery { name, text } = ctx.query(queries::ADVANTAGES);
    let files = [
        (Table::Generations, inputs.rollout.read_file(Table::Generations, part).await?),
        (Table::Rewards, inputs.score.read_file(Table::Rewards, part).await?),
    ];
    let params = ctx.config.advantage.to_params();
    let batches =
        ctx.query_session().run_query_on_files(&name, &text, &files, &params, Table::Advantages).await?;
    let [(generations, file), _] = files;
    let keys = read_keys(generations, file)?;
    check_covered(&name, (Table::Advantages, &batches), (generations, &keys))?;
    Ok(batches)
}

/// The tasks of some rows.
fn tasks(batches: &[RecordBatch]) -> impl Iterator<Item = String> {
    let columns = batches.iter().filter_map(|batch| batch.column_by_name("task_id"));
    let texts = columns.filter_map(|column| column.as_string_opt::<i64>());
    texts.flat_map(|texts| texts.iter().flatten().map(str::to_owned))
}

fn has_other_than_0(batch: &RecordBatch) -> bool {
    let values =
        batch.column_by_name("advantage").and_then(|column| column.as_primitive_opt::<Float64Type>());
    values.is_some_and(|values| values.iter().flatten().any(|value| value != 0.0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float64Array};

    use super::*;

    #[test]
    fn a_step_without_a_signal_is_known_by_its_advantages() {
        let batch = |values: Vec<Option<f64>>| {
            let column: ArrayRef = Arc::new(Float64Array::from(values));
            RecordBatch::try_from_iter([("advantage", column)]).unwrap()
        };
        assert!(!has_other_than_0(&batch(vec![Some(0.0), None, Some(-0.0)])));
        assert!(has_other_than_0(&batch(vec![None, Some(-1e-9)])));
        assert!(!has_other_than_0(&batch(Vec::new())));
        // The column has that type and name in the table.
        assert_eq!(
            Table::Advantages.schema().field_with_name("advantage").unwrap().data_type(),
            &arrow::datatypes::DataType::Float64
        );
    }
}
