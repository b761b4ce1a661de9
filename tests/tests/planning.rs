//! What can be known before anything is sampled is said then, by a run and by its dry run alike.

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::drive::Stage;
use envace_jobs::error::JobError;
use envace_jobs::memory::{refuse_too_large, stage_memory};

use crate::whole_run::{CONFIG, RUN, context, steps};

/// What a command says if it fails, with its causes and what to do.
async fn error_of(args: &[&str]) -> Option<String> {
    let error = Cli::try_parse_from([&["envace-jobs"], args].concat()).unwrap().run().await.err()?;
    let hint = error.downcast_ref::<JobError>().and_then(JobError::hint);
    Some(error.chain().map(ToString::to_string).chain(hint).collect::<Vec<_>>().join(": "))
}

#[tokio::test]
async fn a_dry_run_refuses_what_a_run_refuses_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (config, sql) = (path("run.toml"), path("mine.sql"));
    let built_in = envace_sql::queries::ADVANTAGES.text;
    let cases = [
        (
            CONFIG.replace("[\"held_out\"]", "[\"nowhere\"]\nevery = 5"),
            built_in.to_owned(),
            "nowhere: it has",
        ),
        (CONFIG.to_owned(), "SELECT 1 AS".to_owned(), "mine.sql"),
        (CONFIG.to_owned(), "SELECT * FROM generations".to_owned(), "mine.sql"),
        (CONFIG.to_owned(), built_in.replace("rewards", "prizes"), "prizes"),
    ];
    let all = |command: &str| -> Vec<String> {
        let common =
            ["--steps", "1", "--store", &path(""), "--run", "other", "--config", &config, "--sql", &sql];
        command.split(' ').chain(common).map(str::to_owned).collect()
    };
    let said = async |command: &str| {
        let words = all(command);
        error_of(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    for (text, query, expected) in cases {
        fs_err::write(&config, text).unwrap();
        fs_err::write(&sql, query).unwrap();
        for command in ["run", "run --dry-run"] {
            let error = said(command).await.unwrap_or_else(|| panic!("{command} did not say {expected}"));
            assert!(error.contains(expected), "{command}: {error}");
        }
        let made = ctx.store.manifests(Some("other")).await.unwrap();
        assert!(made.iter().all(|manifest| manifest.outputs.is_empty()), "{expected}");
    }
    // An update may be told of more tokens than memory has room for, as long as its rollout does not have them.
    fs_err::write(&config, CONFIG.replace("micro_batch_tokens = 2000", "micro_batch_tokens = 1000000000"))
        .unwrap();
    fs_err::write(&sql, built_in).unwrap();
    assert_eq!(said("run --dry-run").await, None);
    assert_eq!(said("run").await, None);
}

#[tokio::test]
async fn a_cache_too_small_for_the_longest_sequence_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut ctx = context(&dir, CONFIG).await;
    let memory = async |ctx: &_| stage_memory(ctx, Stage::Rollout, 0).await.unwrap().unwrap().to_string();
    assert!(!memory(&ctx).await.contains("no room"));
    // A block of 32 tokens of the bundled policy takes 4 layers * 2 * 32 * 2 heads * 32 * 4 bytes = 64 KiB.
    ctx.config.execution.kv_memory = "1MiB".to_owned();
    let said = memory(&ctx).await;
    assert!(said.contains("a sequence of more than 512 tokens, and sequences may have 2048"), "{said}");
    ctx.config.rollout.max_sequence_tokens = 512;
    assert!(!memory(&ctx).await.contains("no room"));
    refuse_too_large(&ctx, Stage::Rollout, 0).await.unwrap();
    assert_eq!(ctx.run, RUN);
}

#[tokio::test]
async fn a_run_or_checkpoint_that_is_not_there_is_told_from_those_that_are() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let store = dir.path().display().to_string();
    let said = async |command: &str| {
        let words: Vec<&str> = command.split(' ').chain(["--store", &store]).collect();
        error_of(&words).await
    };
    for command in
        ["show --step 0", "lineage --step 1", "verify", "update --step 0", "checkpoint merge --step 0 x"]
    {
        let error = said(&format!("{command} --run s")).await.unwrap_or_else(|| panic!("{command}"));
        assert!(
            error.contains("no run `s` in the store") && error.contains("; it has r: "),
            "{command}: {error}"
        );
    }
    assert_eq!(said(&format!("show --run {RUN} --step 0")).await, None);
    // As many digits of a checkpoint as tables and messages show.
    let digest = ctx.policy_at(1).await.unwrap().digest.0;
    assert_eq!(said(&format!("lineage --checkpoint {}", &digest[..12])).await, None);
    let error = said(&format!("lineage --checkpoint {}", digest.replace(&digest[..1], "x"))).await;
    assert!(error.unwrap().contains("checkpoint"));
}
