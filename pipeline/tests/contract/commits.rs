//! What a stage may write, and what is there after a commit.

use envace_pipeline::{
    Execution, MadeBy, PipelineError, Plan, PlanRequest, StageOutput, Store, current_user,
};
use envace_schemas::Table;
use envace_schemas::tables::{AdvantageRow, JudgeCallRow, RewardRow, TimingRow};
use serde_json::json;

use crate::support::{
    N_PARTS, SCORE, advantages, model_folder, rewards, score, score_request, snapshot, stores, write_score,
};

async fn execution(store: &Store) -> Execution {
    Execution::new(store, Plan::make(store, score_request("r")).await.unwrap())
}

#[tokio::test]
async fn rows_come_back_and_the_manifest_says_what_they_are() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for store in stores {
        let manifest = score(&store, model.path()).await.unwrap();
        let output = StageOutput::latest(&store, "r", "score", 3).await.unwrap();
        assert_eq!(output.manifest(), &manifest);
        assert_eq!(output.read::<RewardRow>(1).await.unwrap(), rewards(1));
        let all: Vec<_> = (0..N_PARTS).flat_map(rewards).collect();
        assert_eq!(output.read_all::<RewardRow>().await.unwrap(), all);
        assert!(output.read_all::<JudgeCallRow>().await.unwrap().is_empty());
        assert_eq!(output.read_all::<TimingRow>().await.unwrap().len(), 2);
        assert_eq!(manifest.n_rows(Table::Rewards), 8);
        assert_eq!(
            output.parts(Table::Rewards).unwrap()[1].path,
            "tables/rewards/run=r/stage=score/step=000003/attempt=0/part-00001.parquet"
        );
        assert_eq!(manifest.provenance.made_by, MadeBy::Stage);
        assert_eq!(manifest.provenance.who, current_user());
        let when = &manifest.provenance.when;
        assert!(when.len() == 20 && when.ends_with('Z') && when.contains('T'), "{when}");
        assert_eq!(
            output.read::<RewardRow>(2).await.unwrap_err().to_string(),
            "`score` of run `r`, step 3, attempt 0 has no part 2 of `rewards`"
        );
        assert_eq!(
            output.read::<AdvantageRow>(0).await.unwrap_err().to_string(),
            "`score` of run `r`, step 3, attempt 0 has no table `advantages`"
        );
        let error = StageOutput::latest(&store, "r", "score", 4).await.unwrap_err();
        assert_eq!(error.to_string(), "there is no output of `score` of run `r`, step 4, attempt 0");
        assert_eq!(error.hint().unwrap(), "run `envace-jobs score --run r --step 4` first");
    }
}

#[tokio::test]
async fn what_breaks_the_declaration_is_refused() {
    let store = Store::memory();
    let execution = execution(&store).await;
    let error = execution.write(0, &advantages(0)).await.unwrap_err();
    assert_eq!(error.to_string(), "stage `score` does not declare the output: advantages");
    let error = execution.write(2, &rewards(0)).await.unwrap_err();
    assert_eq!(error.to_string(), "`score` of run `r`, step 3, attempt 0 has no part 2");
    execution.write(0, &rewards(0)).await.unwrap();
    let error = execution.finish_part(0).await.unwrap_err();
    assert_eq!(error.to_string(), "stage `score` finished part 0 without writing: judge_calls");

    let mut rows = rewards(0);
    rows.swap(1, 2);
    let error = execution.write(0, &rows).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 2 of `rewards`, part 0, is out of order: task_id=task-00, sample=1, role=actor"
    );
    assert_eq!(error.hint().unwrap(), "rows are sorted by, and unique in: task_id, sample, role");
    rows[1] = rows[0].clone();
    let error = execution.write(0, &rows).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 1 of `rewards`, part 0, repeats the one before: task_id=task-00, sample=0, role=actor"
    );
    let error = execution.commit().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`score` of run `r`, step 3, attempt 0 is not complete, 2 of its 2 parts are missing: 0; 1"
    );
    assert!(
        snapshot(&store).await.keys().all(|path| path.starts_with("staging/")),
        "no output without a manifest"
    );
}

#[tokio::test]
async fn shards_share_their_parts() {
    let (_folder, stores) = stores();
    for store in stores {
        let shards = [execution(&store).await, execution(&store).await];
        for (part, shard) in (0..).zip(&shards) {
            write_score(shard, part, &rewards(part)).await.unwrap();
            shard.finish_part(part).await.unwrap();
            let outcome = shard.commit().await;
            assert_eq!(outcome.is_ok(), part == 1, "the last one commits");
        }
        let first = shards[0].commit().await.unwrap();
        assert_eq!(first.n_rows(Table::Rewards), 8);
        assert!(shards[0].missing_parts().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn parts_may_be_written_at_once() {
    let store = Store::memory();
    let execution = execution(&store).await;
    let part = async |part: u32| {
        write_score(&execution, part, &rewards(part)).await?;
        execution.finish_part(part).await
    };
    let (one, other) = tokio::join!(part(1), part(0));
    one.and(other).unwrap();
    let sequential = Store::memory();
    let model = model_folder();
    let expected = score(&sequential, model.path()).await.unwrap();
    let found = execution.commit().await.unwrap();
    assert_eq!(found.outputs[&Table::Rewards], expected.outputs[&Table::Rewards]);
}

#[tokio::test]
async fn an_attempt_under_commit_from_another_key_is_not_touched() {
    let store = Store::memory();
    let other = {
        let mut request = score_request("r");
        request.config = json!({"tasks_per_part": 2, "weighting": "trajectory"});
        Execution::new(&store, Plan::make(&store, request).await.unwrap())
    };
    let ours = execution(&store).await;
    for (execution, limit) in [(&ours, N_PARTS), (&other, N_PARTS)] {
        for part in 0..limit {
            write_score(execution, part, &rewards(part)).await.unwrap();
            execution.finish_part(part).await.unwrap();
        }
    }
    ours.commit().await.unwrap();
    // Only the claim is left, as if the other process were between it and its manifest.
    store.delete(&ours.id().manifest_path()).await.unwrap();
    let message = "`score` of run `r`, step 3, attempt 0 was made from something else: config `/weighting` is \
                   \"trajectory\", was \"generation\"";
    let error = other.commit().await.unwrap_err();
    assert!(matches!(error, PipelineError::KeyConflict { .. }));
    assert_eq!(error.to_string(), message);
    let request = PlanRequest { config: other.plan().key_parts.config.clone(), ..score_request("r") };
    let error = Plan::make(&store, request.clone()).await.unwrap_err();
    assert_eq!(error.to_string(), message, "a plan sees it as well");
    let request = PlanRequest { new_attempt: true, ..request };
    assert_eq!(Plan::make(&store, request).await.unwrap().id.attempt, 1);
    // The one whose claim it is goes on where it was.
    let request = PlanRequest { new_attempt: true, ..score_request("r") };
    assert_eq!(Plan::make(&store, request).await.unwrap().id.attempt, 0);
}

#[tokio::test]
async fn a_torn_file_of_an_unfinished_commit_is_written_anew() {
    let store = Store::memory();
    let execution = execution(&store).await;
    for part in 0..N_PARTS {
        write_score(&execution, part, &rewards(part)).await.unwrap();
        execution.finish_part(part).await.unwrap();
    }
    let path = execution.id().part_path(Table::Rewards, 0);
    store.put(&path, "torn").await.unwrap();
    // The claim of a commit that lost its power.
    let claim = execution.id().manifest_path().to_string().replace("manifest", "claim");
    store.put(&claim.into(), "").await.unwrap();
    assert_eq!(Plan::make(&store, score_request("r")).await.unwrap().id.attempt, 0);
    execution.commit().await.unwrap();
    let output = StageOutput::latest(&store, "r", "score", 3).await.unwrap();
    assert_eq!(output.read::<RewardRow>(0).await.unwrap(), rewards(0));
}

#[tokio::test]
async fn a_manifest_of_a_newer_version_is_refused() {
    let (store, model) = (Store::memory(), model_folder());
    let made = score(&store, model.path()).await.unwrap();
    let path = made.id.manifest_path();
    let text = String::from_utf8(store.get(&path).await.unwrap().to_vec()).unwrap();
    assert!(text.starts_with("{\n  \"format\": 1,\n") && text.ends_with("}\n"));
    store.put(&path, text.replacen("\"format\": 1", "\"format\": 2", 1)).await.unwrap();
    let error = store.latest("r", "score", 3).await.unwrap_err();
    assert_eq!(error.to_string(), format!("manifest has format 2, this version reads up to 1: {path}"));
    store.put(&path, "{").await.unwrap();
    let error = store.latest("r", "score", 3).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot be understood: {path}"));
    assert_eq!(SCORE.name, made.id.stage);
}
