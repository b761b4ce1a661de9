//! Runs that train an adapter: every stage knows adapters, and a step's checkpoint is two small files.

use std::path::Path;

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::config::Config;
use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_jobs::rerun::rerun;
use envace_model::{AdapterConfig, Device, Model};
use envace_pipeline::{StageOutput, verify};
use envace_schemas::tables::{SftLossRow, UpdateRow};

use crate::whole_run::{CONFIG, RUN, context, fingerprint, steps};

const LORA: &str = "
[update.kl]
coefficient = 0.1
[lora]
rank = 4
alpha = 8.0
target_modules = [\"v_proj\", \"q_proj\", \"down_proj\"]
";

fn with_lora() -> String {
    format!("{CONFIG}{LORA}")
}

async fn updates(ctx: &RunContext, step: u64) -> Vec<UpdateRow> {
    StageOutput::latest(&ctx.store, RUN, "update", step).await.unwrap().read_all().await.unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs_err::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs_err::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

async fn envace(store: &Path, words: &str, folder: &Path) -> Result<(), String> {
    let (store, folder) = (store.display().to_string(), folder.display().to_string());
    let words = words.split(' ').chain(["--store", &store, &folder]);
    let args: Vec<&str> = ["envace-jobs"].into_iter().chain(words).collect();
    Cli::try_parse_from(&args).unwrap().run().await.map(drop).map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn an_adapter_goes_through_the_loop() {
    let (straight, stopped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ctx = context(&straight, &with_lora()).await;
    steps(&ctx, 2).await;
    // Gone on after a stop it is the same, and each update comes out the same where the base was never stored.
    let again = context(&stopped, &with_lora()).await;
    steps(&again, 1).await;
    steps(&context(&stopped, &with_lora()).await, 2).await;
    assert_eq!(fingerprint(&again).await, fingerprint(&ctx).await);
    for step in 0..2 {
        let comparison = rerun(&ctx, Stage::Update, step).await.unwrap();
        assert!(comparison.is_identical(), "{comparison}");
    }
    assert!(verify(&ctx.store, Some(RUN)).await.unwrap().is_valid());

    // The sampler and the trainer agree bit for bit, and the reference is the base: equal to the policy at first.
    for (step, is_moved) in [(0, false), (1, true)] {
        for row in updates(&ctx, step).await.iter().filter(|row| row.n_tokens > 0) {
            assert_eq!(row.mismatch_max_nats, Some(0.0), "{}", row.role);
            assert_eq!(row.kl_nats.unwrap() > 0.0, is_moved, "step {step}, {}: {:?}", row.role, row.kl_nats);
        }
    }

    // What a step stores is the adapter, which names its base.
    let (base, first, second) =
        (ctx.policy_at(0).await.unwrap(), ctx.policy_at(1).await.unwrap(), ctx.policy_at(2).await.unwrap());
    assert_eq!((base.base.as_ref(), base.model_digest()), (None, &base.digest));
    assert_ne!(first.digest, second.digest);
    for source in [&first, &second] {
        assert_eq!(source.base.as_ref(), Some(&base.digest));
        assert_eq!(source.model_dir, base.dir);
        let found = names(&source.dir);
        assert_eq!(found[..3], ["adapter_config.json", "adapter_model.safetensors", "complete.json"]);
        assert!(found.len() == 4 && found[3].starts_with("state-"), "{found:?}");
        let config = AdapterConfig::load(&source.dir).unwrap();
        assert_eq!(config.base, format!("../{}", base.digest));
        assert_eq!(config.target_modules, ["down_proj", "q_proj", "v_proj"]);
        let size = |dir: &Path, name: &str| fs_err::metadata(dir.join(name)).unwrap().len();
        let (adapter, model) =
            (size(&source.dir, "adapter_model.safetensors"), size(&base.dir, "model.safetensors"));
        assert!(adapter * 4 < model, "{adapter} of {model} bytes");
    }

    // Out of the store, merged, and back in.
    let folder = |name: &str| stopped.path().join(name);
    let store = straight.path();
    let export = format!("checkpoint export --run {RUN} --step 2");
    envace(store, &export, &folder("out")).await.unwrap();
    assert_eq!(names(&folder("out")), ["adapter_config.json", "adapter_model.safetensors"]);
    Model::load(&folder("out"), &Device::Cpu).unwrap();
    envace(store, "checkpoint import", &folder("out")).await.unwrap();
    let mut config = Config::parse(&with_lora(), "test").unwrap();
    config.policy.checkpoint = folder("out").display().to_string();
    let next = RunContext::open(ctx.store.clone(), "next", Some(config), false).await.unwrap();
    let imported = next.policy_at(0).await.unwrap();
    assert_eq!((&imported.digest, &imported.base), (&second.digest, &second.base));
    envace(store, &format!("{export} --base Qwen/Qwen3-0.6B"), &folder("named")).await.unwrap();
    let error = envace(store, "checkpoint import", &folder("named")).await.unwrap_err();
    assert!(error.contains("is not a folder: Qwen/Qwen3-0.6B"), "{error}");
    let with_base = format!("checkpoint import --base {}", base.dir.display());
    envace(store, &with_base, &folder("named")).await.unwrap();
    // A name that is none, and one where there is nothing to name.
    let error = envace(store, &format!("{export} --base "), &folder("unnamed")).await.unwrap_err();
    assert!(error.contains("`--base` is empty"), "{error}");
    let whole = format!("checkpoint export --run {RUN} --step 0 --base Qwen/Qwen3-0.6B");
    let error = envace(store, &whole, &folder("unnamed")).await.unwrap_err();
    assert!(error.contains("whole model, which names no base"), "{error}");
    assert!(!folder("unnamed").exists());
    let error = envace(store, &with_base, &base.dir).await.unwrap_err();
    assert!(error.contains("`--base` is for an adapter"), "{error}");
    // An adapter without weight is the base, and could never be anything else.
    let config = fs_err::read_to_string(folder("out").join("adapter_config.json")).unwrap();
    let config = config.replace("\"lora_alpha\": 8", "\"lora_alpha\": 0");
    fs_err::write(folder("out").join("adapter_config.json"), config).unwrap();
    let error = envace(store, "checkpoint import", &folder("out")).await.unwrap_err();
    assert!(error.contains("`lora_alpha`") && error.contains("would change nothing"), "{error}");
    let merge = format!("checkpoint merge --run {RUN} --step");
    envace(store, &format!("{merge} 2"), &folder("merged")).await.unwrap();
    assert!(names(&folder("merged")).contains(&"tokenizer.json".to_owned()));
    Model::load(&folder("merged"), &Device::Cpu).unwrap();
    let error = envace(store, &format!("{merge} 0"), &folder("none")).await.unwrap_err();
    assert!(error.contains("begins with a whole model"), "{error}");

    // An adapter whose base has changed on disk is not computed with.
    let weights = base.dir.join("model.safetensors");
    let mut bytes = fs_err::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs_err::write(&weights, bytes).unwrap();
    let error = Stage::Rollout.run(&ctx, 2).await.unwrap_err().to_string();
    assert!(error.contains("has other bytes"), "{error}");
    assert!(!verify(&ctx.store, Some(RUN)).await.unwrap().is_valid());
}

#[tokio::test]
async fn supervised_training_of_an_adapter_is_gone_on_with_on_rollouts() {
    let dir = tempfile::tempdir().unwrap();
    let sft = "[sft]\noptimizer_steps = 2\ntasks_per_batch = 2\n";
    let ctx = context(&dir, &format!("{}{sft}", with_lora())).await;
    for step in 0..2 {
        Stage::Sft.run(&ctx, step).await.unwrap();
    }
    let losses = StageOutput::latest(&ctx.store, RUN, "sft", 1).await.unwrap();
    let losses: Vec<SftLossRow> = losses.read_all().await.unwrap();
    assert!(losses.iter().all(|row| !row.is_skipped));
    let cold = ctx.policy_at(2).await.unwrap();
    assert!(cold.base.is_some() && cold.optimizer.is_some());

    // The run that goes on from it trains the same adapter; its reference is the adapter it began with.
    let run = |name: &'static str, text: String| {
        let config = Config::parse(&format!("[policy]\ncheckpoint = \"run:{RUN}\"\n{text}"), "test").unwrap();
        RunContext::open(ctx.store.clone(), name, Some(config), false)
    };
    let next = run("next", with_lora()).await.unwrap();
    steps(&next, 1).await;
    let trained = next.policy_at(1).await.unwrap();
    assert_eq!(next.policy_at(0).await.unwrap().digest, cold.digest);
    assert_eq!((trained.base, trained.digest == cold.digest), (cold.base, false));
    // An adapter of another kind is not what was trained.
    let other = run("other", with_lora().replace("rank = 4", "rank = 5")).await.unwrap();
    for stage in [Stage::Rollout, Stage::Score, Stage::Advantage] {
        stage.run(&other, 0).await.unwrap();
    }
    let error = Stage::Update.run(&other, 0).await.unwrap_err().to_string();
    assert!(error.contains("of another kind: `r` is 4, not 5"), "{error}");
}
