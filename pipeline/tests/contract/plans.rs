//! What a plan says: make, resume, reuse, or refuse with the field that differs.

use envace_pipeline::{
    Artifact, Execution, InputRef, PartCheck, Path, PipelineError, Plan, PlanRequest, PlanState, StageOutput,
    StageSpec, Store, compare, import_checkpoint,
};
use envace_schemas::tables::RewardRow;
use envace_schemas::{Query, Table};
use serde_json::json;

use crate::support::{
    ADVANTAGE, N_PARTS, SCORE, advantage, model_folder, rewards, score, score_request, snapshot, stores,
    write_score,
};

fn message(result: Result<Plan, PipelineError>) -> String {
    result.unwrap_err().to_string()
}

#[tokio::test]
async fn a_plan_writes_nothing_and_says_what_there_is_to_do() {
    let (_folder, stores) = stores();
    for store in stores {
        let plan = Plan::make(&store, score_request("r")).await.unwrap();
        assert_eq!(plan.state, PlanState::Make { done_parts: vec![], missing_parts: vec![0, 1] });
        assert!(snapshot(&store).await.is_empty());
        assert_eq!(
            plan.to_string(),
            format!(
                "`score` of run `r`, step 3, attempt 0\n  key    {}\n  makes  judge_calls\n  makes  rewards\n  \
                 make   2 of 2 parts, 0 done",
                plan.key
            )
        );
        let execution = Execution::new(&store, plan);
        write_score(&execution, 1, &rewards(1)).await.unwrap();
        execution.finish_part(1).await.unwrap();
        let plan = Plan::make(&store, score_request("r")).await.unwrap();
        assert_eq!(plan.state, PlanState::Make { done_parts: vec![1], missing_parts: vec![0] });
        assert_eq!(execution.missing_parts().await.unwrap(), [0]);
    }
}

#[tokio::test]
async fn a_damaged_part_under_way_is_made_again() {
    let store = Store::memory();
    let execution = Execution::new(&store, Plan::make(&store, score_request("r")).await.unwrap());
    write_score(&execution, 0, &rewards(0)).await.unwrap();
    execution.finish_part(0).await.unwrap();
    let staged = store.list(&Path::from("staging")).await.unwrap();
    let file = staged.iter().find(|(path, _)| path.as_ref().contains("/rewards/")).unwrap();
    store.put(&file.0, "torn").await.unwrap();
    let plan = Plan::make(&store, score_request("r")).await.unwrap();
    assert_eq!(plan.missing_parts(), [0, 1]);
    let record = staged.iter().find(|(path, _)| path.as_ref().ends_with(".json")).unwrap();
    store.put(&record.0, "").await.unwrap();
    let plan = Plan::make(&store, score_request("r")).await.unwrap();
    assert_eq!(plan.missing_parts(), [0, 1]);
}

#[tokio::test]
async fn a_part_whose_checkpoint_is_gone_is_made_again() {
    let (store, model) = (Store::memory(), model_folder());
    let execution = Execution::new(&store, Plan::make(&store, score_request("r")).await.unwrap());
    let digest = import_checkpoint(&store, model.path()).await.unwrap();
    for part in 0..N_PARTS {
        write_score(&execution, part, &rewards(part)).await.unwrap();
        if part == 0 {
            let artifact = Artifact::Checkpoint { digest: digest.clone() };
            execution.add_artifact(part, "checkpoint", artifact).unwrap();
        }
        execution.finish_part(part).await.unwrap();
    }
    assert!(Plan::make(&store, score_request("r")).await.unwrap().missing_parts().is_empty());
    store.delete(&Path::from(format!("checkpoints/{digest}/config.json"))).await.unwrap();
    assert_eq!(Plan::make(&store, score_request("r")).await.unwrap().missing_parts(), [0]);
    let error = execution.commit().await.unwrap_err();
    assert!(error.to_string().ends_with("is not complete, 1 of its 2 parts are missing: 0"), "{error}");
}

#[tokio::test]
async fn the_same_key_is_reused_and_another_is_refused_by_field() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for store in stores {
        let made = score(&store, model.path()).await.unwrap();
        let again = Plan::make(&store, score_request("r")).await.unwrap();
        assert_eq!(again.reused(), Some(&made));
        assert!(again.to_string().contains("\n  has    rewards (8 rows)\n  reuse  made by "), "{again}");
        let execution = Execution::new(&store, again);
        assert_eq!(execution.commit().await.unwrap(), made, "committing what is reused changes nothing");

        let there = "`score` of run `r`, step 3, attempt 0 was made from something else: ";
        let mut request = score_request("r");
        request.config = json!({"tasks_per_part": 4, "weighting": "trajectory"});
        let error = Plan::make(&store, request.clone()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{there}config `/tasks_per_part` is 4, was 2; config `/weighting` is \"trajectory\", was \
                 \"generation\""
            )
        );
        assert_eq!(
            error.hint().unwrap(),
            "restore what differs, or keep both: `--new-attempt` for one stage, `run --remake-from STEP` for all that follows"
        );
        request.new_attempt = true;
        let plan = Plan::make(&store, request).await.unwrap();
        assert_eq!((plan.id.attempt, plan.missing_parts()), (1, &[0, 1][..]));

        let mut request = score_request("r");
        request.fingerprint = Some("cpu avx2".to_owned());
        assert_eq!(
            message(Plan::make(&store, request).await),
            format!("{there}arithmetic fingerprint is `cpu avx2`, was `none`")
        );
        let mut request = score_request("r");
        request.query_texts = [("score/rewards.sql".to_owned(), "SELECT 2".to_owned())].into();
        assert_eq!(
            message(Plan::make(&store, request).await),
            format!("{there}query `score/rewards.sql` has another text")
        );
        let newer = StageSpec { version: 2, ..SCORE };
        let request = PlanRequest { spec: &newer, ..score_request("r") };
        assert_eq!(
            message(Plan::make(&store, request).await),
            format!("{there}stage version is `2`, was `1`")
        );
    }
}

#[tokio::test]
async fn changed_rows_upstream_are_named_with_both_origins() {
    let (store, model) = (Store::memory(), model_folder());
    let made = score(&store, model.path()).await.unwrap();
    advantage(&store, &made, false).await.unwrap();
    let mut request = score_request("r");
    request.new_attempt = true;
    request.config = json!({"tasks_per_part": 2, "weighting": "trajectory"});
    let execution = Execution::new(&store, Plan::make(&store, request).await.unwrap());
    for part in 0..N_PARTS {
        let mut rows = rewards(part);
        rows[0].n_items = 7;
        write_score(&execution, part, &rows).await.unwrap();
        let artifact = made.artifacts["checkpoint"].clone();
        execution.add_artifact(part, "checkpoint", artifact).unwrap();
        execution.finish_part(part).await.unwrap();
    }
    let newer = execution.commit().await.unwrap();
    assert_eq!(newer.id.attempt, 1);
    assert_eq!(store.latest("r", "score", 3).await.unwrap(), Some(newer.clone()));
    assert_eq!(store.attempts("r", "score", 3).await.unwrap(), [made.clone(), newer.clone()]);

    let error = advantage(&store, &newer, false).await.unwrap_err().to_string();
    let digest = |manifest: &envace_pipeline::Manifest| {
        manifest.table_digest(Table::Rewards).unwrap()[..12].to_owned()
    };
    assert_eq!(
        error,
        format!(
            "`advantage` of run `r`, step 3, attempt 0 was made from something else: input `rewards` is {} \
             (`score` of run `r`, step 3, attempt 1), was {} (`score` of run `r`, step 3, attempt 0)",
            digest(&newer),
            digest(&made)
        )
    );
    let again = advantage(&store, &newer, true).await.unwrap();
    assert_eq!(again.id.attempt, 1);
    let active = store.active_manifests(Some("r")).await.unwrap();
    assert_eq!(active, [again, newer]);
    assert_eq!(store.manifests(None).await.unwrap().len(), 4);
    assert_eq!(store.runs().await.unwrap(), ["r"]);
}

#[tokio::test]
async fn a_damaged_output_is_not_reused() {
    let (_folder, stores) = stores();
    let model = model_folder();
    for store in stores {
        let made = score(&store, model.path()).await.unwrap();
        let path = made.id.part_path(Table::Rewards, 1);
        let whole = store.get(&path).await.unwrap();
        let mut bent = whole.to_vec();
        bent[10] ^= 1;
        store.put(&path, bent).await.unwrap();
        assert_eq!(
            message(Plan::make(&store, score_request("r")).await),
            format!("file of an output has other bytes: {path}")
        );
        let mut quick = score_request("r");
        quick.check = PartCheck::Sizes;
        assert!(Plan::make(&store, quick.clone()).await.unwrap().reused().is_some());
        let error = StageOutput::new(&store, made.clone()).read::<RewardRow>(1).await.unwrap_err();
        assert_eq!(error.to_string(), format!("file of an output has other bytes: {path}"));

        store.put(&path, whole.slice(..20)).await.unwrap();
        assert_eq!(
            message(Plan::make(&store, quick).await),
            format!("file of an output has another size: {path}")
        );
        store.delete(&path).await.unwrap();
        assert_eq!(
            message(Plan::make(&store, score_request("r")).await),
            format!("file of an output is missing: {path}")
        );
        store.put(&path, whole).await.unwrap();
        let checkpoint = made.artifacts["checkpoint"].digest();
        store.delete(&Path::from(format!("checkpoints/{checkpoint}/model.safetensors"))).await.unwrap();
        assert_eq!(
            message(Plan::make(&store, score_request("r")).await),
            format!("checkpoint is missing or not whole: checkpoints/{checkpoint}")
        );
    }
}

#[tokio::test]
async fn requests_that_break_the_declaration_are_refused() {
    let (store, model) = (Store::memory(), model_folder());
    let made = score(&store, model.path()).await.unwrap();
    let table = |table| InputRef::table(&made, table).unwrap();
    let plan = async |inputs| {
        let request = PlanRequest::new(&ADVANTAGE, "r", 3, json!({}), inputs);
        message(Plan::make(&store, request).await)
    };
    assert_eq!(plan(vec![]).await, "stage `advantage` is not given its input: rewards");
    assert_eq!(
        plan(vec![table(Table::Rewards), table(Table::JudgeCalls)]).await,
        "stage `advantage` does not declare the input it is given: judge_calls"
    );
    assert_eq!(
        plan(vec![table(Table::Rewards), table(Table::Timings)]).await,
        "stage `advantage` cannot depend on what the clock says: timings"
    );
    assert_eq!(
        plan(vec![table(Table::Rewards), table(Table::Rewards)]).await,
        "stage `advantage` is given two inputs of one name: rewards"
    );
    let twice = vec![table(Table::Rewards), table(Table::Rewards).named("rewards_before")];
    let request = PlanRequest::new(&ADVANTAGE, "r", 3, json!({}), twice);
    assert!(Plan::make(&store, request).await.is_ok());

    assert_eq!(message(Plan::make(&store, score_request("../r")).await), "run name contains '/': \"../r\"");
    let mut request = score_request("r");
    request.n_parts = 0;
    assert_eq!(
        message(Plan::make(&store, request).await),
        "stage `score` has nothing to do, number of parts is: 0"
    );
    let mut request = score_request("r");
    request.query_texts = [("other.sql".to_owned(), String::new())].into();
    assert_eq!(
        message(Plan::make(&store, request).await),
        "`score` of run `r`, step 3, attempt 0 has no query `other.sql`"
    );
    assert_eq!(
        InputRef::table(&made, Table::Advantages).unwrap_err().to_string(),
        "`score` of run `r`, step 3, attempt 0 has no table `advantages`"
    );
    assert_eq!(
        InputRef::artifact("weights", &made, "weights").unwrap_err().to_string(),
        "`score` of run `r`, step 3, attempt 0 has no artifact `weights`"
    );
}

#[tokio::test]
async fn an_output_made_again_elsewhere_is_identical() {
    let (_folder, [memory, local]) = stores();
    let model = model_folder();
    let made = score(&memory, model.path()).await.unwrap();
    let run = async |rows: fn(u32) -> Vec<RewardRow>| {
        for (path, _) in local.list(&Path::default()).await.unwrap() {
            local.delete(&path).await.unwrap();
        }
        let plan = Plan::make(&local, PlanRequest::again(&SCORE, &made)).await.unwrap();
        assert_eq!(plan.key, made.key);
        let execution = Execution::new(&local, plan);
        for part in 0..N_PARTS {
            write_score(&execution, part, &rows(part)).await.unwrap();
            let digest = import_checkpoint(&local, model.path()).await.unwrap();
            let artifact = Artifact::Checkpoint { digest };
            execution.add_artifact(part, "checkpoint", artifact).unwrap();
            execution.finish_part(part).await.unwrap();
        }
        compare(&made, &execution.commit().await.unwrap())
    };
    let same = run(rewards).await;
    assert!(same.is_identical());
    assert_eq!(same.to_string(), "identical: 4 parts, 1 artifacts");
    let other = run(|part| rewards(part).into_iter().skip(part as usize).collect()).await;
    assert_eq!(other.differences.len(), 1);
    assert!(other.to_string().contains("\n  part 1 of `rewards` has other rows: "), "{other}");
}

#[tokio::test]
async fn a_query_is_declared_once() {
    let queries: Vec<Query> = SCORE.queries.to_vec();
    let plan = Plan::make(&Store::memory(), score_request("r")).await.unwrap();
    // blake3("SELECT 1"), as any other implementation gives it.
    assert_eq!(plan.key_parts.queries.len(), queries.len());
    assert_eq!(
        plan.key_parts.queries["score/rewards.sql"],
        blake3::hash(queries[0].text.as_bytes()).to_hex().to_string()
    );
}
