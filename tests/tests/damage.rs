//! A store that was damaged or edited behind envace's back: nothing is computed from it, and nobody is told that all is
//! well.

use std::path::{Path, PathBuf};

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_pipeline::{StageOutput, verify};
use envace_schemas::tables::RewardRow;
use envace_schemas::write_rows;

use crate::whole_run::{CONFIG, RUN, context, steps};

/// The error of a command, with all causes; `None` if it has none.
async fn error_of(store: &Path, words: &str, last: &[&str]) -> Option<String> {
    let uri = store.display().to_string();
    let words = words.split(' ').map(|word| if word == "STORE" { &uri } else { word });
    let args: Vec<&str> = ["envace-jobs"].into_iter().chain(words).chain(last.iter().copied()).collect();
    match Cli::try_parse_from(&args).unwrap().run().await {
        Ok(code) if code == std::process::ExitCode::SUCCESS => None,
        Ok(code) => Some(format!("{code:?}")),
        Err(error) => Some(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")),
    }
}

/// Files below `dir` whose names begin and end so.
fn files(dir: &Path, start: &str, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path, start, end));
        } else if name.starts_with(start) && name.ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// Changes one byte in the middle of each file; returns what they held.
fn flip(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let flip_one = |path: &PathBuf| {
        let sound = fs_err::read(path).unwrap();
        let mut bytes = sound.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs_err::write(path, bytes).unwrap();
        sound
    };
    assert!(!paths.is_empty());
    paths.iter().map(flip_one).collect()
}

#[tokio::test]
async fn nothing_is_computed_from_what_has_changed_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;

    for (start, end, stage) in
        [("model", ".safetensors", Stage::Rollout), ("state-", ".safetensors", Stage::Update)]
    {
        let paths = files(&dir.path().join("checkpoints"), start, end);
        let sound = flip(&paths);
        let error = stage.run(&ctx, 1).await.unwrap_err().to_string();
        assert!(error.contains("has other bytes"), "{start}: {error}");
        if stage == Stage::Update {
            // Computed again, what was damaged is written anew.
            Stage::Update.run(&RunContext { new_attempt: true, ..ctx.clone() }, 0).await.unwrap();
            assert_eq!(paths.iter().map(|path| fs_err::read(path).unwrap()).collect::<Vec<_>>(), sound);
        }
        for (path, bytes) in paths.iter().zip(sound) {
            fs_err::write(path, bytes).unwrap();
        }
        if stage == Stage::Rollout {
            for stage in [Stage::Rollout, Stage::Score, Stage::Advantage] {
                stage.run(&ctx, 1).await.unwrap();
            }
        }
    }
    // A damaged copy of a policy whose source is at hand is written anew.
    let initial = ctx.policy_at(0).await.unwrap().dir.join("model.safetensors");
    flip(std::slice::from_ref(&initial));
    let again = RunContext { run: "other".to_owned(), ..ctx.clone() };
    again.policy_at(0).await.unwrap().check(&ctx.store).await.unwrap();

    let question = ["SELECT count(*) FROM rewards"];
    assert_eq!(error_of(dir.path(), "sql --store STORE", &question).await, None);
    let part = files(&dir.path().join("tables/rewards"), "part-00001", ".parquet").remove(0);
    for bytes in [Some(Vec::new()), None] {
        match bytes {
            Some(bytes) => fs_err::write(&part, bytes).unwrap(),
            None => fs_err::remove_file(&part).unwrap(),
        }
        let error = error_of(dir.path(), "sql --store STORE", &question).await.unwrap();
        assert!(error.contains("missing or has another size"), "{error}");
    }
    Stage::Score.run(&RunContext { new_attempt: true, ..ctx.clone() }, 0).await.unwrap();
    assert_eq!(error_of(dir.path(), "sql --store STORE", &question).await, None, "it was replaced");
}

#[tokio::test]
async fn a_run_says_of_a_damaged_checkpoint_what_verify_says() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("adapter");
    crate::untrainable::adapter(&folder);
    let checkpoint = folder.display().to_string();
    let ctx = context(&dir, &format!("{CONFIG}[policy]\ncheckpoint = {checkpoint:?}\n")).await;
    let source = ctx.policy_at(0).await.unwrap();
    let config = source.dir.join("adapter_config.json");
    let sound = fs_err::read_to_string(&config).unwrap();
    let heavier = sound.replace("\"lora_alpha\": 8", "\"lora_alpha\": 9");
    assert_ne!(sound, heavier);
    let tokenizer = source.model_dir.join("tokenizer.json");
    let of_base = fs_err::read_to_string(&tokenizer).unwrap();
    let cases = [
        (&config, &sound, Some(heavier)),
        (&config, &sound, Some(format!("{sound}\n"))),
        (&config, &sound, None),
        (&tokenizer, &of_base, Some(format!("{of_base}\n"))),
    ];
    for (path, sound, damaged) in cases {
        match &damaged {
            Some(text) => fs_err::write(path, text).unwrap(),
            None => fs_err::remove_file(path).unwrap(),
        }
        let error = Stage::Rollout.run(&ctx, 0).await.unwrap_err().to_string();
        let found = verify(&ctx.store, Some(RUN)).await.unwrap().problems;
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(found.contains(&error), "{error:?} is none of {found:?}");
        fs_err::write(path, sound).unwrap();
    }
}

#[tokio::test]
async fn what_is_put_is_the_whole_table_and_what_is_written_goes_where_nothing_is() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let rewards: Vec<RewardRow> =
        StageOutput::latest(&ctx.store, RUN, "score", 0).await.unwrap().read_all().await.unwrap();
    let put = "put --store STORE --run r --stage score --step 0 --table rewards --reason x";
    let file = dir.path().join("half.parquet").display().to_string();
    fs_err::write(&file, write_rows(&rewards[1..]).unwrap()).unwrap();
    let error = error_of(dir.path(), put, &[&file]).await.unwrap();
    assert!(error.contains("leaves out 1 rows"), "{error}");

    let error = error_of(dir.path(), "verify --store STORE --run", &["nope"]).await.unwrap();
    assert!(error.contains("no run `nope` in the store"), "{error}");
    let folder = dir.path().join("out");
    let export = "checkpoint export --store STORE --run r --step 1";
    let shown = folder.display().to_string();
    assert_eq!(error_of(dir.path(), export, &[&shown]).await, None);
    let error = error_of(dir.path(), export, &[&shown]).await.unwrap();
    assert!(error.contains("not empty"), "{error}");
}
