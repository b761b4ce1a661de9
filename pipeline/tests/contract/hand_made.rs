//! A table put by hand is an attempt of its own, with who, when and why.

use envace_pipeline::{MadeBy, Plan, Replaced, StageOutput, Store, put, verify};
use envace_schemas::tables::{AdvantageRow, JudgeCallRow, RewardRow};
use envace_schemas::{Table, batches_of};

use crate::support::{
    Layer, N_PARTS, advantage, advantages, model_folder, rewards, score, score_request, snapshot, stores,
};

/// All rewards of the stage, the first one raised.
fn edited() -> Vec<RewardRow> {
    let mut rows: Vec<_> = (0..N_PARTS).flat_map(rewards).collect();
    rows[0].reward = Some("0.9".parse().unwrap());
    rows
}

async fn put_rewards(
    store: &Store,
    rows: &[RewardRow],
) -> Result<envace_pipeline::Manifest, envace_pipeline::PipelineError> {
    let batches = batches_of(rows).unwrap();
    put(store, "r", "score", 3, Table::Rewards, &batches, "jan", "the judge was wrong").await
}

#[tokio::test]
async fn it_replaces_one_table_and_carries_the_others_over() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for store in stores {
        let made = score(&store, model.path()).await.unwrap();
        let first = advantage(&store, &made, false).await.unwrap();
        let manifest = put_rewards(&store, &edited()).await.unwrap();
        assert_eq!(manifest.id.attempt, 1);
        let provenance = &manifest.provenance;
        assert_eq!((provenance.made_by, provenance.who.as_str()), (MadeBy::Put, "jan"));
        assert_eq!(provenance.replaces, Some(Replaced { attempt: 0, tables: vec!["rewards".to_owned()] }));
        assert_eq!(
            provenance.to_string(),
            format!("put by jan, {}, in place of rewards of attempt 0: the judge was wrong", provenance.when)
        );
        assert_eq!((&manifest.key, &manifest.artifacts), (&made.key, &made.artifacts));

        let output = StageOutput::latest(&store, "r", "score", 3).await.unwrap();
        assert_eq!(output.read::<RewardRow>(0).await.unwrap(), edited()[..4]);
        assert_eq!(output.read::<RewardRow>(1).await.unwrap(), rewards(1));
        assert!(output.read_all::<JudgeCallRow>().await.unwrap().is_empty());
        let parts = |manifest: &envace_pipeline::Manifest| manifest.outputs[&Table::Rewards].clone();
        assert_ne!(parts(&manifest)[0].content_hash, parts(&made)[0].content_hash);
        assert_eq!(parts(&manifest)[1].content_hash, parts(&made)[1].content_hash, "untouched");
        for (other, name) in [(Table::JudgeCalls, "judge_calls"), (Table::Timings, "timings")] {
            assert_eq!(manifest.table_digest(other), made.table_digest(other));
            let folder = format!("tables/{name}/run=r/stage=score/step=000003/attempt=1/");
            assert!(manifest.outputs[&other].iter().all(|part| part.path.starts_with(&folder)));
        }
        // The old attempt is as it was, and the stage counts as done.
        let old = StageOutput::new(&store, made.clone());
        assert_eq!(old.read::<RewardRow>(0).await.unwrap(), rewards(0));
        let plan = Plan::make(&store, score_request("r")).await.unwrap();
        assert_eq!(plan.reused(), Some(&manifest));

        assert!(advantage(&store, &manifest, false).await.is_err(), "its input has changed");
        let second = advantage(&store, &manifest, true).await.unwrap();
        assert_eq!((second.id.attempt, first.id.attempt), (1, 0));
        let rows = StageOutput::new(&store, second).read::<AdvantageRow>(0).await.unwrap();
        assert_eq!(rows, advantages(0));
        assert!(verify(&store, None).await.unwrap().is_valid());
    }
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let (store, model) = (Store::memory(), model_folder());
    assert_eq!(
        put_rewards(&store, &edited()).await.unwrap_err().to_string(),
        "there is no output of `score` of run `r`, step 3, attempt 0"
    );
    score(&store, model.path()).await.unwrap();
    let before = snapshot(&store).await;
    let mut rows = edited();
    rows.swap(0, 1);
    assert_eq!(
        put_rewards(&store, &rows).await.unwrap_err().to_string(),
        "row 1 of `rewards`, part 0, is out of order: task_id=task-00, sample=0, role=actor"
    );
    let mut rows = edited();
    rows[7].task_id = "task-99".to_owned();
    assert_eq!(
        put_rewards(&store, &rows).await.unwrap_err().to_string(),
        "table `rewards` cannot be put, no part of the output has the group: task-99"
    );
    let batches = batches_of(&advantages(0)).unwrap();
    let error = put(&store, "r", "score", 3, Table::Advantages, &batches, "jan", "").await.unwrap_err();
    assert_eq!(error.to_string(), "`score` of run `r`, step 3, attempt 0 has no table `advantages`");
    let error = put(&store, "r", "score", 3, Table::Rewards, &batches, "jan", "").await.unwrap_err();
    assert_eq!(error.to_string(), "part 0 of `rewards` is no sound table");
    let error = put(&store, "r", "../x", 3, Table::Rewards, &batches, "jan", "").await.unwrap_err();
    assert_eq!(error.to_string(), "stage name contains '/': \"../x\"");
    assert!(snapshot(&store).await == before);
}

#[tokio::test]
async fn killed_anywhere_it_goes_on_and_gives_the_same() {
    let model = model_folder();
    let reference = Store::memory();
    score(&reference, model.path()).await.unwrap();
    put_rewards(&reference, &edited()).await.unwrap();
    let expected = snapshot(&reference).await;
    // A claim, six files and a manifest: eight places to be killed at.
    for limit in 0..8 {
        let store = Store::memory();
        score(&store, model.path()).await.unwrap();
        let (dying, _) = Layer::dying(&store, limit);
        assert!(put_rewards(&dying, &edited()).await.is_err(), "{limit}");
        let latest = store.latest("r", "score", 3).await.unwrap().unwrap();
        assert_eq!(latest.id.attempt, 0, "half an attempt does not count");
        put_rewards(&store, &edited()).await.unwrap();
        assert!(snapshot(&store).await == expected, "killed at {limit}");
    }
    let (store, model) = (Store::memory(), model_folder());
    score(&store, model.path()).await.unwrap();
    let (living, _) = Layer::dying(&store, 8);
    put_rewards(&living, &edited()).await.unwrap();
}

#[tokio::test]
async fn two_edits_after_each_other_are_two_attempts() {
    let (store, model) = (Store::memory(), model_folder());
    score(&store, model.path()).await.unwrap();
    put_rewards(&store, &edited()).await.unwrap();
    let mut rows = edited();
    rows[1].reward = None;
    assert_eq!(put_rewards(&store, &rows).await.unwrap().id.attempt, 2);
    assert_eq!(put_rewards(&store, &edited()).await.unwrap().id.attempt, 3);
    assert_eq!(store.attempts("r", "score", 3).await.unwrap().len(), 4);
}
