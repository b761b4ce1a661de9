//! Objectives in a whole step: what they have in common, and that they are told apart.

use envace_jobs::config::{Config, CorrectionConfig, CorrectionLevel, CorrectionLimit, PolicyLoss};
use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_pipeline::StageOutput;
use envace_schemas::tables::{AdvantageRow, UpdateRow};

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

#[tokio::test]
async fn advantages_are_whitened_over_the_step_whatever_its_parts() {
    let whitened = format!("{CONFIG}[advantage]\nbaseline = \"zero\"\nwhiten = true\n");
    let mut all: Vec<Vec<AdvantageRow>> = Vec::new();
    for per_part in [1, 2, 3] {
        let dir = tempfile::tempdir().unwrap();
        let text = whitened.replace("per_part = 1", &format!("per_part = {per_part}"));
        let ctx = context(&dir, &text).await;
        for stage in [Stage::Rollout, Stage::Score, Stage::Advantage] {
            stage.run(&ctx, 0).await.unwrap();
        }
        let output = StageOutput::latest(&ctx.store, RUN, "advantage", 0).await.unwrap();
        let mut rows: Vec<AdvantageRow> = output.read_all().await.unwrap();
        rows.sort_by_key(|row| (row.task_id.clone(), row.sample, row.generation_index));
        all.push(rows);
    }
    assert!(all.iter().all(|rows| *rows == all[0]));
    // What whitening is: of each role a mean of 0 and a deviation of 1, up to the billionth that is rounded and added.
    let mut n_whitened = 0;
    for role in ["actor", "rehearsal"] {
        let values: Vec<f64> =
            all[0].iter().filter(|row| row.role == role).filter_map(|row| row.advantage).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        assert!(mean.abs() < 1e-6, "{role}: {mean}");
        if square > 0.0 {
            n_whitened += 1;
            assert!((square - 1.0).abs() < 1e-4, "{role}: {square}");
        }
    }
    assert!(n_whitened > 0, "all rewards are equal");
}
