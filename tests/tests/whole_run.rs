//! A whole run on the bundled policy and world: what must be equal is compared byte for byte.

use std::collections::BTreeMap;

use envace_jobs::config::Config;
use envace_jobs::context::RunContext;
use envace_jobs::drive::{Stage, drive};
use envace_jobs::rerun::rerun;
use envace_jobs::task_set::{self, TaskSource};
use envace_jobs::world::{self, Split};
use envace_pipeline::{Manifest, StageOutput, Store, put, verify};
use envace_schemas::tables::{AdvantageRow, GenerationRow, RewardRow, SequenceRow, TrajectoryRow, UpdateRow};
use envace_schemas::{Decimal, Table, batches_of};

pub(crate) const RUN: &str = "r";
pub(crate) const CONFIG: &str = r#"
[tasks]
set = "world"
per_step = 3
per_part = 1
[rollout]
group_size = 3
[rollout.actor]
max_new_tokens = 40
[rollout.rehearsal]
max_new_tokens = 60
[rollout.episode]
max_turns = 4
[rollout.episode.rehearsal]
wording = "compact"
whitelist = "called"
few_shot = "none"
latest_message = false
[update]
learning_rate = 1e-3
micro_batch_tokens = 2000
[evaluate]
splits = ["held_out"]
environment = "world"
n_tasks = 2
[evaluate.actor]
max_new_tokens = 40
"#;

pub(crate) async fn context(dir: &tempfile::TempDir, config: &str) -> RunContext {
    let store = Store::open(&dir.path().display().to_string()).unwrap();
    let rows = world::tasks(0, &[(Split::Train, 8), (Split::HeldOut, 2)], 0);
    task_set::store(&store, "world", TaskSource::World { seed: 0, slips: 0 }, &rows, false).await.unwrap();
    let config = Config::parse(config, "test").unwrap();
    RunContext::open(store, RUN, Some(config), false).await.unwrap()
}

pub(crate) async fn steps(ctx: &RunContext, n_steps: u64) {
    drive(ctx, 0..n_steps, None, &mut |_, _, _| {}).await.unwrap();
}

/// What a run's latest outputs are made of: the byte hash of every file, and the digests of what is no table.
pub(crate) async fn fingerprint(ctx: &RunContext) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for manifest in ctx.store.active_manifests(Some(RUN)).await.unwrap() {
        for (table, parts) in &manifest.outputs {
            for (part, record) in parts.iter().enumerate() {
                if *table != Table::Timings {
                    all.insert(format!("{} {table} {part}", manifest.id), record.byte_hash.clone());
                }
            }
        }
        for (name, artifact) in &manifest.artifacts {
            all.insert(format!("{} {name}", manifest.id), artifact.digest().to_owned());
        }
    }
    all
}

async fn latest(ctx: &RunContext, stage: &str, step: u64) -> StageOutput {
    StageOutput::latest(&ctx.store, RUN, stage, step).await.unwrap()
}

#[tokio::test]
async fn stopped_and_gone_on_is_the_same_as_straight() {
    let (straight, stopped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = format!("{CONFIG}[execution]\nmax_batch = 5\n");
    let straight = context(&straight, CONFIG).await;
    steps(&straight, 2).await;
    let stopped_ctx = context(&stopped, &config).await;
    steps(&stopped_ctx, 1).await;
    // A stage of the next step is done before the stop; everything else is not.
    Stage::Rollout.run(&stopped_ctx, 1).await.unwrap();
    let again = context(&stopped, &config).await;
    steps(&again, 2).await;
    let expected = fingerprint(&straight).await;
    assert!(expected.len() > 40, "four stages of two steps with three parts each: {}", expected.len());
    assert_eq!(fingerprint(&again).await, expected);

    // What the run holds is sound: tokens were sampled by both roles, and the update saw the sampler's logprobs.
    let generations: Vec<GenerationRow> = latest(&straight, "rollout", 0).await.read_all().await.unwrap();
    for role in ["actor", "rehearsal"] {
        assert!(generations.iter().any(|row| row.role == role), "no generation of role {role}");
    }
    let sequences: Vec<SequenceRow> = latest(&straight, "rollout", 0).await.read_all().await.unwrap();
    for row in &sequences {
        assert_eq!(row.token_ids.len(), row.loss_mask.len());
        assert_eq!(row.token_ids.len(), row.sampling_logprobs.len());
        for (is_sampled, logprob) in row.loss_mask.iter().zip(&row.sampling_logprobs) {
            assert_eq!(
                *is_sampled,
                logprob.is_some(),
                "a logprob is known exactly where a token was sampled"
            );
        }
    }
    for generation in &generations {
        let sequence = sequences
            .iter()
            .find(|row| {
                (&row.task_id, row.sample, row.sequence_index)
                    == (&generation.task_id, generation.sample, generation.sequence_index)
            })
            .unwrap();
        let span = generation.span_start as usize..(generation.span_start + generation.n_tokens) as usize;
        assert!(sequence.loss_mask[span.clone()].iter().all(|is_sampled| *is_sampled));
        assert!(!sequence.loss_mask[span.start - 1], "a span begins after its prompt");
        assert_eq!(sequence.role, generation.role);
    }
    let spans: i32 = generations.iter().map(|row| row.n_tokens).sum();
    let masked: usize =
        sequences.iter().flat_map(|row| &row.loss_mask).filter(|is_sampled| **is_sampled).count();
    assert_eq!(spans as usize, masked, "the spans partition the mask");
    for step in 0..2 {
        let updates: Vec<UpdateRow> = latest(&straight, "update", step).await.read_all().await.unwrap();
        for row in updates.iter().filter(|row| row.n_tokens > 0) {
            assert_eq!(
                row.mismatch_max_nats,
                Some(0.0),
                "sampler and trainer agree bit for bit, {}",
                row.role
            );
            assert!(!row.is_skipped);
        }
    }
    assert!(verify(&straight.store, Some(RUN)).await.unwrap().is_valid());
}

#[tokio::test]
async fn every_stage_comes_out_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let config = CONFIG.replace("[evaluate]", "[evaluate]\nevery = 1");
    let mut ctx = context(&dir, &config).await;
    steps(&ctx, 1).await;
    // Another batch, another cache, other turns of the schedule.
    ctx.config.execution.max_batch = 2;
    ctx.config.execution.kv_memory = "1 MiB".to_owned();
    for stage in [Stage::Rollout, Stage::Score, Stage::Advantage, Stage::Update, Stage::Evaluate] {
        let comparison = rerun(&ctx, stage, 0).await.unwrap();
        assert!(comparison.is_identical(), "{stage}: {comparison}");
        assert!(comparison.n_parts > 0);
    }
}

#[tokio::test]
async fn a_reward_edited_by_hand_changes_what_depends_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let before = fingerprint(&ctx).await;
    let score = latest(&ctx, "score", 0).await;
    let mut rewards: Vec<RewardRow> = score.read_all().await.unwrap();
    let edited = rewards[0].task_id.clone();
    for row in rewards.iter_mut().filter(|row| row.task_id == edited && row.sample == 0) {
        row.reward = Some(Decimal::from(7));
    }
    let batches = batches_of(&rewards).unwrap();
    let made =
        put(&ctx.store, RUN, "score", 0, Table::Rewards, &batches, "ada", "a better grade").await.unwrap();
    assert_eq!(made.id.attempt, 1);

    // The next stage refuses to pass the old output off as made from the new reward, and says why.
    let refused = Stage::Advantage.run(&ctx, 0).await.unwrap_err().to_string();
    assert!(refused.contains("advantage"), "{refused}");
    ctx.new_attempt = true;
    Stage::Advantage.run(&ctx, 0).await.unwrap();
    Stage::Update.run(&ctx, 0).await.unwrap();
    let after = fingerprint(&ctx).await;
    let same = |stage: &str| {
        before
            .iter()
            .filter(|(name, _)| name.contains(&format!("`{stage}`")))
            .all(|entry| after.get(entry.0) == Some(entry.1))
    };
    assert!(same("rollout"), "the rollout is as it was");
    let old: Vec<AdvantageRow> =
        StageOutput::new(&ctx.store, attempt(&ctx, "advantage", 0).await).read_all().await.unwrap();
    let new: Vec<AdvantageRow> = latest(&ctx, "advantage", 0).await.read_all().await.unwrap();
    assert_eq!(old.len(), new.len());
    for (old, new) in old.iter().zip(&new) {
        if old.task_id == edited {
            assert_ne!(old.baseline, new.baseline, "the baseline of the edited group moves");
        } else {
            assert_eq!(old, new, "other groups stay");
        }
    }
    let (old, new) = (attempt(&ctx, "update", 0).await, attempt(&ctx, "update", 1).await);
    assert_ne!(old.artifacts["checkpoint"], new.artifacts["checkpoint"], "other advantages, other weights");
    let lineage = envace_pipeline::Lineage::of_stage(&ctx.store, RUN, "update", 0).await.unwrap().to_string();
    assert!(lineage.contains("ada") && lineage.contains("a better grade"), "{lineage}");
}

async fn attempt(ctx: &RunContext, stage: &str, attempt: u32) -> Manifest {
    let attempts = ctx.store.attempts(RUN, stage, 0).await.unwrap();
    attempts.into_iter().find(|manifest| manifest.id.attempt == attempt).unwrap()
}

async fn refusal(ctx: &RunContext, stage: Stage) -> String {
    stage.run(ctx, 0).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn outputs_that_do_not_belong_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    assert!(refusal(&ctx, Stage::Sft).await.contains("one chain of checkpoints"));

    // Other trajectories, while rewards and advantages are still those of the first ones.
    ctx.config.rollout.actor.temperature = 0.5;
    ctx.new_attempt = true;
    Stage::Rollout.run(&ctx, 0).await.unwrap();
    for stage in [Stage::Advantage, Stage::Update] {
        let refused = refusal(&ctx, stage).await;
        assert!(refused.contains("was made from other"), "{stage}: {refused}");
    }
    ctx.new_attempt = false;
    drive(&ctx, 0..1, Some(0), &mut |_, _, _| {}).await.unwrap();
    let remade = fingerprint(&ctx).await;
    for stage in ["rollout", "score", "advantage", "update"] {
        assert_eq!(latest(&ctx, stage, 0).await.manifest().id.attempt, 1, "{stage}");
    }
    drive(&ctx, 0..1, Some(0), &mut |_, _, _| {}).await.unwrap();
    assert_eq!(fingerprint(&ctx).await, remade, "what fits is not made again");
}

#[tokio::test]
async fn a_step_without_grades_is_refused_however_often_it_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    Stage::Rollout.run(&ctx, 0).await.unwrap();
    let mut trajectories: Vec<TrajectoryRow> = latest(&ctx, "rollout", 0).await.read_all().await.unwrap();
    for row in &mut trajectories {
        (row.end_reason, row.is_partial) = ("aborted".to_owned(), true);
    }
    let batches = batches_of(&trajectories).unwrap();
    put(&ctx.store, RUN, "rollout", 0, Table::Trajectories, &batches, "ada", "a test").await.unwrap();
    for attempt in 0..2 {
        let refused = refusal(&ctx, Stage::Score).await;
        assert!(refused.contains("9 of 9 trajectories are ungraded"), "try {attempt}: {refused}");
    }
    // Who allows it gets rewards that are all NULL, and no update from them.
    ctx.config.score.max_ungraded_share = 1.0;
    Stage::Score.run(&ctx, 0).await.unwrap();
    let rewards: Vec<RewardRow> = latest(&ctx, "score", 0).await.read_all().await.unwrap();
    assert!(rewards.iter().all(|row| row.reward.is_none() && row.ungraded_reason.is_some()));
    Stage::Advantage.run(&ctx, 0).await.unwrap();
    let refused = refusal(&ctx, Stage::Update).await;
    assert!(refused.contains("no generation to train on"), "{refused}");
    assert!(ctx.store.latest(RUN, "update", 0).await.unwrap().is_none());
}

#[tokio::test]
async fn a_long_limit_on_outputs_is_cut_to_what_the_context_holds() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    ctx.config.rollout.actor.max_new_tokens = 1_000_000;
    ctx.config.rollout.rehearsal.max_new_tokens = 1_000_000;
    Stage::Rollout.run(&ctx, 0).await.unwrap();
    let trajectories: Vec<TrajectoryRow> = latest(&ctx, "rollout", 0).await.read_all().await.unwrap();
    assert!(trajectories.iter().all(|row| row.n_turns > 0), "every actor spoke");
    assert!(trajectories.iter().any(|row| row.n_rehearsals > row.n_malfunctions), "responses were imagined");
    // Without room for a single token there is nothing to be done, and the row says so.
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    ctx.config.rollout.max_sequence_tokens = 100;
    Stage::Rollout.run(&ctx, 0).await.unwrap();
    let trajectories: Vec<TrajectoryRow> = latest(&ctx, "rollout", 0).await.read_all().await.unwrap();
    assert!(trajectories.iter().all(|row| row.n_turns == 0 && row.end_reason == "length"));
}

#[tokio::test]
async fn a_role_that_is_not_held_to_the_reference_has_no_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("{CONFIG}[update.kl]\ncoefficient = 0.5\nroles = [\"rehearsal\"]\n");
    let ctx = context(&dir, &config).await;
    steps(&ctx, 2).await;
    for step in 0..2 {
        let updates: Vec<UpdateRow> = latest(&ctx, "update", step).await.read_all().await.unwrap();
        let kl = |role: &str| updates.iter().find(|row| row.role == role).unwrap().kl_nats;
        assert_eq!(kl("actor"), None);
        assert_eq!(kl("all"), kl("rehearsal"), "a mean over the tokens that it is known of");
        // The first update begins with the reference itself; k3 of what has moved is above 0.
        let rehearsal = kl("rehearsal").unwrap();
        assert!(if step == 0 { rehearsal == 0.0 } else { rehearsal > 0.0 }, "step {step}: {rehearsal}");
    }
}

#[tokio::test]
async fn weights_that_are_not_finite_are_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, &CONFIG.replace("learning_rate = 1e-3", "learning_rate = 1e308")).await;
    for stage in [Stage::Rollout, Stage::Score, Stage::Advantage] {
        stage.run(&ctx, 0).await.unwrap();
    }
    let refused = refusal(&ctx, Stage::Update).await;
    assert!(refused.contains("not finite"), "{refused}");
    assert!(ctx.store.latest(RUN, "update", 0).await.unwrap().is_none());
}
