//! Graders that users bring: programs and queries.

use envace_jobs::context::RunContext;
use envace_jobs::drive::Stage;
use envace_jobs::task::task_hash;
use envace_pipeline::{StageOutput, Store};
use envace_schemas::tables::{RewardRow, VerdictRow};
use envace_tests::judged_run::{Part, RUN, stored, task, trajectory};
use serde_json::json;

/// A task whose items a program decides, and two trajectories.
fn part() -> Part {
    let mut row = task("t", &[Vec::new(), Vec::new()]);
    row.checklist = None;
    row.graders = json!([
        {"item": "asked", "user_turn": 0, "weight": "0.5", "grader": "program", "program": "p", "input": {"want": 1}},
        {"item": "word", "user_turn": 0, "weight": "0.5", "grader": "reply_matches", "pattern": "saw (a|the) thing"},
        {"item": "last", "user_turn": 1, "weight": "1", "grader": "program", "program": "p", "input": {"want": 1}},
    ])
    .to_string();
    row.task_hash = task_hash(&row);
    let trajectories = (0..2).map(|sample| trajectory(&row, sample, 2)).collect();
    (row, trajectories)
}

/// Passes sample 1 and does not know of user turn 1 of sample 0, where it crashes.
const PROGRAM: &str = r#"
read -r line
case "$line" in
    *'"end_reason":"finished"'*'"message_index":7'*) ;;
    *) exit 9 ;;
esac
case "$line" in
    '{"task_id":"t","sample":0,"user_turn":1,'*) exit 7 ;;
    '{"task_id":"t","sample":0,'*'"input":{"want":1}'*) echo '{"is_passed": false, "reason": "asked"}' ;;
    *) echo '{"is_passed": true}' ;;
esac
"#;

const QUERY: &str = "SELECT task_id, sample, 0 AS user_turn, 'mine' AS grader, 'replies' AS item, \
     count(*) >= 2 AS is_passed, NULL AS reason, 1 AS weight, FALSE AS is_required, NULL AS request_hash \
     FROM messages WHERE speaker = 'assistant' GROUP BY task_id, sample";

async fn verdicts(ctx: &RunContext) -> Vec<(i32, i32, String, Option<bool>, String)> {
    Stage::Score.run(ctx, 0).await.unwrap();
    let output = StageOutput::latest(&ctx.store, RUN, "score", 0).await.unwrap();
    let rows: Vec<VerdictRow> = output.read_all().await.unwrap();
    rows.into_iter()
        .map(|row| (row.sample, row.user_turn, row.item, row.is_passed, row.reason.unwrap_or_default()))
        .collect()
}

#[tokio::test]
async fn programs_and_queries_grade_beside_what_tasks_declare() {
    let dir = tempfile::tempdir().unwrap();
    let (program, query) = (dir.path().join("grade.sh"), dir.path().join("mine.sql"));
    fs_err::write(&program, PROGRAM).unwrap();
    fs_err::write(&query, QUERY).unwrap();
    let config = format!(
        "[score]\nmax_ungraded_share = 1.0\nqueries = [{:?}]\n[[score.programs]]\nname = \"p\"\ncommand = [\"sh\", {:?}]\n",
        query.display().to_string(),
        program.display().to_string()
    );
    let store = Store::open(&dir.path().join("store").display().to_string()).unwrap();
    let ctx = stored(store, &config, vec![part()]).await.unwrap();
    let found = verdicts(&ctx).await;
    let expected = [
        (0, 0, "replies", Some(true), ""),
        (0, 0, "asked", Some(false), "asked"),
        (0, 0, "word", Some(true), ""),
        (0, 1, "last", None, "program `p` ended with exit status: 7: "),
        (1, 0, "replies", Some(true), ""),
        (1, 0, "asked", Some(true), ""),
        (1, 0, "word", Some(true), ""),
        (1, 1, "last", Some(true), ""),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(sample, turn, item, passed, reason)| {
            (*sample, *turn, (*item).to_owned(), *passed, (*reason).to_owned())
        })
        .collect();
    assert_eq!(found, expected);
    let output = StageOutput::latest(&ctx.store, RUN, "score", 0).await.unwrap();
    let rewards: Vec<RewardRow> = output.read_all().await.unwrap();
    let actor: Vec<_> = rewards.iter().filter(|row| row.role == "actor").collect();
    assert_eq!((actor[0].reward, actor[0].ungraded_reason.as_deref()), (None, Some("ungraded_item")));
    assert_eq!(actor[1].reward.unwrap().to_string(), "1");

    // A query counts by its text: another one is another key.
    fs_err::write(&query, QUERY.replace(">= 2", ">= 5")).unwrap();
    assert!(Stage::Score.run(&ctx, 0).await.unwrap_err().to_string().contains("score"));
    let again = RunContext { new_attempt: true, ..ctx.clone() };
    assert_eq!(verdicts(&again).await[0].3, Some(false));
    // What names a trajectory that is not there, or makes no verdicts, is refused.
    for (text, reason) in [
        (QUERY.replace("0 AS user_turn", "9 AS user_turn"), "user turn 9"),
        (QUERY.replace("1 AS weight, ", ""), "weight"),
    ] {
        fs_err::write(&query, text).unwrap();
        let error = Stage::Score.run(&again, 0).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_declared_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().display().to_string()).unwrap();
    let ctx = stored(store, "", vec![part()]).await.unwrap();
    let error = Stage::Score.run(&ctx, 0).await.unwrap_err();
    assert!(error.to_string().contains("names the program `p`"), "{error}");
}
