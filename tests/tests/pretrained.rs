//! A pretrained model plays both roles on imported tasks. Needs files that are too large for the repository:
//!
//! - `ENVACE_PRETRAINED`: a model folder in Hugging Face layout whose chat template need not know tools;
//! - `ENVACE_BFCL`: a file of multi-turn prompts of the Berkeley function calling leaderboard, beside its folder of
//!   tools as the project ships them;
//! - `ENVACE_PRETRAINED_STORE`: the store to use, left out for a temporary one. What it holds already is reused.
//!
//! Without the first two there is nothing to test, and the test says so.

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_model::{Trainer, TrainerOptions};
use envace_pipeline::{StageOutput, Store, checkpoint_dir};
use envace_schemas::tables::{
    AdvantageRow, GenerationRow, RewardRow, SequenceRow, SftLossRow, TrajectoryRow, UpdateRow, VerdictRow,
};

const CONFIG: &str = include_str!("../assets/pretrained.toml");
const N_TASKS: usize = 8;
const N_SAMPLES: usize = 2;

/// Runs a command to its end; `STORE` stands for the store.
async fn envace(store: &str, words: &str, last: &[&str]) {
    let words = words.split(' ').map(|word| if word == "STORE" { store } else { word });
    let args: Vec<&str> = ["envace-jobs"].into_iter().chain(words).chain(last.iter().copied()).collect();
    let code = Cli::try_parse_from(&args).unwrap().run().await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS), "{args:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pretrained_model_goes_through_the_loop() {
    let (Ok(model), Ok(prompts)) = (std::env::var("ENVACE_PRETRAINED"), std::env::var("ENVACE_BFCL")) else {
        eprintln!("skipped: ENVACE_PRETRAINED and ENVACE_BFCL are not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let uri = std::env::var("ENVACE_PRETRAINED_STORE")
        .unwrap_or_else(|_| dir.path().join("store").display().to_string());
    let config = |name: &str, policy: &str, set: &str| {
        let text = CONFIG.replace("[tasks]\n", &format!("[tasks]\nset = {set:?}\n"));
        let path = dir.path().join(name);
        fs_err::write(&path, format!("[policy]\ncheckpoint = {policy:?}\n\n{text}")).unwrap();
        path.display().to_string()
    };
    let sft = config("sft.toml", &model, "world");
    let loop_config = config("loop.toml", "run:pretrained-sft", "bfcl");

    envace(&uri, "tasks generate --store STORE --set world --train 60 --held-out 0 --drift 0", &[]).await;
    let import = "tasks import --store STORE --set bfcl --format bfcl --split train --limit 8";
    envace(&uri, import, &[&prompts]).await;
    envace(&uri, "sft --store STORE --run pretrained-sft --steps 1 --config", &[&sft]).await;
    for stage in ["rollout", "score", "advantage", "update"] {
        let words = format!("{stage} --store STORE --run pretrained --step 0 --config");
        envace(&uri, &words, &[&loop_config]).await;
    }

    let store = Store::open_existing(&uri).unwrap();
    let output = async |run: &str, stage: &str| StageOutput::latest(&store, run, stage, 0).await.unwrap();
    let losses: Vec<SftLossRow> = output("pretrained-sft", "sft").await.read_all().await.unwrap();
    let n_sft_tokens: i64 =
        losses.iter().filter(|row| row.role == "all").map(|row| row.n_forward_tokens).sum();
    assert!((1..=100_000).contains(&n_sft_tokens), "{n_sft_tokens} tokens of supervised training");

    let rollout = output("pretrained", "rollout").await;
    let trajectories: Vec<TrajectoryRow> = rollout.read_all().await.unwrap();
    let generations: Vec<GenerationRow> = rollout.read_all().await.unwrap();
    let sequences: Vec<SequenceRow> = rollout.read_all().await.unwrap();
    assert_eq!(trajectories.len(), N_TASKS * N_SAMPLES);
    let n_rehearsing = trajectories
        .iter()
        .filter(|row| {
            generations.iter().any(|generation| {
                (&generation.task_id, generation.sample) == (&row.task_id, row.sample)
                    && generation.role == "rehearsal"
            })
        })
        .count();
    assert!(2 * n_rehearsing >= trajectories.len(), "{n_rehearsing} trajectories were rehearsed");

    let score = output("pretrained", "score").await;
    let rewards: Vec<RewardRow> = score.read_all().await.unwrap();
    let verdicts: Vec<VerdictRow> = score.read_all().await.unwrap();
    let n_rewards = |role: &str| rewards.iter().filter(|row| row.role == role).count();
    assert_eq!(n_rewards("actor"), trajectories.len());
    assert_eq!(n_rewards("rehearsal"), n_rehearsing, "a role that wrote nothing has no reward");
    assert!(!verdicts.is_empty());
    let advantages: Vec<AdvantageRow> = output("pretrained", "advantage").await.read_all().await.unwrap();
    assert_eq!(advantages.len(), generations.len());

    let update = output("pretrained", "update").await;
    let updates: Vec<UpdateRow> = update.read_all().await.unwrap();
    for row in updates.iter().filter(|row| row.n_tokens > 0) {
        assert_eq!(row.mismatch_max_nats, Some(0.0), "the update computes what the rollout sampled from");
    }
    let (name, artifact) = update.manifest().artifacts.first_key_value().unwrap();
    assert_eq!(name, "checkpoint");
    let folder = checkpoint_dir(&store, artifact.checkpoint()).await.unwrap();
    Trainer::load(&folder, None, TrainerOptions::default()).unwrap();
    eprintln!(
        "{n_sft_tokens} tokens of supervised training, {} trajectories, {n_rehearsing} of them rehearsed, {} \
         generations, {} sequences, {} verdicts, {} rewards, {} advantages, {} updates",
        trajectories.len(),
        generations.len(),
        sequences.len(),
        verdicts.len(),
        rewards.len(),
        advantages.len(),
        updates.len()
    );
}
