//! The stage contract: keys, parts, manifests, store, lineage.
//!
//! A stage declares what it reads and writes in a [`StageSpec`]. A [`Plan`] compares what it would be made
//! from with what is in the [`Store`], and says whether to reuse or to make. An [`Execution`] takes the rows
//! part by part and commits them; the [`Manifest`], written last, is what makes them an output. This crate
//! does not know what any stage does.
//!
//! ```text
//! tables/<table>/run=R/stage=S/step=000012/attempt=0/part-00000.parquet
//! runs/R/config.toml
//! runs/R/<stage>/step=000012/attempt=0/{claim,manifest}.json
//! checkpoints/<digest>/…
//! staging/R/<stage>/step=000012/attempt=0/<key>/…
//! ```
//!
//! A process may be killed between any two writes, and several may work on one stage: what is half done is
//! never seen, is finished by whoever comes next, and gives the same bytes.

mod catalog;
mod check;
mod checkpoint;
mod clean;
mod compare;
mod error;
mod execution;
mod json;
mod key;
mod lineage;
mod manifest;
mod output;
mod plan;
mod put;
mod stage;
mod staging;
mod store;
mod verify;

pub use catalog::RunConfig;
pub use checkpoint::{
    CheckpointDigest, adapter_base_name, add_optimizer_state, check_artifact, checkpoint_base,
    checkpoint_dir, import_adapter, import_checkpoint, optimizer_state_path,
};
pub use clean::{Clean, clean_staging};
pub use compare::{Comparison, PartDifference, compare};
pub use error::PipelineError;
pub use execution::Execution;
pub use key::{KeyDifference, KeyParts, StageKey};
pub use lineage::{InputStatus, Lineage, LineageLink, LineageNode};
pub use manifest::{
    Artifact, InputRef, MadeBy, Manifest, Origin, PartRecord, Provenance, Replaced, current_user,
};
pub use object_store::path::Path;
pub use output::StageOutput;
pub use plan::{PartCheck, Plan, PlanRequest, PlanState};
pub use put::put;
pub use stage::{MAX_NAME_CHARS, StageId, StageSpec, check_name};
pub use store::Store;
pub use verify::{Problem, Verification, verify};
