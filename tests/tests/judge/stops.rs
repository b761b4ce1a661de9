//! What stops the stage, and how it goes on afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use envace_jobs::drive::Stage;
use envace_jobs::score::judge::Refresh;
use envace_schemas::tables::JudgeCallRow;
use envace_tests::judge_server::{JudgeServer, Reply};
use envace_tests::judged_run::item;
use serde_json::json;

use super::{KEY, KEY_VARIABLE, again, config, files, part, refusal, run_of, scored};

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_ungraded_for_a_passing_reason_can_be_asked_again() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let server = JudgeServer::start(move |_, _| match well.load(SeqCst) {
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
    is_well.store(true, SeqCst);
    let n_seen = server.n_seen();
    assert!(refusal(Stage::Score.run(&ctx, 0).await.unwrap_err()).contains("--refresh failed"));
    assert_eq!(server.n_seen(), n_seen);
    let done = scored(&again(&ctx, Refresh::Failed)).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!((server.n_seen(), done.calls.len()), (n_seen + 4, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stops_the_stage_keeps_what_was_answered() {
    // The first ten are answered, then the key is refused, with the key in the message; later all is well.
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let count = AtomicUsize::new(0);
    let server = JudgeServer::start(move |seen, _| {
        let n = count.fetch_add(1, SeqCst);
        if n < 10 || well.load(SeqCst) {
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
    is_well.store(true, SeqCst);
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
async fn an_outage_is_no_answer() {
    let is_well = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&is_well);
    let server = JudgeServer::start(move |_, _| match well.load(SeqCst) {
        true => Reply::Answer(true),
        false => Reply::Drop,
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    // Calls use up their tries long before the endpoint is taken to be down.
    let limits = "down_after_s = 0.05\nconcurrency = 4";
    let config = config(&[&server.url], "", limits).replace("retries = 2", "retries = 0");
    let ctx = run_of(dir.path(), &config, vec![part("a", &[vec![item("P", 1.0, json!({}))]], 400)]).await;
    let error = refusal(Stage::Score.run(&ctx, 0).await.unwrap_err());
    assert!(error.contains("no answer for") && error.contains("0 of 400"), "{error}");
    is_well.store(true, SeqCst);
    let done = scored(&ctx).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!(done.calls.len(), 400, "what failed in the outage is no try");
}

/// The calls of ten questions that no answer could be read of, then asked again until `stop_at` of them were answered,
/// then by the same command until the end.
async fn refreshed(stop_at: usize) -> Vec<JudgeCallRow> {
    let n_readable = Arc::new(AtomicUsize::new(0));
    let readable = Arc::clone(&n_readable);
    let server = JudgeServer::start(move |_, _| {
        let left = readable.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(1) => Reply::Http(401, None, String::new()),
            Ok(_) => Reply::Answer(true),
            Err(_) => Reply::Text("maybe".to_owned()),
        }
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(&[&server.url], "readable_tries = 1", "concurrency = 1");
    let ctx = run_of(dir.path(), &config, vec![part("a", &[vec![item("P", 1.0, json!({}))]], 10)]).await;
    assert!(scored(&ctx).await.verdicts.iter().all(|verdict| verdict.is_passed.is_none()));
    let refresh = again(&ctx, Refresh::Failed);
    if stop_at < 10 {
        n_readable.store(stop_at + 1, SeqCst);
        assert!(refusal(Stage::Score.run(&refresh, 0).await.unwrap_err()).contains("HTTP 401"));
    }
    n_readable.store(100, SeqCst);
    let n_seen = server.n_seen();
    let done = scored(&refresh).await;
    assert!(done.verdicts.iter().all(|verdict| verdict.is_passed == Some(true)));
    assert_eq!(server.n_seen() - n_seen, 10 - stop_at % 10, "what was answered is not asked again");
    done.calls
}

#[tokio::test(flavor = "multi_thread")]
async fn asking_again_can_be_stopped_and_resumed() {
    let straight = refreshed(10).await;
    assert_eq!(straight.iter().map(|call| call.try_index).collect::<Vec<_>>(), [0, 1].repeat(10));
    assert_eq!(refreshed(4).await, straight);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_note_is_damaged_is_asked_for_again() {
    let count = AtomicUsize::new(0);
    let server = JudgeServer::start(move |_, _| match count.fetch_add(1, SeqCst) {
        5 => Reply::Http(403, None, String::new()),
        _ => Reply::Answer(true),
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(&[&server.url], "", "concurrency = 1");
    let ctx = run_of(dir.path(), &config, vec![part("a", &[vec![item("P", 1.0, json!({}))]], 8)]).await;
    assert!(refusal(Stage::Score.run(&ctx, 0).await.unwrap_err()).contains("5 of 8"));
    let mut notes = files(dir.path());
    notes.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    let [note] = notes.as_slice() else { panic!("{notes:?}") };
    let text = fs_err::read_to_string(note).unwrap();
    fs_err::write(note, &text[..text.len() - 20]).unwrap();
    assert_eq!(scored(&ctx).await.verdicts.len(), 8);
    assert_eq!(server.n_seen(), 6 + 3 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_server_repeats_is_not_kept() {
    let server = JudgeServer::start(|seen, _| {
        let key = seen.authorization.clone().unwrap_or_default();
        Reply::Text(format!("{{\"answer\": true, \"for\": {key:?}}}"))
    })
    .await
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let parts = vec![part("a", &[vec![item("P", 1.0, json!({}))]], 1)];
    let done = scored(&run_of(dir.path(), &config(&[&server.url], "", ""), parts).await).await;
    let response = done.calls[0].response.clone().unwrap();
    assert!(response.contains("Bearer [API key]") && !response.contains(KEY), "{response}");
}
