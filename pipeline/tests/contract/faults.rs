//! Killed anywhere, raced anyhow: the bytes are the same.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use envace_pipeline::{Clean, Execution, PipelineError, Plan, Store, clean_staging, verify};
use envace_schemas::{ContentHash, Table};
use proptest::prelude::*;

use crate::support::{
    Layer, N_PARTS, model_folder, rewards, score, score_request, snapshot, stores, write_score,
};

async fn assert_finished(store: &Store, expected: &BTreeMap<String, bytes::Bytes>, when: &str) {
    clean_staging(store, None, Clean::Committed).await.unwrap();
    let found = snapshot(store).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{when}");
    assert!(found == *expected, "other bytes {when}");
    let report = verify(store, None).await.unwrap();
    assert!(report.is_valid(), "{when}: {report}");
}

#[tokio::test]
async fn killed_at_any_write_and_resumed_gives_the_same_bytes() {
    let model = model_folder();
    let (_folder, [memory, local]) = stores();
    score(&memory, model.path()).await.unwrap();
    let expected = snapshot(&memory).await;
    // 2 parts of 3 files, 3 files and a marker of a checkpoint, a claim, a manifest: nothing is left in staging.
    assert!(expected.keys().all(|path| !path.starts_with("staging/")), "{:?}", expected.keys());
    assert_eq!(expected.len(), 4 + 4 + 2);
    score(&local, model.path()).await.unwrap();
    assert!(snapshot(&local).await == expected, "a folder and memory differ");

    let mut n_kills = 0;
    loop {
        // Every third kill also on a real folder, which is slow.
        let (_folder, [memory, local]) = stores();
        let stores = if n_kills % 3 == 0 { vec![memory, local] } else { vec![memory] };
        let mut was_killed = false;
        for store in stores {
            let (dying, n_writes) = Layer::dying(&store, n_kills);
            let outcome = score(&dying, model.path()).await;
            was_killed = n_writes.load(Ordering::SeqCst) > n_kills;
            // Once the manifest is there only cleaning up can fail, and that is no failure.
            assert!(
                outcome.is_err() || !was_killed || store.latest("r", "score", 3).await.unwrap().is_some()
            );
            score(&store, model.path()).await.unwrap();
            assert_finished(&store, &expected, &format!("after a kill at write {n_kills}")).await;
        }
        if !was_killed {
            break;
        }
        n_kills += 1;
    }
    // 8 files and records of parts, 3 uploads of three calls, a marker, a claim, 6 moves, a manifest, 8 deletions.
    assert_eq!(n_kills, 8 + 9 + 1 + 1 + 6 + 1 + 8);
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn killed_again_and_again_gives_the_same_bytes(limits in prop::collection::vec(0usize..12, 1..6)) {
        block_on(async {
            let model = model_folder();
            let reference = Store::memory();
            score(&reference, model.path()).await.unwrap();
            let expected = snapshot(&reference).await;
            let store = Store::memory();
            for &limit in &limits {
                let _ = score(&Layer::dying(&store, limit).0, model.path()).await;
            }
            score(&store, model.path()).await.unwrap();
            assert_finished(&store, &expected, &format!("after kills at {limits:?}")).await;
        });
    }

    #[test]
    fn two_processes_at_once_give_one_output(seeds in (1u64.., 1u64..), limit in 0usize..60) {
        block_on(async {
            let model = model_folder();
            let reference = Store::memory();
            score(&reference, model.path()).await.unwrap();
            let expected = snapshot(&reference).await;
            let store = Store::memory();
            let (one, other) = (Layer::dawdling(&store, seeds.0), Layer::dawdling(&store, seeds.1));
            let (mortal, _) = Layer::dying(&Layer::dawdling(&store, seeds.0 ^ 7), limit);
            let (one, other, _) = tokio::join!(
                score(&one, model.path()),
                score(&other, model.path()),
                score(&mortal, model.path()),
            );
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!(one, other, "both see the winner's manifest");
            assert_finished(&store, &expected, "after a race").await;
        });
    }

    #[test]
    fn two_results_of_one_key_are_never_both_taken(seeds in (1u64.., 1u64..)) {
        block_on(async {
            let store = Store::memory();
            let run = async |seed: u64, n_items: i64| {
                let store = Layer::dawdling(&store, seed);
                let plan = Plan::make(&store, score_request("r")).await?;
                let execution = Execution::new(&store, plan);
                for part in 0..N_PARTS {
                    let mut rows = rewards(part);
                    rows[0].n_items = n_items;
                    write_score(&execution, part, &rows).await?;
                    execution.finish_part(part).await?;
                }
                execution.commit().await
            };
            let (one, other) = tokio::join!(run(seeds.0, 1), run(seeds.1, 2));
            let n_taken = usize::from(one.is_ok()) + usize::from(other.is_ok());
            // Unless the second only began when the first was done, and reused it without a word.
            assert!(n_taken < 2, "{one:?} {other:?}");
            assert!(verify(&store, None).await.unwrap().is_valid());
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_in_a_folder_gives_one_output() {
    let model = model_folder();
    let (_folder, [memory, local]) = stores();
    score(&memory, model.path()).await.unwrap();
    for seed in 1..6 {
        clean_all(&local).await;
        let tasks = [2 * seed, 2 * seed + 1].map(|seed| {
            let (store, model) = (Layer::dawdling(&local, seed), model.path().to_owned());
            tokio::spawn(async move { score(&store, &model).await })
        });
        let mut manifests = Vec::new();
        for task in tasks {
            manifests.push(task.await.unwrap().unwrap());
        }
        assert_eq!(manifests[0], manifests[1]);
        assert_finished(&local, &snapshot(&memory).await, "after a race").await;
    }
}

async fn clean_all(store: &Store) {
    for (path, _) in store.list(&envace_pipeline::Path::default()).await.unwrap() {
        store.delete(&path).await.unwrap();
    }
}

#[tokio::test]
async fn the_loser_of_a_race_with_other_rows_fails_loudly() {
    let (_folder, stores) = stores();
    for store in stores {
        let execution =
            async || Execution::new(&store, Plan::make(&store, score_request("r")).await.unwrap());
        let (one, other) = (execution().await, execution().await);
        for part in 0..N_PARTS {
            write_score(&one, part, &rewards(part)).await.unwrap();
            one.finish_part(part).await.unwrap();
        }
        one.commit().await.unwrap();
        for part in 0..N_PARTS {
            let mut rows = rewards(part);
            rows[0].n_items = 2;
            write_score(&other, part, &rows).await.unwrap();
            other.finish_part(part).await.unwrap();
        }
        let error = other.commit().await.unwrap_err();
        assert!(
            matches!(&error, PipelineError::NotReproducible { what, .. } if what == "part 0 of `rewards`")
        );
    }
}

#[tokio::test]
async fn a_manifest_that_comes_first_stays() {
    let (elsewhere, model) = (Store::memory(), model_folder());
    let mut theirs = score(&elsewhere, model.path()).await.unwrap();
    theirs.provenance.who = "somebody else".to_owned();
    let path = theirs.id.manifest_path();
    let (_folder, stores) = stores();
    for store in stores {
        let bytes = serde_json::to_vec_pretty(&theirs).unwrap();
        let ours = score(&Layer::raced(&store, path.clone(), bytes.into()), model.path()).await.unwrap();
        assert_eq!(ours, theirs, "the loser gives back what the winner wrote");
        assert_eq!(store.latest("r", "score", 3).await.unwrap().unwrap(), theirs);
    }
    let store = Store::memory();
    theirs.outputs.get_mut(&Table::Rewards).unwrap()[1].content_hash = ContentHash("other".to_owned());
    let bytes = serde_json::to_vec_pretty(&theirs).unwrap();
    let raced = Layer::raced(&store, path, bytes.into());
    let error = score(&raced, model.path()).await.unwrap_err();
    assert!(matches!(&error, PipelineError::NotReproducible { what, theirs, .. }
        if what == "part 1 of `rewards`" && theirs == "other"));
}

#[tokio::test]
async fn a_part_made_again_with_other_rows_is_refused() {
    let store = Store::memory();
    let execution = async || Execution::new(&store, Plan::make(&store, score_request("r")).await.unwrap());
    let (one, other) = (execution().await, execution().await);
    write_score(&one, 1, &rewards(1)).await.unwrap();
    one.finish_part(1).await.unwrap();
    write_score(&other, 1, &rewards(0)).await.unwrap();
    let error = other.finish_part(1).await.unwrap_err();
    assert!(
        error.to_string().starts_with(
            "`score` of run `r`, step 3, attempt 0 gave two results from one key, in part 1 of `rewards`: "
        ),
        "{error}"
    );
}

#[tokio::test]
async fn cleaning_removes_what_is_half_done_and_nothing_else() {
    let model = model_folder();
    let store = Store::memory();
    score(&store, model.path()).await.unwrap();
    let expected = snapshot(&store).await;
    for limit in 0..30 {
        let other = Store::memory();
        for (path, bytes) in &expected {
            other.put(&path.as_str().into(), bytes.clone()).await.unwrap();
        }
        let (dying, _) = Layer::dying(&other, limit);
        let request = score_request("half");
        let outcome = async {
            let execution = Execution::new(&dying, Plan::make(&dying, request).await?);
            for part in 0..N_PARTS {
                write_score(&execution, part, &rewards(part)).await?;
                execution.finish_part(part).await?;
            }
            execution.commit().await
        };
        let _ = outcome.await;
        let is_done = other.latest("half", "score", 3).await.unwrap().is_some();
        clean_staging(&other, None, Clean::Everything).await.unwrap();
        let found = snapshot(&other).await;
        let n_left = found.keys().filter(|path| path.contains("half")).count();
        assert_eq!(n_left, if is_done { 4 + 2 } else { 0 }, "killed at {limit}");
        assert!(expected.iter().all(|(path, bytes)| found.get(path) == Some(bytes)));
    }
}
