//! Training that could not begin: refused before anything is sampled or trained for it, by every command that would.

use std::path::Path;

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::config::{Config, LoraConfig, StatePlace};
use envace_jobs::context::RunContext;
use envace_jobs::drive::{Stage, drive};
use envace_jobs::memory::stage_memory;
use envace_jobs::rerun::rerun;
use envace_jobs::sft::largest_pass;
use envace_jobs::update;
use envace_model::{AdapterConfig, NewAdapter, Trainer, TrainerOptions, check_scratch};
use envace_pipeline::StageOutput;
use envace_schemas::tables::SftLossRow;
use envace_tests::repository;

use crate::whole_run::{CONFIG, RUN, context, steps};

const SFT: &str = "[sft]\noptimizer_steps = 1\ntasks_per_batch = 2\n";
const LORA: &str = "[lora]\nrank = 4\nalpha = 8.0\ntarget_modules = [\"q_proj\", \"v_proj\"]\n";

/// Makes an adapter of the bundled policy, of the kind of [`LORA`].
pub(crate) fn adapter(dir: &Path) {
    let bundled = repository::root().join("jobs/assets/policy");
    let config = AdapterConfig {
        base: bundled.display().to_string(),
        rank: 4,
        alpha: 8.0,
        is_rank_stabilized: false,
        target_modules: ["q_proj", "v_proj"].map(str::to_owned).to_vec(),
        dropout: 0.0,
    };
    let options =
        TrainerOptions { adapter: Some(NewAdapter { config, seed: [1; 32] }), ..Default::default() };
    Trainer::load(&bundled, None, options).unwrap().save(dir).unwrap();
}

async fn error_of(args: &[&str]) -> Option<String> {
    let cli = Cli::try_parse_from([&["envace-jobs"], args].concat()).unwrap();
    let error = cli.run().await.err()?;
    Some(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": "))
}

#[tokio::test]
async fn what_cannot_be_trained_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    let path = |name: &str| dir.path().join(name);
    adapter(&path("adapter"));
    adapter(&path("dropping"));
    let config = AdapterConfig::load(&path("dropping")).unwrap();
    AdapterConfig { dropout: 0.1, ..config }.save(&path("dropping")).unwrap();
    fs_err::write(path("file"), "").unwrap();

    let from = |name: &str| format!("[policy]\ncheckpoint = {:?}\n", path(name).display().to_string());
    let lora = |key: &str, value: &str| {
        let line = LORA.lines().find(|line| line.starts_with(key)).unwrap();
        LORA.replace(line, &format!("{key} = {value}"))
    };
    let on_disk =
        |folder: &str| format!("[execution]\noptimizer_state = \"disk\"\nscratch_folder = {folder:?}\n");
    let mut cases = vec![
        (lora("target_modules", "[\"x_proj\"]"), "unsupported value: x_proj"),
        (lora("target_modules", "[\"layers.99.mlp.down_proj\"]"), "unsupported value: layers.99."),
        (lora("alpha", "2e-45"), "`lora_alpha` in `[lora]` makes the weight of the adapter 0"),
        (from("adapter") + &lora("rank", "5"), "of another kind: `r` is 4, not 5"),
        (from("adapter") + &lora("alpha", "9.0"), "of another kind: `lora_alpha` is 8, not 9"),
        (from("adapter") + &lora("target_modules", "[\"q_proj\"]"), "of another kind: `target_modules` is"),
        (from("dropping"), "does not drop inputs"),
        (on_disk("no/such/folder"), "`execution.scratch_folder` is no folder: no/such/folder"),
        (on_disk(&path("file").display().to_string()), "`execution.scratch_folder` is no folder"),
    ];
    if cfg!(target_os = "linux") {
        // A folder in which nobody may make a file.
        cases.push((on_disk("/proc"), "bytes in `/proc`"));
    }
    let store = dir.path().display().to_string();
    for (index, (text, expected)) in cases.iter().enumerate() {
        let (run, file) = (format!("run-{index}"), path("run.toml"));
        fs_err::write(&file, format!("{CONFIG}{SFT}{text}")).unwrap();
        let common =
            ["--store", &store, "--run", &run, "--config", &file.display().to_string()].map(str::to_owned);
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        for command in ["run --steps 1", "run --steps 1 --dry-run", "sft", "sft --dry-run"] {
            let words: Vec<&str> = command.split(' ').chain(common.iter().copied()).collect();
            let error = error_of(&words).await.unwrap_or_else(|| panic!("{command} of {text}"));
            assert!(error.contains(expected), "{command}: {error:?} does not say {expected:?}");
        }
        let made = ctx.store.manifests(Some(&run)).await.unwrap();
        assert!(made.iter().all(|manifest| manifest.outputs.is_empty()), "{text}");
    }
}

#[tokio::test]
async fn a_run_trains_one_thing_from_its_first_step_on() {
    let with_lora = format!("{CONFIG}{LORA}");
    for (before, after, expected) in [
        (CONFIG, with_lora.as_str(), "has trained all weights before step 1"),
        (&with_lora, CONFIG, "has trained the adapter of `[lora]` before step 1"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ctx = context(&dir, before).await;
        steps(&ctx, 1).await;
        let config = Config::parse(after, "test").unwrap();
        let changed = RunContext::open(ctx.store.clone(), RUN, Some(config), true).await.unwrap();
        let error = drive(&changed, 1..2, None, &mut |_, _, _| {}).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().unwrap().contains("name another run"), "{error:?}");
        assert!(ctx.store.latest(RUN, "rollout", 1).await.unwrap().is_none());
        // What the hint says to do can be done: put the section back or out, and go on.
        let config = Config::parse(before, "test").unwrap();
        let restored = RunContext::open(ctx.store.clone(), RUN, Some(config), true).await.unwrap();
        Stage::Rollout.run(&restored, 1).await.unwrap();
        for stage in [Stage::Score, Stage::Advantage] {
            stage.run(&restored, 1).await.unwrap();
        }
        // Also where everything is there, and would be made anew from the rollout on.
        Stage::Update.run(&restored, 1).await.unwrap();
        let mut remade = changed.clone();
        remade.config.rollout.actor.temperature = 0.5;
        let n_made = ctx.store.manifests(Some(RUN)).await.unwrap().len();
        let error = drive(&remade, 1..2, Some(1), &mut |_, _, _| {}).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(ctx.store.manifests(Some(RUN)).await.unwrap().len(), n_made);
        // What an earlier version has made so can still be looked at.
        let again = RunContext { new_attempt: true, ..changed.clone() };
        let planned = update::plan(&again, 1).await.unwrap();
        let work = async |execution: &_| update::execute(&again, 1, &planned, &again.store, execution).await;
        again.follow(&planned.plan, work).await.unwrap();
        assert!(rerun(&changed, Stage::Update, 1).await.unwrap().is_identical());
    }
}

#[tokio::test]
async fn another_run_may_train_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, &format!("{CONFIG}{SFT}")).await;
    Stage::Sft.run(&ctx, 0).await.unwrap();
    let open = async |run: &str, checkpoint: &str, lora: &str| {
        let text = format!("{CONFIG}{SFT}{lora}[policy]\ncheckpoint = {checkpoint:?}\n");
        let config = Config::parse(&text, "test").unwrap();
        RunContext::open(ctx.store.clone(), run, Some(config), true).await.unwrap()
    };
    let next = open("next", &format!("run:{RUN}"), LORA).await;
    Stage::Sft.run(&next, 0).await.unwrap();
    assert!(next.policy_at(1).await.unwrap().base.is_some());
    // A run that begins from an adapter trains it, whether `[lora]` says so too or not.
    adapter(&dir.path().join("adapter"));
    let folder = dir.path().join("adapter").display().to_string();
    Stage::Sft.run(&open("given", &folder, "").await, 0).await.unwrap();
    Stage::Sft.run(&open("given", &folder, LORA).await, 1).await.unwrap();
}

#[tokio::test]
async fn a_scratch_folder_in_memory_counts_as_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, &format!("{CONFIG}{SFT}")).await;
    ctx.config.execution.optimizer_state = StatePlace::Disk;
    for folder in [dir.path(), Path::new("/dev/shm")].into_iter().filter(|folder| folder.is_dir()) {
        ctx.config.execution.scratch_folder = folder.display().to_string();
        let memory = stage_memory(&ctx, Stage::Sft, 0).await.unwrap().unwrap().to_string();
        let is_counted = memory.contains("optimizer state in a folder in memory");
        assert_eq!(is_counted, check_scratch(folder, 0).unwrap(), "{}: {memory}", folder.display());
    }
    // An adapter's state stays in memory anyway, so that any folder will do.
    ctx.config.execution.scratch_folder = "no/such/folder".to_owned();
    assert!(stage_memory(&ctx, Stage::Sft, 0).await.is_err());
    ctx.config.lora = Some(LoraConfig::default());
    stage_memory(&ctx, Stage::Sft, 0).await.unwrap();
}

#[tokio::test]
async fn supervised_training_counts_the_tokens_of_its_largest_pass() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, &format!("{CONFIG}{SFT}micro_batch_tokens = 1000000\n")).await;
    let policy = ctx.policy_at(0).await.unwrap();
    let memory = async |ctx: &RunContext| {
        let memory = stage_memory(ctx, Stage::Sft, 0).await.unwrap().unwrap().to_string();
        memory.split("; available").next().unwrap().to_owned()
    };
    // All of the one application go through at once.
    let all = largest_pass(&ctx, 0, &policy).await.unwrap();
    Stage::Sft.run(&ctx, 0).await.unwrap();
    let losses = StageOutput::latest(&ctx.store, RUN, "sft", 0).await.unwrap();
    let losses: Vec<SftLossRow> = losses.read_all().await.unwrap();
    let n_forward = losses.iter().find(|row| row.role == "all").unwrap().n_forward_tokens;
    assert_eq!(all as i64, n_forward);
    // More room than there are tokens takes no memory.
    let of_large = memory(&ctx).await;
    ctx.config.sft.micro_batch_tokens = all;
    assert_eq!(memory(&ctx).await, of_large);
    // A sequence beyond the budget goes alone, and is counted all the same.
    ctx.config.sft.micro_batch_tokens = 1;
    let longest = largest_pass(&ctx, 0, &policy).await.unwrap();
    assert!(longest > 100 && longest < all, "{longest} of {all}");
    let of_small = memory(&ctx).await;
    ctx.config.sft.micro_batch_tokens = longest;
    assert!(largest_pass(&ctx, 0, &policy).await.unwrap() <= longest);
    assert_ne!(of_small, of_large);
}
