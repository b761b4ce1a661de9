use std::path::PathBuf;

use envace_model::ModelFolder;
use envace_pipeline::{
    Artifact, CheckpointDigest, Execution, InputRef, Manifest, Origin, StageSpec, Store, check_artifact,
    checkpoint_base, checkpoint_dir, optimizer_state_path,
};
use serde_json::json;

use super::{RunContext, import_model};
use crate::config::TrainRole;
use crate::error::JobError;
use crate::policy_assets;
use crate::rollout::episode::Wording;

/// What weights are called among the artifacts and inputs of stages.
#[derive(Debug, PartialEq, Eq)]
pub struct WeightNames {
    /// The weights.
    pub weights: &'static str,
    /// The optimizer's state.
    pub optimizer: &'static str,
    /// The frozen model that they are held to.
    pub reference: &'static str,
}

/// Of the policy: the weights of the actor, and of both roles where they share them.
pub const POLICY: WeightNames =
    WeightNames { weights: "checkpoint", optimizer: "optimizer", reference: "reference_checkpoint" };
/// Of a rehearsal role that has weights of its own.
pub const REHEARSAL: WeightNames = WeightNames {
    weights: "rehearsal_checkpoint",
    optimizer: "rehearsal_optimizer",
    reference: "rehearsal_reference_checkpoint",
};

/// Pins the policy that a run, or one of its roles, begins with.
pub const IMPORT_SPEC: StageSpec =
    StageSpec { name: "checkpoint", version: 1, inputs: &[], outputs: &[], queries: &[], config: "policy" };
const REHEARSAL_SPEC: StageSpec = StageSpec { name: REHEARSAL.weights, ..IMPORT_SPEC };

/// Weights in the store, where they are, and the input they are for a stage.
#[derive(Debug, Clone)]
pub struct PolicySource {
    /// Digest of the weights.
    pub digest: CheckpointDigest,
    /// Local folder to load them from.
    pub dir: PathBuf,
    /// The whole model that an adapter changes; `None` if they are one.
    pub base: Option<CheckpointDigest>,
    /// Local folder of the whole model, with configuration, tokenizer and template: the same, or that of the base.
    pub model_dir: PathBuf,
    /// The input.
    pub input: InputRef,
    /// The optimizer's state beside it: its input and its file. `None`: training begins here.
    pub optimizer: Option<(InputRef, PathBuf)>,
}

impl PolicySource {
    /// Digest of the whole model: its own, or that of an adapter's base.
    pub fn model_digest(&self) -> &CheckpointDigest {
        self.base.as_ref().unwrap_or(&self.digest)
    }

    /// Hashes the weights, before anything is computed from them.
    ///
    /// # Errors
    /// [`JobError::Pipeline`] if they are not what they were.
    pub async fn check_weights(&self, store: &Store) -> Result<(), JobError> {
        let weights = Artifact::Checkpoint { digest: self.digest.clone() };
        Ok(check_artifact(store, &weights).await?)
    }

    /// Hashes the weights and the optimizer's state.
    ///
    /// # Errors
    /// As [`check_weights`](Self::check_weights).
    pub async fn check(&self, store: &Store) -> Result<(), JobError> {
        self.check_weights(store).await?;
        if let Some((input, _)) = &self.optimizer {
            let (checkpoint, digest) = (self.digest.clone(), input.digest.clone());
            check_artifact(store, &Artifact::OptimizerState { checkpoint, digest }).await?;
        }
        Ok(())
    }
}

impl RunContext {
    /// The weights that step `step` begins with: those the run starts from, or those the step before made.
    ///
    /// # Errors
    /// [`JobError::Missing`] if the step before has not been made, or the initial policy cannot be found.
    pub async fn policy_at(&self, step: u64) -> Result<PolicySource, JobError> {
        let Some(before) = step.checked_sub(1) else {
            return self.initial(&IMPORT_SPEC, &self.config.policy.checkpoint, "policy.checkpoint").await;
        };
        if let Some(manifest) = self.training_of(before).await? {
            return self.source(&manifest, &POLICY).await;
        }
        Err(JobError::missing(
            format!("run `{}` has no checkpoint after step {before}", self.run),
            format!("run `envace-jobs update --run {} --step {before}` first", self.run),
        ))
    }

    /// Whether the training at a step was asked for an adapter.
    ///
    /// # Errors
    /// [`JobError::Pipeline`] if the store fails.
    pub async fn was_lora_configured(&self, step: u64) -> Result<bool, JobError> {
        let manifest = self.training_of(step).await?;
        Ok(manifest.is_some_and(|manifest| manifest.key_parts.config.get("lora").is_some()))
    }

    /// The latest output of the stage that trained at a step.
    async fn training_of(&self, step: u64) -> Result<Option<Manifest>, JobError> {
        for stage in ["update", "sft"] {
            if let Some(manifest) = self.store.latest(&self.run, stage, step).await? {
                return Ok(Some(manifest));
            }
        }
        Ok(None)
    }

    /// Whether the rehearsal role has weights of its own that are trained.
    pub fn is_rehearsal_trained_alone(&self) -> bool {
        self.config.roles.rehearsal.checkpoint.is_some()
            && self.config.update.train_roles.contains(&TrainRole::Rehearsal)
    }

    /// The rehearsal role's own weights that step `step` begins with, frozen or trained; `None` if the roles share theirs.
    ///
    /// # Errors
    /// As [`policy_at`](Self::policy_at).
    pub async fn rehearsal_at(&self, step: u64) -> Result<Option<PolicySource>, JobError> {
        let Some(name) = &self.config.roles.rehearsal.checkpoint else { return Ok(None) };
        let before = step.checked_sub(1).filter(|_| self.is_rehearsal_trained_alone());
        let Some(before) = before else {
            let source = self.initial(&REHEARSAL_SPEC, name, "roles.rehearsal.checkpoint").await?;
            let input = source.input.named(REHEARSAL.weights);
            return Ok(Some(PolicySource { input, optimizer: None, ..source }));
        };
        match self.training_of(before).await? {
            Some(manifest) if manifest.artifacts.contains_key(REHEARSAL.weights) => {
                self.source(&manifest, &REHEARSAL).await.map(Some)
            }
            _ => Err(JobError::missing(
                format!(
                    "run `{}` has no checkpoint of the rehearsal role's own after step {before}",
                    self.run
                ),
                format!("run `envace-jobs update --run {} --step {before} --new-attempt` first", self.run),
            )),
        }
    }

    /// Resolves a name once and pins what it stood for, so that a resumed run starts from the same weights.
    async fn initial(&self, spec: &StageSpec, name: &str, key: &str) -> Result<PolicySource, JobError> {
        let config = json!({ "checkpoint": name });
        let pins = self.store.attempts(&self.run, spec.name, 0).await?;
        if let Some(pin) = pins.iter().rev().find(|pin| pin.key_parts.config == config) {
            return self.source(pin, &POLICY).await;
        }
        let (digest, input) = self.resolve(name, key).await?;
        // Another name than the one pinned: the run has not begun, or it was told to go on otherwise.
        let again = Self { new_attempt: !pins.is_empty(), ..self.clone() };
        let plan = again.plan(spec, 0, config, vec![input], None, 1).await?;
        let execution = Execution::new(&self.store, plan);
        execution.add_artifact(0, POLICY.weights, Artifact::Checkpoint { digest })?;
        execution.finish_part(0).await?;
        let manifest = execution.commit().await?;
        self.source(&manifest, &POLICY).await
    }

    /// What a checkpoint's name stands for: see [`crate::config::PolicyConfig::checkpoint`].
    async fn resolve(&self, name: &str, key: &str) -> Result<(CheckpointDigest, InputRef), JobError> {
        if name.is_empty() || name == "bundled" {
            if self.config.rollout.episode.rehearsal.wording != Wording::Compact {
                tracing::warn!(
                    "the bundled policy knows only the short rehearsal prompts that it was taught with: begin from the values of \
                     `jobs/assets/quickstart.toml`, or name a model of your own as `{key}`"
                );
            }
            let dir = policy_assets::unpack()?;
            return self.import(dir.path(), "bundled policy").await;
        }
        if let Some(seed) = name.strip_prefix("untrained:").and_then(|seed| seed.parse().ok()) {
            let dir = policy_assets::unpack_untrained(seed)?;
            return self.import(dir.path(), name).await;
        }
        if let Some(run) = name.strip_prefix("run:") {
            let (run, names) = match run.strip_suffix(":rehearsal") {
                Some(run) => (run, &REHEARSAL),
                None => (run, &POLICY),
            };
            let manifest = newest_checkpoint(self, run, names).await?;
            let input = InputRef::artifact(POLICY.weights, &manifest, names.weights)?;
            return Ok((CheckpointDigest(input.digest.clone()), input));
        }
        let dir = PathBuf::from(name);
        if dir.is_dir() {
            let shown =
                dir.file_name().map_or_else(|| name.to_owned(), |name| name.to_string_lossy().into_owned());
            return self.import(&dir, &shown).await;
        }
        let is_digest = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_digest {
            let digest = CheckpointDigest(name.to_owned());
            checkpoint_dir(&self.store, &digest).await?;
            let origin = Origin::File { name: name.to_owned() };
            let input =
                InputRef { name: POLICY.weights.to_owned(), digest: name.to_owned(), n_rows: None, origin };
            return Ok((digest, input));
        }
        Err(JobError::missing(
            format!("configuration key `{key}` names no model folder, run or checkpoint: {name}"),
            "give a folder of a model or an adapter, `run:NAME`, `run:NAME:rehearsal`, a whole checkpoint digest, `bundled`, or `untrained:SEED`",
        ))
    }

    async fn import(
        &self,
        dir: &std::path::Path,
        shown: &str,
    ) -> Result<(CheckpointDigest, InputRef), JobError> {
        let digest = import_model(&self.store, &ModelFolder::open(dir)?).await?;
        let origin = Origin::File { name: shown.to_owned() };
        let input =
            InputRef { name: POLICY.weights.to_owned(), digest: digest.0.clone(), n_rows: None, origin };
        Ok((digest, input))
    }

    async fn source(&self, manifest: &Manifest, names: &WeightNames) -> Result<PolicySource, JobError> {
        let input = InputRef::artifact(names.weights, manifest, names.weights)?;
        let digest = CheckpointDigest(input.digest.clone());
        let dir = checkpoint_dir(&self.store, &digest).await?;
        let optimizer = match manifest.artifacts.get(names.optimizer) {
            None => None,
            Some(state) => {
                let path = optimizer_state_path(&self.store, state.checkpoint(), state.digest()).await?;
                Some((InputRef::artifact(names.optimizer, manifest, names.optimizer)?, path))
            }
        };
        let base = checkpoint_base(&self.store, &digest).await?;
        let model_dir = match &base {
            None => dir.clone(),
            Some(base) => checkpoint_dir(&self.store, base).await?,
        };
        Ok(PolicySource { digest, dir, base, model_dir, input, optimizer })
    }
}

/// The output with the newest such checkpoint of a run: the highest step, an update before supervised training.
async fn newest_checkpoint(ctx: &RunContext, run: &str, names: &WeightNames) -> Result<Manifest, JobError> {
    envace_pipeline::check_name("run", run)?;
    let manifests = ctx.store.active_manifests(Some(run)).await?;
    let rank = |manifest: &Manifest| match manifest.id.stage.as_str() {
        "update" => Some((manifest.id.step + 1, 1)),
        "sft" => Some((manifest.id.step + 1, 0)),
        "checkpoint" => Some((0, 0)),
        _ => None,
    };
    let rank =
        |manifest: &Manifest| rank(manifest).filter(|_| manifest.artifacts.contains_key(names.weights));
    let newest = manifests.into_iter().filter(|manifest| rank(manifest).is_some()).max_by_key(rank);
    newest.ok_or_else(|| {
        JobError::missing(
            match names == &POLICY {
                true => format!("the store has no checkpoint of run: {run}"),
                false => format!("the store has no trained checkpoint of the rehearsal role's own of run: {run}"),
            },
            "`envace-jobs sql \"SELECT run FROM updates UNION SELECT run FROM sft_losses\"` lists the runs that have one",
        )
    })
}
