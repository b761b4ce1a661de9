//! A rehearsal role with weights of its own: trained beside the policy, as it would be alone.

use envace_jobs::config::TrainRole;
use envace_jobs::context::RunContext;
use envace_jobs::drive::{Stage, drive};
use envace_jobs::rerun::rerun;
use envace_pipeline::{StageOutput, verify};
use envace_schemas::tables::{GenerationRow, UpdateRow};

use crate::whole_run::{CONFIG, RUN, context, fingerprint, steps};

const BOTH: [TrainRole; 2] = [TrainRole::Actor, TrainRole::Rehearsal];

/// A run whose rehearsal role has a checkpoint of its own, if one is named, and which trains these roles.
async fn run(dir: &tempfile::TempDir, own: Option<&str>, roles: &[TrainRole], kl: f64) -> RunContext {
    let mut ctx = context(dir, CONFIG).await;
    ctx.config.roles.rehearsal.checkpoint = own.map(str::to_owned);
    ctx.config.update.train_roles = roles.to_vec();
    ctx.config.update.kl.coefficient = kl;
    ctx.config.check().unwrap();
    ctx.store.store_run_config(RUN, &ctx.config.to_toml().unwrap()).await.unwrap();
    ctx
}

async fn policy(ctx: &RunContext, step: u64) -> String {
    ctx.policy_at(step).await.unwrap().digest.0
}

async fn rehearsal(ctx: &RunContext, step: u64) -> String {
    ctx.rehearsal_at(step).await.unwrap().unwrap().digest.0
}

async fn updates(ctx: &RunContext, step: u64) -> Vec<UpdateRow> {
    StageOutput::latest(&ctx.store, RUN, "update", step).await.unwrap().read_all().await.unwrap()
}

#[tokio::test]
async fn each_role_is_trained_as_if_alone() {
    let dirs: [_; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    // Held to where it began, so that each has a reference of its own.
    let separate = run(&dirs[0], Some("bundled"), &BOTH, 0.1).await;
    steps(&separate, 1).await;
    // With the same weights for both roles at first, the rollout is the same as with shared ones, and so is the gradient
    // of a role that is trained alone.
    let actor = run(&dirs[1], Some("bundled"), &[TrainRole::Actor], 0.1).await;
    steps(&actor, 1).await;
    let other = run(&dirs[2], None, &[TrainRole::Rehearsal], 0.1).await;
    steps(&other, 1).await;
    assert_eq!(policy(&separate, 1).await, policy(&actor, 1).await);
    assert_eq!(rehearsal(&separate, 1).await, policy(&other, 1).await);
    assert_ne!(rehearsal(&separate, 1).await, policy(&separate, 1).await);
    assert_ne!(rehearsal(&separate, 1).await, rehearsal(&separate, 0).await);
    assert_eq!(rehearsal(&actor, 1).await, rehearsal(&actor, 0).await, "a role that is left out is frozen");

    let rows = updates(&separate, 0).await;
    let roles: Vec<&str> = rows.iter().map(|row| row.role.as_str()).collect();
    assert_eq!(roles, ["actor", "all", "rehearsal"]);
    let alone = [&updates(&actor, 0).await[0], &updates(&other, 0).await[2]];
    for (row, alone) in [(&rows[0], alone[0]), (&rows[2], alone[1])] {
        assert_eq!(
            (row.loss, row.gradient_norm, row.n_tokens),
            (alone.loss, alone.gradient_norm, alone.n_tokens)
        );
        assert!(row.loss.is_some() && row.n_tokens > 0);
    }
    assert_eq!(rows[1].n_tokens, rows[0].n_tokens + rows[2].n_tokens);
    let sum = rows[0].loss.unwrap() + rows[2].loss.unwrap();
    assert!((rows[1].loss.unwrap() - sum).abs() < 1e-12);
    let norm = rows[0].gradient_norm.unwrap().hypot(rows[2].gradient_norm.unwrap());
    assert!((rows[1].gradient_norm.unwrap() - norm).abs() < 1e-9);
}

#[tokio::test]
async fn the_next_step_goes_on_with_both() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ctx = run(&dir, Some("bundled"), &BOTH, 0.0).await;
    steps(&ctx, 2).await;
    let generations: Vec<GenerationRow> =
        StageOutput::latest(&ctx.store, RUN, "rollout", 1).await.unwrap().read_all().await.unwrap();
    let (policy_1, rehearsal_1) = (policy(&ctx, 1).await, rehearsal(&ctx, 1).await);
    for row in &generations {
        let weights = if row.role == "actor" { &policy_1 } else { &rehearsal_1 };
        assert_eq!(&row.checkpoint, weights);
    }
    assert!(generations.iter().any(|row| row.role == "rehearsal"));
    assert_ne!(rehearsal(&ctx, 2).await, rehearsal_1);
    assert_eq!(updates(&ctx, 1).await[2].optimizer_step, 1, "the optimizer's state goes on too");
    assert!(verify(&ctx.store, Some(RUN)).await.unwrap().is_valid());
    for stage in [Stage::Rollout, Stage::Update, Stage::Evaluate] {
        if stage == Stage::Evaluate {
            stage.run(&ctx, 2).await.unwrap();
        }
        assert!(
            rerun(&ctx, stage, if stage == Stage::Evaluate { 2 } else { 1 }).await.unwrap().is_identical()
        );
    }
    // Step by step it is the same as in one go.
    let again = run(&other, Some("bundled"), &BOTH, 0.0).await;
    steps(&again, 1).await;
    drive(&again, 0..2, None, &mut |_, _, _| {}).await.unwrap();
    Stage::Evaluate.run(&again, 2).await.unwrap();
    assert_eq!(fingerprint(&again).await, fingerprint(&ctx).await);
    // Another run can begin from it.
    let mut next = RunContext { run: "next".to_owned(), ..ctx.clone() };
    next.config.policy.checkpoint = format!("run:{RUN}:rehearsal");
    assert_eq!(policy(&next, 0).await, rehearsal(&ctx, 2).await);
    next.config.policy.checkpoint = "run:next:rehearsal".to_owned();
    let error = next.policy_at(0).await.unwrap_err().to_string();
    assert!(error.contains("rehearsal role's own of run: next"), "{error}");
}

#[tokio::test]
async fn weights_of_a_role_without_anything_to_train_on_are_handed_on() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = run(&dir, Some("bundled"), &[TrainRole::Rehearsal], 0.0).await;
    steps(&ctx, 2).await;
    assert_eq!(policy(&ctx, 2).await, policy(&ctx, 0).await);
    assert_ne!(rehearsal(&ctx, 2).await, rehearsal(&ctx, 1).await);
    assert!(rerun(&ctx, Stage::Update, 1).await.unwrap().is_identical());
}
