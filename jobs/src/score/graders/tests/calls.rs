//! Expected calls: order, arguments, references, branches, schemas.

use serde_json::{Value, json};

use super::{Transcript, one, one_unforeseen_fails, shown, user, verdicts};

fn get(id: &str) -> Value {
    json!({"name": "get", "arguments": {"id": {"is": id}}})
}

fn calls(order: &str, calls: &Value) -> Value {
    json!({"grader": "calls", "order": order, "calls": calls})
}

/// Calls of `get`, one a turn, each answered by `{}`.
fn made(ids: &[&str]) -> Transcript {
    ids.iter()
        .fold(user(), |transcript, id| transcript.calls(&[("get", json!({"id": id}), "{}")]))
        .reply("done")
}

#[test]
fn order() {
    let two = json!([get("a"), get("b")]);
    let cases: &[(&str, &[&str], &str)] = &[
        ("exact", &["a", "b"], "yes"),
        ("exact", &["b", "a"], "no: call 0: argument `id` is \"b\", expected \"a\""),
        ("exact", &["a"], "no: call of `get` was not made"),
        ("exact", &["a", "b", "c"], "no: call 2: `get` is not expected"),
        ("exact", &[], "no: call of `get` was not made"),
        ("any_order", &["a", "b"], "yes"),
        ("any_order", &["b", "a"], "yes"),
        ("any_order", &["b", "b"], "no: call 1: argument `id` is \"b\", expected \"a\""),
        ("any_order", &["b", "c", "a"], "no: call 1: `get` is not expected"),
        ("any_order", &["b"], "no: call of `get` was not made"),
        ("subset", &["c", "b", "c", "a"], "yes"),
        ("subset", &["c", "b"], "no: call 0: argument `id` is \"c\", expected \"a\""),
        ("subset", &[], "no: call of `get` was not made"),
    ];
    for (order, ids, expected) in cases {
        assert_eq!(one(&calls(order, &two), &made(ids)), *expected, "{order} {ids:?}");
    }
    for (order, expected) in [("exact", "no: call 0: `get` is not expected"), ("subset", "yes")] {
        assert_eq!(one(&calls(order, &json!([])), &made(&["a"])), expected, "{order}");
        assert_eq!(one(&calls(order, &json!([])), &made(&[])), "yes", "{order}");
    }
}

#[test]
fn matching_is_not_greedy() {
    // The first expected call takes either, the second only `a`: giving `a` to the first would fail.
    let either = json!({"name": "get", "arguments": {"id": {"one_of": ["a", "b"]}}});
    let expected = json!([either, get("a")]);
    assert_eq!(one(&calls("any_order", &expected), &made(&["a", "b"])), "yes");
    assert_eq!(one(&calls("subset", &expected), &made(&["a", "b"])), "yes");
    assert!(one(&calls("any_order", &expected), &made(&["b", "b"])).starts_with("no"));
}

#[test]
fn arguments() {
    let cases: &[(Value, Value, &str)] = &[
        (json!({"is": "O7"}), json!({"x": " o7 "}), "yes"),
        (json!({"is": "O7"}), json!({"x": "O3"}), "no: call 0: argument `x` is \"O3\", expected \"O7\""),
        (json!({"is": "O7"}), json!({}), "no: call 0: argument `x` is missing"),
        (json!({"exactly": "O7"}), json!({"x": "o7"}), "no: call 0: argument `x` is \"o7\", expected \"O7\""),
        (json!({"exactly": "O7"}), json!({"x": "O7"}), "yes"),
        (json!({"is": 1}), json!({"x": 1.0}), "yes"),
        (json!({"is": 1}), json!({"x": "1"}), "no: call 0: argument `x` is \"1\", expected 1"),
        (json!({"is": null}), json!({"x": null}), "yes"),
        (json!({"is": [1, "A"]}), json!({"x": [1, "a"]}), "yes"),
        (json!({"one_of": [1, 2]}), json!({"x": 2}), "yes"),
        (json!({"one_of": [1, 2]}), json!({"x": 3}), "no: call 0: argument `x` is 3, expected 1 or 2"),
        (json!({"one_of": [1, 2]}), json!({}), "no: call 0: argument `x` is missing"),
        (json!({"optional": ["a"]}), json!({}), "yes"),
        (json!({"optional": ["a"]}), json!({"x": "A"}), "yes"),
        (json!({"optional": ["a"]}), json!({"x": "b"}), "no: call 0: argument `x` is \"b\", expected \"a\""),
        (json!({"optional": []}), json!({"x": {"any": "thing"}}), "yes"),
        (json!({"optional": []}), json!({"y": 1}), "no: call 0: argument `y` is not expected"),
        (json!({"optional": []}), json!([1]), "no: call 0: the arguments are no object"),
    ];
    for (expected, given, verdict) in cases {
        let grader = calls("exact", &json!([{"name": "find", "arguments": {"x": expected}}]));
        let transcript = user().calls(&[("find", given.clone(), "{}")]).reply("done");
        assert_eq!(one(&grader, &transcript), *verdict, "{expected} {given}");
    }
    let transcript = user().calls(&[("find", json!({}), "{}")]).reply("done");
    assert_eq!(
        one(&calls("exact", &json!([get("a")])), &transcript),
        "no: call 0: is `find`, expected `get`"
    );
}

/// `find`, then `cancel` of the id it told.
fn chain(order: &str) -> Value {
    let cancel = json!({"name": "cancel", "arguments": {"id": {"from": {"call": 0, "path": "/order/id"}}}});
    calls(order, &json!([{"name": "find"}, cancel]))
}

#[test]
fn a_reference_demands_what_this_trajectory_was_told() {
    let told = |response: &str, id: Value| {
        user()
            .calls(&[("find", json!({}), response)])
            .calls(&[("cancel", json!({"id": id}), "{}")])
            .reply("done")
    };
    let cases: &[(&str, Transcript, &str)] = &[
        ("the imagined id", told(r#"{"order":{"id":"Z9"}}"#, json!("z9")), "yes"),
        ("a number", told(r#"{"order":{"id":7}}"#, json!(7.0)), "yes"),
        (
            "another id",
            told(r#"{"order":{"id":"Z9"}}"#, json!("Z8")),
            "no: call 1: argument `id` is \"Z8\", expected \"Z9\"",
        ),
        (
            "an error",
            told(r#"{"error":"none"}"#, json!("Z9")),
            "null: the response of `find` has nothing at `/order/id`",
        ),
        ("no JSON", told("not found", json!("Z9")), "null: the response of `find` is no JSON"),
        (
            "nothing done after an error",
            user().calls(&[("find", json!({}), r#"{"error":"none"}"#)]).reply("Sorry."),
            "null: the response of `find` has nothing at `/order/id`",
        ),
        (
            "side by side: the id cannot have been read",
            user()
                .calls(&[
                    ("find", json!({}), r#"{"order":{"id":"Z9"}}"#),
                    ("cancel", json!({"id": "Z9"}), "{}"),
                ])
                .reply("done"),
            "no: call 1: argument `id` was given before the response it must come from",
        ),
    ];
    for (name, transcript, expected) in cases {
        for order in ["exact", "any_order", "subset"] {
            assert_eq!(one(&chain(order), transcript), *expected, "{name}, {order}");
        }
    }
    let cut_off = user().calls(&[("find", json!({}), "")]);
    assert_eq!(one(&chain("subset"), &cut_off), "no: call of `cancel` was not made");
    let first_missing = user().calls(&[("cancel", json!({"id": "Z9"}), "{}")]).reply("done");
    assert_eq!(one(&chain("subset"), &first_missing), "no: call of `find` was not made");
    let unforeseen = told(r#"{"error":"none"}"#, json!("Z9"));
    assert_eq!(
        one_unforeseen_fails(&chain("subset"), &unforeseen),
        "no: call 1: argument `id` cannot be compared: the response of `find` has nothing at `/order/id`"
    );
}

#[test]
fn references_are_resolved_by_the_matching_that_works() {
    // Two equal lookups with different answers, and the second answer is the one that is used.
    let transcript = user()
        .calls(&[("find", json!({}), r#"{"order":{"id":"A"}}"#)])
        .calls(&[("find", json!({}), r#"{"order":{"id":"B"}}"#)])
        .calls(&[("cancel", json!({"id": "B"}), "{}")])
        .reply("done");
    assert_eq!(one(&chain("subset"), &transcript), "yes");
    assert_eq!(one(&chain("any_order"), &transcript), "no: call 0: `find` is not expected");
    // A lookup that failed and was repeated.
    let repeated = user()
        .calls(&[("find", json!({}), r#"{"error":"busy"}"#)])
        .calls(&[("find", json!({}), r#"{"order":{"id":"B"}}"#)])
        .calls(&[("cancel", json!({"id": "B"}), "{}")])
        .reply("done");
    assert_eq!(one(&chain("subset"), &repeated), "yes");
    // Two creations, each to be canceled: canceling one of them twice is not enough.
    let create = json!({"name": "create"});
    let cancel =
        |call: usize| json!({"name": "cancel", "arguments": {"id": {"from": {"call": call, "path": "/id"}}}});
    let both = calls("any_order", &json!([create, create, cancel(0), cancel(1)]));
    let canceled = |first: &str, second: &str| {
        user()
            .calls(&[("create", json!({}), r#"{"id":"A"}"#), ("create", json!({}), r#"{"id":"B"}"#)])
            .calls(&[("cancel", json!({"id": first}), "{}"), ("cancel", json!({"id": second}), "{}")])
            .reply("done")
    };
    assert_eq!(one(&both, &canceled("A", "B")), "yes");
    assert_eq!(one(&both, &canceled("B", "A")), "yes");
    assert_eq!(one(&both, &canceled("A", "A")), "no: call 3: argument `id` is \"A\", expected \"B\"");
}

#[test]
fn a_chain_of_unusable_responses_is_ungraded_as_a_whole() {
    let expected = json!([
        {"name": "find"},
        {"name": "get", "arguments": {"id": {"from": {"call": 0, "path": "/id"}}}},
        {"name": "cancel", "arguments": {"id": {"from": {"call": 1, "path": "/id"}}}},
    ]);
    let transcript = user().calls(&[("find", json!({}), r#"{"error":"x"}"#)]).reply("Sorry.");
    assert_eq!(
        one(&calls("subset", &expected), &transcript),
        "null: the response of `find` has nothing at `/id`"
    );
    // But what does not rest on it must be there.
    let expected = json!([expected[0], expected[1], get("other")]);
    assert!(one(&calls("subset", &expected), &transcript).starts_with("no: "));
}

#[test]
fn a_reference_to_an_earlier_user_turn() {
    let graders = json!([
        {"item": "a", "user_turn": 0, "weight": 1, "grader": "calls", "order": "exact", "calls": [{"name": "create"}]},
        {"item": "a", "user_turn": 1, "weight": 1, "grader": "calls", "order": "exact", "calls": [
            {"name": "cancel", "arguments": {"id": {"from": {"call": 0, "user_turn": 0, "path": "/id"}}}}]},
    ]);
    let canceled = |id: &str| {
        user()
            .calls(&[("create", json!({}), r#"{"id":"A"}"#)])
            .reply("created")
            .user()
            .calls(&[("cancel", json!({"id": id}), "{}")])
            .reply("canceled")
    };
    let verdict = |transcript: &Transcript| shown(&verdicts(&graders, transcript)[1]);
    assert_eq!(verdict(&canceled("A")), "yes");
    assert_eq!(verdict(&canceled("B")), "no: call 0: argument `id` is \"B\", expected \"A\"");
    let nothing = user().reply("no").user().calls(&[("cancel", json!({"id": "A"}), "{}")]).reply("canceled");
    assert_eq!(
        verdict(&nothing),
        "no: call 0: argument `id` cannot be compared: expected call 0 of user turn 0 was not made"
    );
}

/// `find`; if the order is open `cancel` it, else `create` a ticket.
fn branch() -> Value {
    json!({"grader": "branch", "order": "exact", "cases": [
        {"when": [{"call": 0, "path": "/open", "is": true}],
         "calls": [{"name": "find"}, {"name": "cancel", "arguments": {"id": {"from": {"call": 0, "path": "/id"}}}}]},
        {"when": [{"call": 0, "path": "/open", "is": false}], "calls": [{"name": "find"}, {"name": "create"}]},
    ]})
}

#[test]
fn a_branch_follows_the_response() {
    let then = |response: &str, name: &str, arguments: Value| {
        user().calls(&[("find", json!({}), response)]).calls(&[(name, arguments, "{}")]).reply("done")
    };
    let open = r#"{"open":true,"id":"A"}"#;
    let closed = r#"{"open":false,"id":"A"}"#;
    let cases: &[(&str, Transcript, &str)] = &[
        ("open", then(open, "cancel", json!({"id": "A"})), "yes"),
        (
            "open, wrong id",
            then(open, "cancel", json!({"id": "B"})),
            "no: call 1: argument `id` is \"B\", expected \"A\"",
        ),
        ("open, wrong branch", then(open, "create", json!({})), "no: call 1: is `create`, expected `cancel`"),
        ("closed", then(closed, "create", json!({})), "yes"),
        (
            "closed, wrong branch",
            then(closed, "cancel", json!({"id": "A"})),
            "no: call 1: is `cancel`, expected `create`",
        ),
        (
            "unforeseen",
            then(r#"{"open":"maybe"}"#, "create", json!({})),
            "null: no case applies: `/open` in the response of `find` is \"maybe\"",
        ),
        (
            "error",
            then(r#"{"error":1}"#, "create", json!({})),
            "null: no case applies: `/open` in the response of `find` is missing",
        ),
        (
            "looked at twice: the first answer decides",
            user()
                .calls(&[("find", json!({}), closed)])
                .calls(&[("find", json!({}), open)])
                .calls(&[("create", json!({}), "{}")])
                .reply("done"),
            "no: call 1: is `find`, expected `create`",
        ),
        ("not looked at", user().reply("done"), "no: call of `find` was not made"),
        ("no response", user().calls(&[("find", json!({}), "")]), "no: `find` got no response"),
    ];
    for (name, transcript, expected) in cases {
        assert_eq!(one(&branch(), transcript), *expected, "{name}");
    }
    let error = then(r#"{"error":1}"#, "create", json!({}));
    assert!(one_unforeseen_fails(&branch(), &error).starts_with("no: no case applies"));
}

#[test]
fn conditions() {
    let cases: &[(Value, &str, bool)] = &[
        (json!({"is": "Open"}), r#"{"v":"open"}"#, true),
        (json!({"is": 1}), r#"{"v":1.0}"#, true),
        (json!({"is": 1}), r#"{}"#, false),
        (json!({"is_not": 1}), r#"{"v":2}"#, true),
        (json!({"is_not": 1}), r#"{"v":1}"#, false),
        (json!({"is_not": 1}), r#"{}"#, false),
        (json!({"one_of": [1, 2]}), r#"{"v":2}"#, true),
        (json!({"one_of": [1, 2]}), r#"{"v":3}"#, false),
        (json!({"at_most": 5.0}), r#"{"v":5}"#, true),
        (json!({"at_most": 5.0}), r#"{"v":5.5}"#, false),
        (json!({"at_most": 5.0}), r#"{"v":"5"}"#, false),
        (json!({"above": 5.0}), r#"{"v":5}"#, false),
        (json!({"above": 5.0}), r#"{"v":6}"#, true),
        (json!({"exists": true}), r#"{"v":null}"#, true),
        (json!({"exists": true}), r#"{}"#, false),
        (json!({"exists": false}), r#"{}"#, true),
        (json!({"exists": false}), r#"{"v":1}"#, false),
    ];
    for (test, response, expected) in cases {
        let mut condition = json!({"call": 0, "path": "/v"});
        condition.as_object_mut().unwrap().extend(test.as_object().unwrap().clone());
        // The case that applies if the condition holds expects what was done, the other one does not.
        let grader = json!({"grader": "branch", "order": "exact", "cases": [
            {"when": [condition], "calls": [{"name": "find"}]}, {"calls": []},
        ]});
        let transcript = user().calls(&[("find", json!({}), response)]).reply("done");
        assert_eq!(one(&grader, &transcript) == "yes", *expected, "{test} {response}");
    }
}

#[test]
fn validity() {
    let valid = json!({"grader": "calls_valid"});
    let cases: &[(&str, Transcript, &str)] = &[
        ("fits", made(&["a"]), "yes"),
        ("no calls", user().reply("hello"), "yes"),
        (
            "breaks the schema",
            user().calls(&[("get", json!({"id": 1}), "{}")]).reply("x"),
            "no: call 0: 1 is not of type \"string\" at `/id`",
        ),
        (
            "second is wrong",
            user().calls(&[("find", json!({}), "{}"), ("gat", json!({}), "{}")]).reply("x"),
            "no: call 1: no tool is called `gat`",
        ),
        (
            "broken schema",
            user().calls(&[("broken", json!({}), "{}")]).reply("x"),
            "null: schema of tool `broken` is broken",
        ),
        (
            "malformed",
            user().malformed("JSON_DECODE_ERROR").reply("x"),
            "no: malformed call: JSON_DECODE_ERROR",
        ),
        (
            "turned away",
            user().turned_away("TOO_MANY_CALLS").reply("x"),
            "no: call of `get` turned away: TOO_MANY_CALLS",
        ),
    ];
    for (name, transcript, expected) in cases {
        let verdict = one(&valid, transcript);
        assert!(
            verdict == *expected || (name == &"broken schema" && verdict.starts_with(expected)),
            "{name}: {verdict}"
        );
    }
    let some = json!({"grader": "call_made"});
    assert_eq!(one(&some, &made(&["a"])), "yes");
    assert_eq!(one(&some, &user().malformed("X").reply("x")), "no: no call was made");
}

#[test]
fn malformed_calls_and_those_turned_away_are_no_calls() {
    let transcript =
        user().malformed("X").turned_away("Y").calls(&[("get", json!({"id": "a"}), "{}")]).reply("done");
    assert_eq!(one(&calls("exact", &json!([get("a")])), &transcript), "yes");
}
