//! Final replies.

use serde_json::{Value, json};

use super::{Transcript, one, shown, user, verdicts};

fn found(response: &str, reply: &str) -> Transcript {
    user().calls(&[("find", json!({}), response)]).reply(reply)
}

#[test]
fn texts_and_numbers() {
    let cases: &[(Value, &str, &str)] = &[
        (json!({"grader": "reply_contains", "texts": ["O7", "done"]}), "Order o7 is DONE.", "yes"),
        (
            json!({"grader": "reply_contains", "texts": ["O7", "done"]}),
            "Order o7.",
            "no: the reply does not hold \"done\"",
        ),
        (json!({"grader": "reply_equals", "text": "Yes."}), " Yes.\n", "yes"),
        (json!({"grader": "reply_equals", "text": "Yes."}), "yes.", "no: the reply is \"yes.\""),
        (
            json!({"grader": "reply_number", "value": 1234.5, "tolerance": 0.0}),
            "It is 1,234.50 euros.",
            "yes",
        ),
        (json!({"grader": "reply_number", "value": 3, "tolerance": 0.5}), "About 3.5.", "yes"),
        (
            json!({"grader": "reply_number", "value": 3, "tolerance": 0.4}),
            "About 3.5.",
            "no: the reply holds no number within 0.4 of 3",
        ),
    ];
    for (grader, reply, expected) in cases {
        assert_eq!(one(grader, &user().reply(reply)), *expected, "{grader} {reply}");
    }
    for (grader, _, _) in cases {
        let unfinished = user().calls(&[("find", json!({}), "{}")]);
        assert_eq!(one(grader, &unfinished), "no: there is no final reply", "{grader}");
    }
}

#[test]
fn a_reply_after_a_malformed_call_counts_but_the_malformed_one_does_not() {
    let grader = json!({"grader": "reply_contains", "texts": ["oops"]});
    assert_eq!(one(&grader, &user().malformed("X")), "no: there is no final reply");
    assert_eq!(one(&grader, &user().malformed("X").reply("oops")), "yes");
}

#[test]
fn consistency_with_what_was_seen() {
    let graders = |path: &str| {
        json!([
            {"item": "a", "user_turn": 0, "weight": 1, "grader": "calls", "order": "subset", "calls": [{"name": "find"}]},
            {"item": "b", "user_turn": 0, "weight": 0, "grader": "reply_consistent", "call": 0, "path": path},
        ])
    };
    let cases: &[(&str, Transcript, &str)] = &[
        ("/day", found(r#"{"day":"Friday"}"#, "On friday."), "yes"),
        (
            "/day",
            found(r#"{"day":"Friday"}"#, "On Monday."),
            "no: the reply does not hold \"Friday\", which the response says",
        ),
        ("/n", found(r#"{"n":1200}"#, "There are 1,200."), "yes"),
        (
            "/n",
            found(r#"{"n":12}"#, "There are 1,200."),
            "no: the reply does not hold 12, which the response says",
        ),
        ("/all", found(r#"{"all":["x",2]}"#, "x and 2"), "yes"),
        (
            "/all",
            found(r#"{"all":["x",2]}"#, "x and 3"),
            "no: the reply does not hold [\"x\",2], which the response says",
        ),
        ("/ok", found(r#"{"ok":true}"#, "true"), "null: a reply cannot be compared with true"),
        ("/day", found(r#"{"error":1}"#, "Sorry."), "null: the response of `find` has nothing at `/day`"),
        ("/day", found("busy", "Sorry."), "null: the response of `find` is no JSON"),
        ("/day", user().reply("On Friday."), "no: expected call 0 of user turn 0 was not made"),
        // Both answers were seen; the reply keeps to one of them.
        (
            "/day",
            user()
                .calls(&[("find", json!({}), r#"{"day":"Friday"}"#)])
                .calls(&[("find", json!({}), r#"{"day":"Monday"}"#)])
                .reply("On Monday."),
            "yes",
        ),
    ];
    for (path, transcript, expected) in cases {
        assert_eq!(shown(&verdicts(&graders(path), transcript)[1]), *expected, "{path}");
    }
}

#[test]
fn a_reply_to_the_case_that_applies() {
    let graders = json!([
        {"item": "a", "user_turn": 0, "weight": 1, "grader": "branch", "order": "exact", "cases": [
            {"when": [{"call": 0, "path": "/open", "is": true}], "calls": [{"name": "find"}]},
            {"when": [{"call": 0, "path": "/open", "is": false}], "calls": [{"name": "find"}]}]},
        {"item": "b", "user_turn": 0, "weight": 0, "grader": "reply_branch", "replies": [
            {"texts": ["still open"], "values": [{"call": 0, "path": "/id"}]}, {"texts": ["closed"]}]},
    ]);
    let cases: &[(Transcript, &str)] = &[
        (found(r#"{"open":true,"id":"A"}"#, "A is still open."), "yes"),
        (
            found(r#"{"open":true,"id":"A"}"#, "B is still open."),
            "no: the reply does not hold \"A\", which the response says",
        ),
        (found(r#"{"open":true,"id":"A"}"#, "A is closed."), "no: the reply does not hold \"still open\""),
        (found(r#"{"open":true}"#, "It is still open."), "null: the response of `find` has nothing at `/id`"),
        (found(r#"{"open":true}"#, "It is shut."), "no: the reply does not hold \"still open\""),
        (found(r#"{"open":false}"#, "It is closed."), "yes"),
        (
            found(r#"{"error":1}"#, "It is closed."),
            "null: no case applies: `/open` in the response of `find` is missing",
        ),
        (user().reply("It is closed."), "no: call of `find` was not made"),
    ];
    for (transcript, expected) in cases {
        let verdicts = verdicts(&graders, transcript);
        assert_eq!(verdicts[1].grader, "reply_branch");
        assert_eq!(shown(&verdicts[1]), *expected);
    }
}
