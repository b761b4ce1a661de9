//! What an update trains: the weights that both roles share, or those of each.

use envace_pipeline::{Artifact, Execution, InputRef, Store, add_optimizer_state};

use crate::config::TrainRole;
use crate::context::{POLICY, PolicySource, REHEARSAL, RunContext, WeightNames, import_unchanged};
use crate::error::JobError;

/// Weights that go from step to step, and whose generations train them.
#[derive(Debug, Clone)]
pub struct Chain {
    /// What they are called.
    pub names: &'static WeightNames,
    /// Roles whose generations they are trained on; without any they stay as they are.
    pub roles: Vec<TrainRole>,
    /// Those that the step begins with.
    pub source: PolicySource,
    /// Those that they are held to, if they are.
    pub reference: Option<PolicySource>,
}

impl Chain {
    /// The chains of a run at a step: the policy, and the rehearsal role's own if it has some that are trained.
    ///
    /// # Errors
    /// [`JobError`] if a checkpoint that the step begins with is missing.
    pub async fn all(ctx: &RunContext, step: u64) -> Result<Vec<Self>, JobError> {
        let is_held = ctx.config.update.kl.coefficient > 0.0;
        let own = match ctx.is_rehearsal_trained_alone() {
            true => ctx.rehearsal_at(step).await?,
            false => None,
        };
        let (of_own, mut of_policy): (Vec<TrainRole>, Vec<TrainRole>) =
            ctx.config.update.train_roles.iter().partition(|role| **role == TrainRole::Rehearsal);
        if own.is_none() && ctx.config.roles.rehearsal.checkpoint.is_none() {
            of_policy.clone_from(&ctx.config.update.train_roles);
        }
        let reference = if is_held { Some(ctx.policy_at(0).await?) } else { None };
        let mut chains = vec![Self {
            names: &POLICY,
            roles: of_policy,
            source: ctx.policy_at(step).await?,
            reference: reference.map(|reference| named(reference, POLICY.reference)),
        }];
        if let Some(source) = own {
            let reference = if is_held { ctx.rehearsal_at(0).await? } else { None };
            let reference = reference.map(|reference| named(reference, REHEARSAL.reference));
            chains.push(Self { names: &REHEARSAL, roles: of_own, source, reference });
        }
        Ok(chains)
    }

    /// What of it an update's key has.
    pub fn inputs(&self) -> impl Iterator<Item = InputRef> {
        let optimizer = self.source.optimizer.iter().map(|(input, _)| input.clone());
        let reference = self.reference.iter().map(|reference| reference.input.clone());
        [self.source.input.clone()].into_iter().chain(optimizer).chain(reference)
    }

    /// States that the weights are after the step what they were before it.
    ///
    /// # Errors
    /// [`JobError::Pipeline`] if the store fails, which need not be the one that the weights are in.
    pub async fn hand_on(&self, into: &Store, execution: &Execution) -> Result<(), JobError> {
        import_unchanged(into, &self.source).await?;
        let checkpoint = self.source.digest.clone();
        if let Some((_, path)) = &self.source.optimizer {
            let digest = add_optimizer_state(into, &checkpoint, path).await?;
            let state = Artifact::OptimizerState { checkpoint: checkpoint.clone(), digest };
            execution.add_artifact(0, self.names.optimizer, state)?;
        }
        Ok(execution.add_artifact(0, self.names.weights, Artifact::Checkpoint { digest: checkpoint })?)
    }
}

fn named(source: PolicySource, name: &str) -> PolicySource {
    PolicySource { input: source.input.named(name), ..source }
}
