//! Calls that fail, and what becomes of their verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use envace_jobs::context::StageOutcome;
use envace_jobs::drive::Stage;
use envace_jobs::rerun::rerun;
use envace_jobs::score::judge::{self, Refresh};
use envace_schemas::tables::JudgeCallRow;
use envace_tests::judge_server::{JudgeServer, Reply, Seen};
use envace_tests::judged_run::item;
use serde_json::{Value, json};

use super::{KEY, again, config, files, part, point, run_of, scored};

/// What a server that is asked about the item `name` does, at each time it is asked.
fn by_name(name: &str, nth: usize) -> Reply {
    let slow = || Reply::After(Duration::from_secs(20), Box::new(Reply::Answer(true)));
    let refuse = |status: u16| Reply::Http(status, None, "no".to_owned());
    match (name, nth) {
        ("no", _) => Reply::Answer(false),
        ("late", _) => slow(),
        ("dropped", _) => Reply::Drop,
        ("half", _) => Reply::Half,
        ("fault", _) => refuse(500),
        ("dropped-once", 0) => Reply::Drop,
        ("half-once", 0) => Reply::Half,
        ("fault-twice", 0 | 1) => refuse(503),
        ("busy-once", 0) => Reply::Http(429, Some(("retry-after", "1".to_owned())), String::new()),
        ("refused", _) => refuse(400),
        ("html", _) => Reply::Http(200, None, "<html>".to_owned()),
        ("number", _) => Reply::Text("{\"answer\": 7}".to_owned()),
        ("cut", _) => Reply::Text("{\"answer\": tr".to_owned()),
        ("cut-once", 0) => Reply::Text("{\"answer\"".to_owned()),
        _ => Reply::Answer(true),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_ends_as_it_should_and_a_second_run_asks_nothing() {
    let server = JudgeServer::start(|seen, nth| by_name(point(seen), nth)).await.unwrap();
    // Item, verdict, what the reason says, requests, rows of calls: 1 + `retries` where it can pass, `readable_tries`
    // where an answer cannot be read.
    let cases: &[(&str, Option<bool>, &str, usize, usize)] = &[
        ("busy-once", Some(true), "", 2, 1),
        ("cut", None, "no JSON", 2, 2),
        ("cut-once", Some(true), "", 2, 2),
        ("dropped", None, "error sending request", 3, 1),
        ("dropped-once", Some(true), "", 2, 1),
        ("fault", None, "HTTP 500", 3, 1),
        ("fault-twice", Some(true), "", 3, 1),
        ("half", None, "error", 3, 1),
        ("half-once", Some(true), "", 2, 1),
        ("html", None, "no chat completion", 2, 2),
        ("late", None, "timed out", 3, 1),
        ("no", Some(false), "the judge says no", 1, 1),
        ("number", None, "is 7", 2, 2),
        ("refused", None, "HTTP 400", 1, 1),
        ("yes", Some(true), "", 1, 1),
    ];
    let items = cases.iter().map(|case| item(case.0, 1.0 / cases.len() as f64, json!({}))).collect();
    let dir = tempfile::tempdir().unwrap();
    let limits = "call_timeout_s = 0.5";
    let config = config(&[&server.url], "", "").replace("call_timeout_s = 5.0", limits);
    let ctx = run_of(dir.path(), &config, vec![part("t", &[items], 1)]).await;
    let first = scored(&ctx).await;
    assert_eq!(first.verdicts.len(), cases.len());
    let seen = server.seen();
    for ((name, passed, reason, n_requests, n_rows), verdict) in cases.iter().zip(&first.verdicts) {
        assert_eq!((verdict.item.as_str(), verdict.is_passed), (*name, *passed), "{verdict:?}");
        let why = verdict.reason.clone().unwrap_or_default();
        assert!(why.contains(reason) && why.is_empty() == reason.is_empty(), "{name}: {why}");
        assert_eq!(seen.iter().filter(|seen| point(seen) == *name).count(), *n_requests, "{name}");
        let calls: Vec<&JudgeCallRow> = first.calls.iter().filter(|call| call.item == *name).collect();
        assert_eq!(calls.len(), *n_rows, "{name}");
        let last = calls.last().unwrap();
        assert_eq!(last.is_passed, *passed, "{name}");
        assert_eq!(last.error.is_none(), passed.is_some(), "{name}");
        assert_eq!(verdict.request_hash.as_ref(), Some(&last.request_hash));
        let request: Value = serde_json::from_str(&last.request).unwrap();
        assert_eq!(request["response_format"]["json_schema"]["strict"], true);
        assert_eq!(
            last.n_request_tokens.is_some(),
            last.response.is_some() && !why.contains("HTTP") && *name != "html"
        );
    }
    let busy: Vec<&Seen> = seen.iter().filter(|seen| point(seen) == "busy-once").collect();
    assert!(busy[1].at - busy[0].at >= Duration::from_secs(1), "Retry-After is kept");
    // An ungraded item leaves the trajectory without a reward, for both roles; it is not 0.
    let reasons: Vec<_> =
        first.rewards.iter().map(|row| (row.reward, row.ungraded_reason.as_deref())).collect();
    assert_eq!(reasons, [(None, Some("ungraded_item")), (None, Some("ungraded_item"))]);

    // The key went with every request, and is nowhere in the store.
    let bearer = format!("Bearer {KEY}");
    assert!(seen.iter().all(|seen| seen.authorization.as_deref() == Some(bearer.as_str())));
    assert_eq!(files_with(dir.path(), KEY), Vec::<PathBuf>::new());

    // What is there is reused; another attempt replays it, also the failures, and says the same.
    let n_seen = server.n_seen();
    assert!(matches!(Stage::Score.run(&ctx, 0).await.unwrap(), StageOutcome::Reused(_)));
    let replayed = scored(&again(&ctx, Refresh::Nothing)).await;
    assert_eq!(server.n_seen(), n_seen);
    assert_eq!((&replayed.verdicts, &replayed.calls), (&first.verdicts, &first.calls));
    assert!(rerun(&ctx, Stage::Score, 0).await.unwrap().is_identical());
    let estimate = judge::estimate(&again(&ctx, Refresh::Nothing), 0).await.unwrap().unwrap();
    assert_eq!((estimate.n_questions, estimate.n_recorded), (cases.len() as u64, cases.len() as u64));

    // Asking the failed ones again asks those alone; their tries go on where they were.
    let n_failed = cases.iter().filter(|case| case.1.is_none()).count() as u64;
    let estimate = judge::estimate(&again(&ctx, Refresh::Failed), 0).await.unwrap().unwrap();
    assert_eq!(estimate.n_questions - estimate.n_recorded, n_failed);
    let refreshed = scored(&again(&ctx, Refresh::Failed)).await;
    let asked: BTreeSet<String> = server.seen()[n_seen..].iter().map(|seen| point(seen).to_owned()).collect();
    let failed: BTreeSet<String> =
        cases.iter().filter(|case| case.1.is_none()).map(|case| case.0.to_owned()).collect();
    assert_eq!(asked, failed);
    // What they were answered before stays beside it.
    for name in cases.iter().map(|case| case.0) {
        let tries = |calls: &[JudgeCallRow]| {
            calls.iter().filter(|call| call.item == name).map(|call| call.try_index).collect::<Vec<_>>()
        };
        let n_before = tries(&first.calls).len() as i32;
        let n_after = n_before * if failed.contains(name) { 2 } else { 1 };
        assert_eq!(tries(&refreshed.calls), (0..n_after).collect::<Vec<_>>(), "{name}");
    }
    // Asking all again is a table of its own, whose tries come after.
    let all = scored(&again(&ctx, Refresh::All)).await;
    let firsts =
        |name: &str| all.calls.iter().filter(|call| call.item == name).map(|call| call.try_index).min();
    assert_eq!((firsts("yes"), firsts("number")), (Some(1), Some(4)));
}

/// Files below a folder that hold a text.
fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let holds = |path: &PathBuf| {
        let bytes = fs_err::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    files(folder).into_iter().filter(holds).collect()
}

/// What is true of a point of a trajectory in the test of many, and how its question fares: never answered, at first
/// not, or at once.
fn truth(prompt: &str) -> (bool, u8) {
    let digest =
        prompt.bytes().fold(17_u64, |sum, byte| sum.wrapping_mul(1_099_511_628_211) ^ u64::from(byte));
    let fault = match digest / 2 % 20 {
        0 => 2,
        1 => 1,
        _ => 0,
    };
    (digest % 2 == 0, fault)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_questions_with_faults_none_is_lost_and_no_verdict_invented() {
    let server = JudgeServer::start(|seen, nth| {
        let (answer, fault) = truth(seen.prompt());
        let pick = seen.prompt().len() % 5;
        match (fault, nth) {
            (2, _) | (1, 0) => match pick {
                0 => Reply::Http(500, None, "{}".to_owned()),
                1 => Reply::Drop,
                2 => Reply::Half,
                3 => Reply::Http(429, Some(("retry-after", "0".to_owned())), String::new()),
                _ => Reply::Text("{\"answer\": 3}".to_owned()),
            },
            _ => Reply::Answer(answer),
        }
    })
    .await
    .unwrap();
    let items: Vec<Value> = (0..6).map(|index| item(&format!("P{index}"), 1.0 / 6.0, json!({}))).collect();
    let parts = (0..10).map(|index| part(&format!("t{index}"), std::slice::from_ref(&items), 200)).collect();
    let dir = tempfile::tempdir().unwrap();
    let ctx = run_of(dir.path(), &config(&[&server.url], "", "concurrency = 64"), parts).await;
    let first = scored(&ctx).await;
    assert_eq!(first.verdicts.len(), 2_000 * 6);
    let prompts: BTreeMap<&str, String> = first
        .calls
        .iter()
        .map(|call| {
            let request: Value = serde_json::from_str(&call.request).unwrap();
            let prompt = request["messages"][0]["content"].as_str().unwrap().to_owned();
            (call.request_hash.as_str(), prompt)
        })
        .collect();
    assert_eq!(prompts.len(), 2_000 * 6, "no two trajectories are alike");
    let (mut n_ungraded, mut n_passed) = (0, 0);
    for verdict in &first.verdicts {
        let (answer, fault) = truth(&prompts[verdict.request_hash.as_deref().unwrap()]);
        assert_eq!(verdict.is_passed, (fault < 2).then_some(answer), "{verdict:?}");
        assert_eq!(verdict.reason.is_none(), verdict.is_passed == Some(true));
        n_ungraded += usize::from(verdict.is_passed.is_none());
        n_passed += usize::from(verdict.is_passed == Some(true));
    }
    // About 5 % are never answered, and about half of the others pass.
    assert!(
        (400..800).contains(&n_ungraded) && (5_000..6_500).contains(&n_passed),
        "{n_ungraded} {n_passed}"
    );
    let mut graded: BTreeMap<(&str, i32), bool> = BTreeMap::new();
    for verdict in &first.verdicts {
        *graded.entry((&verdict.task_id, verdict.sample)).or_insert(true) &= verdict.is_passed.is_some();
    }
    for reward in &first.rewards {
        assert_eq!(reward.reward.is_some(), graded[&(reward.task_id.as_str(), reward.sample)], "{reward:?}");
    }
    let n_seen = server.n_seen();
    scored(&ctx).await;
    let replayed = scored(&again(&ctx, Refresh::Nothing)).await;
    assert_eq!(server.n_seen(), n_seen, "a second run asks nothing");
    assert_eq!(replayed.verdicts, first.verdicts);
    assert_eq!(replayed.calls, first.calls);
}
