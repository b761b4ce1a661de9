//! The `tasks` stage: a task set in the store, as the output of a run of its own name.

use std::path::Path;

use envace_pipeline::{
    Execution, InputRef, Manifest, PipelineError, Plan, PlanRequest, StageOutput, StageSpec, Store,
    check_name,
};
use envace_schemas::Table;
use envace_schemas::tables::TaskRow;
use serde_json::json;

use crate::error::JobError;
use crate::world;

/// What the stage writes.
pub const SPEC: StageSpec = StageSpec {
    name: "tasks",
    version: 1,
    inputs: &[],
    outputs: &[Table::Tasks],
    queries: &[],
    config: "tasks",
};

/// Where the tasks of a set come from.
#[derive(Debug, Clone, Copy)]
pub enum TaskSource<'a> {
    /// A file.
    File {
        /// The file.
        path: &'a Path,
    },
    /// The bundled world.
    World {
        /// Seed of the tasks.
        seed: u64,
        /// In how many of 100 decisions the operator of a recorded dialogue breaks the rule at hand.
        slips: u8,
    },
}

/// The task set of a name.
///
/// # Errors
/// [`JobError::Missing`] if the store has none of that name.
pub async fn output(store: &Store, set: &str) -> Result<StageOutput, JobError> {
    match StageOutput::latest(store, set, SPEC.name, 0).await {
        Err(PipelineError::NoOutput { .. }) => Err(JobError::missing(
            format!("there is no task set in the store: {set}"),
            format!("bring it in with `envace-jobs tasks import --set {set} …`, or `tasks generate`"),
        )),
        output => Ok(output?),
    }
}

/// Stores a task set. One of the same name and content is reused.
///
/// # Errors
/// [`JobError::Refused`] if there is no task; [`JobError::Pipeline`] if another set of that name is there.
pub async fn store(
    store: &Store,
    set: &str,
    source: TaskSource<'_>,
    rows: &[TaskRow],
    new_attempt: bool,
) -> Result<Manifest, JobError> {
    check_name("task set", set)?;
    if rows.is_empty() {
        return Err(JobError::refused("there is no task to store", "give at least one task"));
    }
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| a.task_id.cmp(&b.task_id));
    let mut hasher = blake3::Hasher::new();
    for row in &rows {
        hasher.update(row.task_hash.as_bytes());
    }
    // The key holds the tasks themselves: an import of other rows under one name is a conflict, not a reuse.
    let config = json!({ "tasks": hasher.finalize().to_hex().to_string() });
    let input = match source {
        TaskSource::File { path } => {
            let bytes = fs_err::read(path).map_err(JobError::file("cannot read the tasks", path))?;
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            InputRef::file("file", &name, &bytes)
        }
        TaskSource::World { seed, slips } => {
            let name = world::source(seed, slips);
            InputRef::file("world", &name, name.as_bytes())
        }
    };
    let mut request = PlanRequest::new(&SPEC, set, 0, config, vec![input]);
    request.new_attempt = new_attempt;
    let execution = Execution::new(store, Plan::make(store, request).await?);
    if !execution.missing_parts().await?.is_empty() {
        execution.write(0, &rows).await?;
        execution.finish_part(0).await?;
    }
    Ok(execution.commit().await?)
}
