//! The judge against a server that fails in every way a server can.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use envace_jobs::config::{Ask, Config};
use envace_jobs::context::{RunContext, StageOutcome};
use envace_jobs::drive::Stage;
use envace_jobs::error::JobError;
use envace_jobs::rerun::rerun;
use envace_jobs::score::judge::{self, Refresh};
use envace_pipeline::{StageOutput, Store};
use envace_schemas::tables::{JudgeCallRow, RewardRow, VerdictRow};
use envace_tests::judge_server::{JudgeServer, Reply, Seen};
use envace_tests::judged_run::{Part, RUN, item, stored, task, trajectory};
use serde_json::{Value, json};

/// Set by cargo for every test; its value, a sentence, stands in for an API key.
const KEY_VARIABLE: &str = "CARGO_PKG_DESCRIPTION";
const KEY: &str = env!("CARGO_PKG_DESCRIPTION");

fn config(urls: &[&str], judge: &str, limits: &str) -> String {
    let urls = json!(urls);
    format!(
        "[score]\nmax_ungraded_share = 1.0\n[score.judge]\nmodel = \"judge\"\n{judge}\n[execution.judge]\nurls = {urls}\n\
         api_key_env = \"{KEY_VARIABLE}\"\nretry_delay_s = 0.01\nretries = 2\ncall_timeout_s = 5.0\n{limits}\n"
    )
}

fn part(task_id: &str, checklist: &[Vec<Value>], n_samples: i32) -> Part {
    let task = task(task_id, checklist);
    let n_user_turns = checklist.len() as i32;
    let trajectories = (0..n_samples).map(|sample| trajectory(&task, sample, n_user_turns)).collect();
    (task, trajectories)
}

async fn run_of(dir: &Path, config: &str, parts: Vec<Part>) -> RunContext {
    let store = Store::open(&dir.display().to_string()).unwrap();
    stored(store, config, parts).await.unwrap()
}

struct Scored {
    verdicts: Vec<VerdictRow>,
    calls: Vec<JudgeCallRow>,
    rewards: Vec<RewardRow>,
}

async fn scored(ctx: &RunContext) -> Scored {
    Stage::Score.run(ctx, 0).await.unwrap();
    let output = StageOutput::latest(&ctx.store, RUN, "score", 0).await.unwrap();
    Scored {
        verdicts: output.read_all().await.unwrap(),
        calls: output.read_all().await.unwrap(),
        rewards: output.read_all().await.unwrap(),
    }
}

fn again(ctx: &RunContext, refresh: Refresh) -> RunContext {
    RunContext { new_attempt: true, refresh, ..ctx.clone() }
}

/// The name of the item in a prompt.
fn point(seen: &Seen) -> &str {
    let after = seen.prompt().split_once("Is point ").map_or("", |(_, after)| after);
    after.split_once(" met?").map_or("", |(point, _)| point)
}

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
    assert_eq!(files_with(dir.path(), KEY), Vec::<String>::new());

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

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_ungraded_for_a_passing_reason_can_be_asked_again() {
    let is_well = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let well = std::sync::Arc::clone(&is_well);
    let server = JudgeServer::start(move |_, _| match well.load(std::sync::atomic::Ordering::SeqCst) {
        true => Reply::Answer(true),
        false => Reply::Http(500, None, "{}".to_owned()),
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config =
        config(&[&server.url], "", "").replace("max_ungraded_share = 1.0", "max_ungraded_share = 0.5");
    let ctx = run_of(dir.path(), &config, vec![part("a", &[vec![item("P", 1.0, json!({}))]], 4)]).await;
    let error = refusal(Stage::Score.run(&ctx, 0).await.unwrap_err());
    assert!(error.contains("4 of 4 trajectories are ungraded"), "{error}");
    // As it stands, the failures are replayed, and refused again without a call.
    is_well.store(true, std::sync::atomic::Ordering::SeqCst);
    let n_seen = server.n_seen();
    assert!(refusal(Stage::Score.run(&ctx, 0).await.unwrap_err()).contains("--refresh failed"));
    assert_eq!(server.n_seen(), n_seen);
    let done = scored(&again(&ctx, Refresh::Failed)).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!((server.n_seen(), done.calls.len()), (n_seen + 4, 8));
}

/// Files below a folder that hold a text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else {
            let bytes = fs_err::read(&path).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
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

fn refusal(error: JobError) -> String {
    let hint = error.hint().unwrap_or_default().to_owned();
    format!("{error}; {hint}")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_the_stage_keeps_what_was_answered() {
    // The first ten are answered, then the key is refused, with the key in the message; later all is well.
    let is_well = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let well = std::sync::Arc::clone(&is_well);
    let count = std::sync::atomic::AtomicUsize::new(0);
    let server = JudgeServer::start(move |seen, _| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if n < 10 || well.load(std::sync::atomic::Ordering::SeqCst) {
            return Reply::Answer(true);
        }
        let key = seen.authorization.clone().unwrap_or_default();
        Reply::Http(401, None, format!("this is no key: {}", key.trim_start_matches("Bearer ")))
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let parts = vec![part("a", &[vec![item("P", 1.0, json!({}))]], 30)];
    let ctx = run_of(dir.path(), &config(&[&server.url], "", "concurrency = 1"), parts).await;
    let error = refusal(Stage::Score.run(&ctx, 0).await.unwrap_err());
    assert!(
        error.contains("HTTP 401") && error.contains("10 of 30") && error.contains(KEY_VARIABLE),
        "{error}"
    );
    assert!(error.contains("[API key]") && !error.contains(KEY), "{error}");
    assert_eq!(server.n_seen(), 11, "one refusal is enough");
    is_well.store(true, std::sync::atomic::Ordering::SeqCst);
    let done = scored(&ctx).await;
    assert_eq!(server.n_seen(), 11 + 20, "what was answered is not asked again");
    assert!(done.verdicts.len() == 30 && done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!(done.calls.len(), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_or_too_slow_stops_the_stage() {
    // A port that was free a moment ago.
    let down = JudgeServer::start(|_, _| Reply::Answer(true)).await.unwrap().url.clone();
    let dir = tempfile::tempdir().unwrap();
    let items = || vec![part("a", &[vec![item("P", 1.0, json!({}))]], 30)];
    let limits = "down_after_s = 0.05\nconcurrency = 4";
    let ctx =
        run_of(dir.path(), &config(&[&down], "", limits).replace("retries = 2", "retries = 100"), items())
            .await;
    let error = refusal(Stage::Score.run(&ctx, 0).await.unwrap_err());
    assert!(error.contains("no answer for") && error.contains("0 of 30") && error.contains(&down), "{error}");

    let slow =
        JudgeServer::start(|_, _| Reply::After(Duration::from_millis(50), Box::new(Reply::Answer(true))))
            .await
            .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let limits = "total_timeout_s = 0.4\nconcurrency = 2";
    let ctx = run_of(dir.path(), &config(&[&slow.url], "", limits), items()).await;
    let mut n_runs = 0;
    loop {
        n_runs += 1;
        match Stage::Score.run(&ctx, 0).await {
            Ok(_) => break,
            Err(error) => assert!(refusal(error).contains("longer than 0.4 s"), "{n_runs}"),
        }
        assert!(n_runs < 30, "each run gets further");
    }
    assert!(n_runs > 1);
    // Only what was under way when time was up is asked twice.
    assert!(slow.n_seen() <= 30 + 2 * n_runs, "{} in {n_runs}", slow.n_seen());
    assert_eq!(scored(&ctx).await.verdicts.len(), 30);
}

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
