use object_store::path::Path;

use crate::{PipelineError, Store};
use envace_schemas::Table;

/// What to clean away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clean {
    /// Staging of attempts that have their manifest. Always safe.
    Committed,
    /// All that is half done: staging, attempts and checkpoints cut short. Not while anything is running.
    Everything,
}

/// Deletes what is half done or left over, of one run or of all, and returns how many files that were.
///
/// What has a manifest stays. Half checkpoints belong to no run: they go only when `run` is `None`.
///
/// # Errors
/// [`PipelineError::Object`] if the store fails.
pub async fn clean_staging(store: &Store, run: Option<&str>, what: Clean) -> Result<usize, PipelineError> {
    let below = |root: &str| run.map_or(Path::from(root), |run| Path::from(root).join(run));
    if what == Clean::Committed {
        let mut n_deleted = 0;
        for id in store.manifest_ids(run).await? {
            let folder = id.staging_dir("any");
            let parent = folder.parts().take(folder.parts_count() - 1).collect::<Path>();
            n_deleted += store.delete_all(&parent).await?;
        }
        return Ok(n_deleted);
    }
    let mut n_deleted = store.delete_all(&below("staging")).await?;
    for id in store.ids_in(&below("runs"), "claim.json").await? {
        if store.exists(&id.manifest_path()).await? {
            continue;
        }
        for &table in Table::ALL {
            n_deleted += store.delete_all(&id.table_dir(table)).await?;
        }
        // Last, so that being killed here leaves the claim, and the next call goes on.
        store.delete(&id.claim_path()).await?;
        n_deleted += 1;
    }
    if run.is_none() {
        n_deleted += crate::checkpoint::delete_half(store).await?;
    }
    Ok(n_deleted)
}
