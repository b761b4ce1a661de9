//! What came of a group, and what two runs made differently, on the command line.

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::config::Config;
use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_pipeline::StageOutput;
use envace_schemas::tables::AdvantageRow;
use envace_schemas::{Decimal, Table, batches_of};

use crate::whole_run::{CONFIG, RUN, context, steps};

/// Whether a command exits with 0; its error if it fails.
async fn is_success(args: &[&str]) -> Result<bool, String> {
    let code = Cli::try_parse_from([&["envace-jobs"], args].concat()).unwrap().run().await;
    match code {
        Ok(code) => Ok(format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS)),
        Err(error) => Err(error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")),
    }
}

#[tokio::test]
async fn a_difference_between_two_runs_or_attempts_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 2).await;
    // The same again, one step shorter: steps that one alone has are not compared.
    let config = Config::parse(CONFIG, "test").unwrap();
    let again = RunContext::open(ctx.store.clone(), "again", Some(config), false).await.unwrap();
    for stage in [Stage::Rollout, Stage::Score, Stage::Advantage] {
        stage.run(&again, 0).await.unwrap();
    }
    let store = dir.path().display().to_string();
    let diff = async |a: &str, b: &str| is_success(&["diff", "--store", &store, a, b]).await;
    assert_eq!(diff(RUN, "again").await, Ok(true));
    assert_eq!(diff(RUN, RUN).await, Ok(true));
    // One advantage is another in the second attempt.
    let output = StageOutput::latest(&ctx.store, RUN, "advantage", 0).await.unwrap();
    let mut rows: Vec<AdvantageRow> = output.read_all().await.unwrap();
    let included = rows.iter_mut().find(|row| row.is_included).unwrap();
    included.advantage = Some(7.5);
    let batches = batches_of(&rows).unwrap();
    envace_pipeline::put(&ctx.store, RUN, "advantage", 0, Table::Advantages, &batches, "me", "a test")
        .await
        .unwrap();
    assert_eq!(diff(RUN, "again").await, Ok(false));
    assert_eq!(diff(&format!("{RUN}@0"), "again").await, Ok(true));
    assert_eq!(diff(&format!("{RUN}@0"), &format!("{RUN}@0")).await, Ok(true));
    assert!(diff(RUN, "none").await.unwrap_err().contains("it has again, r"));
    // The second attempt is of advantages alone; what is not there is not taken for equal.
    assert_eq!(diff(&format!("{RUN}@1"), "again").await, Ok(false));
    assert_eq!(diff(&format!("{RUN}@1"), &format!("{RUN}@0")).await, Ok(false));
    for args in [
        ["diff", "--store", &store, &format!("{RUN}@0"), &format!("{RUN}@9")].as_slice(),
        &["diff", "--store", &store, "--step", "99", RUN, RUN],
        // It has no second step.
        &["diff", "--store", &store, "--step", "1", RUN, "again"],
    ] {
        assert!(is_success(args).await.unwrap_err().contains("nothing was compared"), "{args:?}");
    }
    assert!(diff(&format!("{RUN}@x"), RUN).await.unwrap_err().contains("number of an attempt"));
}

#[tokio::test]
async fn a_group_is_explained_and_one_that_is_not_there_is_said_to_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(&dir, CONFIG).await;
    steps(&ctx, 1).await;
    let store = dir.path().display().to_string();
    let output = StageOutput::latest(&ctx.store, RUN, "advantage", 0).await.unwrap();
    let rows: Vec<AdvantageRow> = output.read_all().await.unwrap();
    assert!(rows.iter().any(|row| row.reward > Some(Decimal::ZERO)));
    let explain = async |task: &str, more: &[&str]| {
        let args = ["advantage", "--store", &store, "--run", RUN, "--step", "0", "--explain", task];
        is_success(&[&args, more].concat()).await
    };
    assert_eq!(explain(&rows[0].task_id, &[]).await, Ok(true));
    assert!(explain("no'such", &[]).await.unwrap_err().contains("no advantages of task: no'such"));
}
