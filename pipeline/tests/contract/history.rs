//! Lineage, verification, and the configuration a run began with.

use envace_pipeline::{
    Artifact, CheckpointDigest, Execution, InputRef, InputStatus, Lineage, Manifest, Plan, PlanRequest,
    RunConfig, StageSpec, Store, add_optimizer_state, import_checkpoint, put, verify,
};
use envace_schemas::tables::RewardRow;
use envace_schemas::{Table, batches_of};
use serde_json::json;

use crate::support::{N_PARTS, advantage, model_folder, rewards, score, stores};

/// Makes a checkpoint and no table, from a checkpoint and, after the first, from the one before.
const UPDATE: StageSpec =
    StageSpec { name: "update", version: 1, inputs: &[], outputs: &[], queries: &[], config: "update" };

async fn update(store: &Store, step: u64, inputs: Vec<InputRef>, weights: &str) -> Manifest {
    let model = model_folder();
    fs_err::write(model.path().join("model.safetensors"), weights).unwrap();
    let plan = Plan::make(store, PlanRequest::new(&UPDATE, "r", step, json!({}), inputs)).await.unwrap();
    let execution = Execution::new(store, plan);
    let digest = import_checkpoint(store, model.path()).await.unwrap();
    fs_err::write(model.path().join("state"), weights).unwrap();
    let state = add_optimizer_state(store, &digest, &model.path().join("state")).await.unwrap();
    let state = Artifact::OptimizerState { checkpoint: digest.clone(), digest: state };
    execution.add_artifact(0, "checkpoint", Artifact::Checkpoint { digest }).unwrap();
    execution.add_artifact(0, "optimizer_state", state).unwrap();
    execution.finish_part(0).await.unwrap();
    execution.commit().await.unwrap()
}

fn checkpoint_of(manifest: &Manifest) -> CheckpointDigest {
    manifest.artifacts["checkpoint"].checkpoint().clone()
}

#[tokio::test]
async fn a_long_chain_is_listed_once_each_and_stale_inputs_are_marked() {
    let (store, model) = (Store::memory(), model_folder());
    let scored = score(&store, model.path()).await.unwrap();
    let advantages = advantage(&store, &scored, false).await.unwrap();
    let file = InputRef::file("recipe", "recipe.toml", b"x");
    let scored_input = InputRef::artifact("checkpoint", &scored, "checkpoint").unwrap();
    let mut last = update(&store, 0, vec![scored_input, file], "0").await;
    // Two ways from each step to the one before: 2^40 paths, 41 outputs.
    for step in 1..=40 {
        let inputs = vec![
            InputRef::artifact("checkpoint", &last, "checkpoint").unwrap(),
            InputRef::artifact("optimizer_state", &last, "optimizer_state").unwrap(),
        ];
        last = update(&store, step, inputs, &step.to_string()).await;
    }
    let lineage = Lineage::of_checkpoint(&store, &checkpoint_of(&last)).await.unwrap();
    assert_eq!(lineage.nodes.len(), 42);
    assert_eq!(lineage.nodes[0].manifest, last);
    let steps: Vec<_> = lineage.nodes[..41].iter().map(|node| node.manifest.id.step).collect();
    assert_eq!(steps, (0..=40).rev().collect::<Vec<_>>());
    assert_eq!(lineage.nodes[41].manifest, scored);
    assert!(!lineage.is_outdated());
    assert_eq!(lineage.nodes[40].links[1].status, InputStatus::Outside);
    let text = lineage.to_string();
    assert!(text.contains("\n  reads recipe ") && text.contains(" from file `recipe.toml`"), "{text}");

    let lineage = Lineage::of_stage(&store, "r", "advantage", 3).await.unwrap();
    assert_eq!(lineage.nodes.len(), 2);
    assert!(!lineage.is_outdated());
    let mut rows: Vec<RewardRow> = (0..N_PARTS).flat_map(rewards).collect();
    rows[0].reward = None;
    let batches = batches_of(&rows).unwrap();
    let edited = put(&store, "r", "score", 3, Table::Rewards, &batches, "jan", "wrong").await.unwrap();
    let lineage = Lineage::of(&store, advantages).await.unwrap();
    assert!(lineage.is_outdated());
    assert_eq!(lineage.nodes[0].links[0].status, InputStatus::Stale { latest: edited.id.clone() });
    assert_eq!(lineage.nodes[0].links[1].status, InputStatus::Current, "the checkpoint was carried over");
    assert!(!lineage.nodes[1].is_outdated);
    let text = lineage.to_string();
    assert!(text.starts_with("`advantage` of run `r`, step 3, attempt 0 (outdated)\n  made by "), "{text}");
    assert!(text.contains(" (8 rows), stale: attempt 1 is newer\n"), "{text}");

    let renewed = advantage(&store, &edited, true).await.unwrap();
    let lineage = Lineage::of(&store, renewed).await.unwrap();
    assert!(!lineage.is_outdated());
    assert!(lineage.to_string().contains("put by jan, "), "who and when: {lineage}");
    store.delete(&edited.id.manifest_path()).await.unwrap();
    let lineage = Lineage::of_stage(&store, "r", "advantage", 3).await.unwrap();
    assert_eq!(lineage.nodes[0].links[0].status, InputStatus::Missing);

    let error = Lineage::of_checkpoint(&store, &CheckpointDigest("none".to_owned())).await.unwrap_err();
    assert_eq!(error.to_string(), "checkpoint is not in the store: none");
    let error = Lineage::of_stage(&store, "r", "advantage", 4).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no output of `advantage` of run `r`, step 4, attempt 0");
}

#[tokio::test]
async fn verification_finds_every_kind_of_damage() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for store in stores {
        let scored = score(&store, model.path()).await.unwrap();
        let made = advantage(&store, &scored, false).await.unwrap();
        let input = InputRef::artifact("checkpoint", &scored, "checkpoint").unwrap();
        let updated = update(&store, 4, vec![input], "4").await;
        let report = verify(&store, Some("r")).await.unwrap();
        assert!(report.is_valid(), "{report}");
        // Two parts of two tables and timings, two of advantages; two checkpoints and a state.
        assert_eq!((report.n_manifests, report.n_files, report.n_artifacts), (3, 8, 3));
        assert_eq!(verify(&store, Some("other")).await.unwrap().n_manifests, 0);

        let problems = async |path: &envace_pipeline::Path, bytes: Option<Vec<u8>>| {
            let whole = store.get(path).await.unwrap();
            match bytes {
                Some(bytes) => store.put(path, bytes).await.unwrap(),
                None => store.delete(path).await.unwrap(),
            }
            let report = verify(&store, None).await.unwrap();
            store.put(path, whole).await.unwrap();
            let shown = report.problems.iter().map(ToString::to_string);
            shown.map(|text| text.replace(path.as_ref(), "PATH")).collect::<Vec<_>>()
        };
        let file = scored.id.part_path(Table::Rewards, 0);
        let mut bent = store.get(&file).await.unwrap().to_vec();
        bent[8] ^= 0x40;
        assert_eq!(problems(&file, Some(bent)).await, ["file of an output has other bytes: PATH"]);
        assert_eq!(problems(&file, None).await, ["file of an output is missing: PATH"]);

        let checkpoint = checkpoint_of(&updated);
        let weights = envace_pipeline::Path::from(format!("checkpoints/{checkpoint}/model.safetensors"));
        assert_eq!(
            problems(&weights, Some(b"5".to_vec())).await,
            ["file of a checkpoint has other bytes: PATH"]
        );
        assert_eq!(problems(&weights, None).await, ["file of a checkpoint is missing: PATH"]);
        let state = updated.artifacts["optimizer_state"].digest();
        let state =
            envace_pipeline::Path::from(format!("checkpoints/{checkpoint}/state-{state}.safetensors"));
        assert_eq!(
            problems(&state, Some(b"5".to_vec())).await,
            ["file of a checkpoint has other bytes: PATH"]
        );
        let marker = envace_pipeline::Path::from(format!("checkpoints/{checkpoint}/complete.json"));
        assert_eq!(
            problems(&marker, None).await,
            [format!("checkpoint is missing or not whole: checkpoints/{checkpoint}")]
        );

        let manifest = made.id.manifest_path();
        let text = String::from_utf8(store.get(&manifest).await.unwrap().to_vec()).unwrap();
        let edit = |from: &str, to: &str| Some(text.replacen(from, to, 1).into_bytes());
        assert_eq!(problems(&manifest, edit("\"n_rows\": 4", "\"n_rows\": 5")).await.len(), 1);
        assert_eq!(
            problems(&manifest, edit("\"version\": 1", "\"version\": 2")).await,
            ["stage key is not that of its parts: PATH"]
        );
        assert_eq!(
            problems(&manifest, edit("\"stage\": \"advantage\"", "\"stage\": \"adventure\"")).await,
            ["manifest lies in the place of another: PATH"]
        );
        let upstream = scored.id.manifest_path();
        assert_eq!(
            problems(&upstream, None).await,
            ["`rewards`", "`checkpoint`", "`checkpoint`"]
                .iter()
                .zip([&made, &made, &updated])
                .map(|(input, at)| {
                    format!("input {input} is gone: {}: {}", scored.id, at.id.manifest_path())
                })
                .collect::<Vec<_>>()
        );
        let broken = problems(&upstream, Some(b"{".to_vec())).await;
        assert!(broken.len() == 1 && broken[0].starts_with("manifest cannot be understood ("), "{broken:?}");
        assert!(verify(&store, None).await.unwrap().is_valid(), "all restored");
    }
}

#[tokio::test]
async fn a_run_keeps_the_configuration_it_began_with() {
    let (_folder, stores) = stores();
    for store in stores {
        assert_eq!(store.run_config("r").await.unwrap(), None);
        assert_eq!(store.store_run_config("r", "seed = 1\n").await.unwrap(), RunConfig::Stored);
        assert_eq!(store.store_run_config("r", "seed = 1\n").await.unwrap(), RunConfig::Same);
        let other = store.store_run_config("r", "seed = 2\n").await.unwrap();
        assert_eq!(other, RunConfig::Other("seed = 1\n".to_owned()));
        assert_eq!(store.run_config("r").await.unwrap().unwrap(), "seed = 1\n");
        assert!(store.store_run_config("a/b", "").await.is_err());
        assert_eq!(store.runs().await.unwrap(), ["r"]);
    }
}
