//! Objectives in a whole step: what they have in common, and that they are told apart.

use envace_jobs::config::{Config, CorrectionConfig, CorrectionLevel, CorrectionLimit, PolicyLoss};
use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_pipeline::StageOutput;
use envace_schemas::tables::UpdateRow;

use crate::whole_run::{CONFIG, RUN, context, steps};

/// The checkpoint and the figures of another update of step 0.
async fn updated(ctx: &RunContext, change: impl FnOnce(&mut Config)) -> (String, Vec<UpdateRow>) {
    let mut again = RunContext { new_attempt: true, ..ctx.clone() };
    change(&mut again.config);
    again.config.check().unwrap();
    Stage::Update.run(&again, 0).await.unwrap();
    let rows = StageOutput::latest(&again.store, RUN, "update", 0).await.unwrap().read_all().await.unwrap();
    (again.policy_at(1).await.unwrap().digest.0, rows)
}

#[tokio::test]
async fn on_policy_all_are_one_and_afterwards_each_is_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let losses = [PolicyLoss::Ppo, PolicyLoss::Gspo, PolicyLoss::Cispo, PolicyLoss::Reinforce];
    // All ratios are 1 in the first application, so that each has the gradient of the advantage, to the last bit.
    let before = ctx.policy_at(1).await.unwrap().digest.0;
    for loss in losses {
        let (checkpoint, _) = updated(&ctx, |config| config.update.loss = loss).await;
        assert_eq!(checkpoint, before, "{loss:?}");
    }
    // In the second, the ratios count. Within its bounds CISPO has the gradient of PPO, so they are narrow here.
    let mut made = Vec::new();
    for loss in losses {
        let second = |config: &mut Config| {
            config.update.loss = loss;
            config.update.epochs = 2;
            (config.update.clip_low, config.update.clip_high) = (1e-3, 1e-3);
        };
        let (checkpoint, rows) = updated(&ctx, second).await;
        assert!(rows.iter().any(|row| row.epoch == 1 && row.mismatch_max_nats > Some(0.0)), "{rows:?}");
        let is_clipped = rows.iter().any(|row| row.clip_share > Some(0.0));
        assert_eq!(is_clipped, loss != PolicyLoss::Reinforce, "{loss:?}");
        made.push(checkpoint);
    }
    made.sort();
    made.dedup();
    assert_eq!(made.len(), losses.len());
}

#[tokio::test]
async fn a_correction_changes_nothing_where_the_sampler_is_the_trainer() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let twice = |config: &mut Config| config.update.epochs = 2;
    let (before, rows) = updated(&ctx, twice).await;
    assert!(rows.iter().all(|row| row.correction_mean.is_none() && row.masked_share.is_none()));
    for level in [CorrectionLevel::Token, CorrectionLevel::Generation, CorrectionLevel::GeometricMean] {
        for limit in [CorrectionLimit::Truncate, CorrectionLimit::Mask] {
            let correction = CorrectionConfig { level, limit, ..CorrectionConfig::default() };
            let (checkpoint, rows) = updated(&ctx, |config| {
                twice(config);
                config.update.correction = Some(correction.clone());
            })
            .await;
            assert_eq!(checkpoint, before, "{correction:?}");
            for row in rows.iter().filter(|row| row.n_tokens > 0) {
                // Also in the second pass, whose policy is another: it is a weight for the sampler, not for the step.
                assert_eq!((row.correction_mean, row.masked_share), (Some(1.0), Some(0.0)), "{correction:?}");
                assert_eq!(row.mismatch_max_nats, Some(0.0), "{correction:?}");
            }
        }
    }
    // Bounds that leave nothing as it is leave nothing of the policy's loss, but 1 is within any.
    let (checkpoint, _) = updated(&ctx, |config| {
        twice(config);
        config.update.correction = Some(CorrectionConfig {
            limit: CorrectionLimit::Mask,
            low: 1.0,
            high: 1.0,
            ..Default::default()
        });
    })
    .await;
    assert_eq!(checkpoint, before);
}
