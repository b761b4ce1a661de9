//! What a configuration chooses: form of the answer, servers, gate, votes, checklists, prompt.

use std::collections::BTreeSet;
use std::time::Duration;

use envace_jobs::config::{Ask, Config};
use envace_jobs::drive::Stage;
use envace_jobs::score::judge::Refresh;
use envace_tests::judge_server::{JudgeServer, Reply};
use envace_tests::judged_run::item;
use serde_json::json;

use super::{again, config, part, point, refusal, run_of, scored};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_schemas_is_asked_in_another_way() {
    let server = JudgeServer::start(|seen, _| match seen.body["response_format"]["type"].as_str() {
        Some(kind) => Reply::Http(400, None, format!("response_format {kind} is not supported")),
        None => Reply::Text("<think>it is</think>\n```json\n{\"answer\": true}\n```".to_owned()),
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let parts = || vec![part("a", &[vec![item("P", 1.0, json!({}))]], 5)];
    let ctx = run_of(dir.path(), &config(&[&server.url], "", "concurrency = 1"), parts()).await;
    let done = scored(&ctx).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!(server.n_seen(), 5 + 2, "each form is refused once");
    // Told to use schemas it does not turn to anything else.
    let dir = tempfile::tempdir().unwrap();
    let strict = config(&[&server.url], "structured_output = \"json_schema\"", "");
    let done = scored(&run_of(dir.path(), &strict, parts()).await).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed.is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_servers_share_the_work_and_one_that_is_down_is_avoided() {
    let well =
        || JudgeServer::start(|_, _| Reply::After(Duration::from_millis(5), Box::new(Reply::Answer(true))));
    let (one, two) = (well().await.unwrap(), well().await.unwrap());
    let down = JudgeServer::start(|_, _| Reply::Drop).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let urls = [down.url.as_str(), &one.url, &two.url];
    let parts = vec![part("a", &[vec![item("P", 1.0, json!({}))]], 60)];
    let done = scored(&run_of(dir.path(), &config(&urls, "", "concurrency = 6"), parts).await).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!(one.n_seen() + two.n_seen(), 60);
    assert!(one.n_seen() >= 15 && two.n_seen() >= 15, "{} {}", one.n_seen(), two.n_seen());
    assert!(down.n_seen() <= 6, "{}", down.n_seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_beyond_the_gate_is_not_asked() {
    let server = JudgeServer::start(|seen, _| Reply::Answer(point(seen) != "stop")).await.unwrap();
    let required = |id: &str| item(id, 0.5, json!({"required_for_next_turn": true}));
    let checklist =
        |id: &str| vec![vec![required(id), item("P", 0.5, json!({}))], vec![item("Q", 1.0, json!({}))]];
    let parts = vec![part("goes", &checklist("go"), 1), part("stops", &checklist("stop"), 1)];
    let dir = tempfile::tempdir().unwrap();
    let done = scored(&run_of(dir.path(), &config(&[&server.url], "", ""), parts).await).await;
    assert_eq!(server.n_seen(), 3 + 2);
    let of = |task: &str| {
        let rows = done.rewards.iter().filter(move |row| row.task_id == task && row.role == "actor");
        rows.map(|row| (row.reward.unwrap().to_string(), row.n_kept_user_turns)).collect::<Vec<_>>()
    };
    // (1 + 1) / 2 and (0.5 + 0) / 2.
    assert_eq!(of("goes"), [("1".to_owned(), 2)]);
    assert_eq!(of("stops"), [("0.25".to_owned(), 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_and_turns_count_as_they_are_declared() {
    // By vote: yes, no, yes; an item called "split" gets yes, no, unreadable.
    let server = JudgeServer::start(|seen, nth| {
        let is_final = seen.prompt().contains("saw a thing in user turn 0");
        match (point(seen), nth % 3) {
            ("early", _) => Reply::Answer(!is_final),
            (_, 1) => Reply::Answer(false),
            ("split", 2) => Reply::Text("maybe".to_owned()),
            _ => Reply::Answer(true),
        }
    })
    .await
    .unwrap();
    let items = |names: &[&str]| {
        let weight = 1.0 / names.len() as f64;
        vec![part("a", &[names.iter().map(|name| item(name, weight, json!({}))).collect()], 1)]
    };
    let dir = tempfile::tempdir().unwrap();
    let votes = config(&[&server.url], "votes = 3\ntemperature = 0.6\nreadable_tries = 1", "concurrency = 1");
    let done = scored(&run_of(dir.path(), &votes, items(&["most", "split"])).await).await;
    let verdicts: Vec<_> = done.verdicts.iter().map(|verdict| verdict.is_passed).collect();
    assert_eq!(verdicts, [Some(true), None]);
    assert_eq!(done.calls.iter().map(|call| call.vote).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    let hashes: BTreeSet<&String> = done.calls.iter().map(|call| &call.request_hash).collect();
    assert_eq!(hashes.len(), 6, "every vote is a question of its own");

    // What holds only before the end counts if every turn is asked, and does not by default.
    for (ask, passed, n_calls) in [("final_state", false, 1), ("per_turn", true, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&[&server.url], &format!("ask = \"{ask}\""), "");
        let done = scored(&run_of(dir.path(), &config, items(&["early"])).await).await;
        assert_eq!(done.verdicts[0].is_passed, Some(passed), "{ask}");
        assert_eq!(done.calls.len(), n_calls, "{ask}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rehearsal_role_can_have_a_checklist_of_its_own() {
    let server = JudgeServer::start(|seen, _| {
        let is_own = seen.prompt().contains("stood in for the tools");
        assert!(!is_own || seen.prompt().contains("a recorded thing"), "the records are shown");
        // Of its three items, with weights 0.3, 0.4 and 0.3, the one about the records fails.
        Reply::Answer(!seen.prompt().contains("agree with the recorded calls?"))
    })
    .await
    .unwrap();
    let parts = || vec![part("a", &[vec![item("P", 1.0, json!({}))]], 1)];
    let dir = tempfile::tempdir().unwrap();
    let text = config(&[&server.url], "rehearsal = true", "")
        .replace("[score]\n", "[score]\nrehearsal_checklist_weight = \"0.5\"\n");
    let done = scored(&run_of(dir.path(), &text, parts()).await).await;
    let rewards: Vec<_> = done
        .rewards
        .iter()
        .map(|row| (row.role.as_str(), row.reward.unwrap().to_string(), row.n_items))
        .collect();
    // 0.5 * 1 + 0.5 * 0.6.
    assert_eq!(rewards, [("actor", "1".to_owned(), 1), ("rehearsal", "0.8".to_owned(), 1)]);
    assert_eq!(done.verdicts.iter().filter(|verdict| verdict.grader == "rehearsal_checklist").count(), 3);
    // Off by default, and then nothing is asked about it.
    let n_seen = server.n_seen();
    let dir = tempfile::tempdir().unwrap();
    let done = scored(&run_of(dir.path(), &config(&[&server.url], "", ""), parts()).await).await;
    assert!(done.rewards.iter().all(|row| row.reward.unwrap().to_string() == "1"));
    assert_eq!(server.n_seen(), n_seen + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_counts_by_its_text() {
    let server =
        JudgeServer::start(|seen, _| Reply::Answer(seen.prompt().starts_with("mine"))).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let prompt = dir.path().join("prompt.jinja");
    fs_err::write(&prompt, "mine: {{ question }} {{ current }}").unwrap();
    let config = config(&[&server.url], &format!("prompt = {:?}", prompt.display().to_string()), "");
    let parts = vec![part("a", &[vec![item("P", 1.0, json!({}))]], 1)];
    let ctx = run_of(&dir.path().join("store"), &config, parts).await;
    assert_eq!(scored(&ctx).await.verdicts[0].is_passed, Some(true));
    // Another text is another question, and the output there is of another key.
    fs_err::write(&prompt, "yours: {{ question }} {{ current }}").unwrap();
    assert!(Stage::Score.run(&ctx, 0).await.is_err());
    assert_eq!(scored(&again(&ctx, Refresh::Nothing)).await.verdicts[0].is_passed, Some(false));
    fs_err::write(&prompt, "{{ qestion }}").unwrap();
    let error = refusal(Stage::Score.run(&again(&ctx, Refresh::Nothing), 0).await.unwrap_err());
    assert!(error.contains("judge's prompt"), "{error}");
    let unset = Config::parse("[score.judge]\nmodel = \"m\"\n", "test").unwrap();
    assert_eq!(unset.score.judge.unwrap().ask, Ask::FinalState);
    let paper = Config::parse("preset = \"paper\"\n[score.judge]\nmodel = \"m\"\n", "test").unwrap();
    assert_eq!(paper.score.judge.unwrap().ask, Ask::PerTurn, "the preset's judge is the reference's");
}
