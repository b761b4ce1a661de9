//! Properties of the matching, over many made-up calls.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Transcript, one, user};

fn transcript(ids: &[u8]) -> Transcript {
    let make = |transcript: Transcript, id: &u8| {
        transcript.calls(&[("find", json!({"x": id}), &format!("{{\"x\":{id}}}"))])
    };
    ids.iter().fold(user(), make).reply("done")
}

fn grader(order: &str, expected: &[Vec<u8>]) -> Value {
    let call = |accepted: &Vec<u8>| json!({"name": "find", "arguments": {"x": {"one_of": accepted}}});
    json!({"grader": "calls", "order": order, "calls": expected.iter().map(call).collect::<Vec<_>>()})
}

/// Whether calls can be given to expectations, all different, by trying every way.
fn can_match(expected: &[Vec<u8>], made: &[u8]) -> bool {
    let Some((first, rest)) = expected.split_first() else { return true };
    (0..made.len()).filter(|index| first.contains(&made[*index])).any(|index| {
        let mut left = made.to_vec();
        left.remove(index);
        can_match(rest, &left)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn matching_equals_trying_every_way(
        expected in prop::collection::vec(prop::collection::vec(0_u8..4, 1..4), 0..5),
        made in prop::collection::vec(0_u8..4, 0..6),
    ) {
        let possible = can_match(&expected, &made);
        prop_assert_eq!(one(&grader("subset", &expected), &transcript(&made)) == "yes", possible);
        let exactly = possible && made.len() == expected.len();
        prop_assert_eq!(one(&grader("any_order", &expected), &transcript(&made)) == "yes", exactly);
    }

    #[test]
    fn any_order_does_not_see_the_order(
        (made, shuffled) in prop::collection::vec(0_u8..4, 0..6)
            .prop_flat_map(|made| (Just(made.clone()), Just(made).prop_shuffle())),
        expected in prop::collection::vec(prop::collection::vec(0_u8..4, 1..3), 0..6),
    ) {
        let grader = grader("any_order", &expected);
        let (before, after) = (one(&grader, &transcript(&made)), one(&grader, &transcript(&shuffled)));
        prop_assert_eq!(before == "yes", after == "yes");
    }

    #[test]
    fn more_calls_never_fail_a_subset(
        made in prop::collection::vec(0_u8..4, 0..5),
        more in prop::collection::vec(0_u8..4, 0..4),
        expected in prop::collection::vec(prop::collection::vec(0_u8..4, 1..3), 0..4),
    ) {
        let grader = grader("subset", &expected);
        if one(&grader, &transcript(&made)) == "yes" {
            let all: Vec<u8> = more.iter().chain(&made).copied().collect();
            prop_assert_eq!(one(&grader, &transcript(&all)), "yes");
        }
    }

    #[test]
    fn whatever_was_imagined_is_what_is_demanded(id in "[A-Za-z0-9]{1,6}", other in "[A-Za-z0-9]{1,6}") {
        let grader = json!({"grader": "calls", "order": "exact", "calls": [
            {"name": "find"}, {"name": "cancel", "arguments": {"id": {"from": {"call": 0, "path": "/id"}}}}]});
        let canceled = |given: &str| {
            let response = json!({"id": id}).to_string();
            user().calls(&[("find", json!({}), &response)]).calls(&[("cancel", json!({"id": given}), "{}")]).reply("done")
        };
        prop_assert_eq!(one(&grader, &canceled(&id)), "yes");
        let is_same = id.to_lowercase() == other.to_lowercase();
        prop_assert_eq!(one(&grader, &canceled(&other)) == "yes", is_same);
    }
}

#[test]
fn the_search_is_bounded() {
    // Five references to five equal lookups, over 120 lookups that all differ.
    let find = json!({"name": "find", "arguments": {"x": {"optional": []}}});
    let cancel =
        |call: usize| json!({"name": "cancel", "arguments": {"id": {"from": {"call": call, "path": "/x"}}}});
    let mut expected: Vec<Value> = (0..5).map(|_| find.clone()).collect();
    expected.extend((0..5).map(cancel));
    let grader = json!({"grader": "calls", "order": "subset", "calls": expected});
    let ids: Vec<u8> = (0..120).collect();
    // What is plainly missing fails, however many ways there are to match the rest.
    assert_eq!(one(&grader, &transcript(&ids)), "no: call of `cancel` was not made");
    let cancels: Vec<_> = (115..120).map(|id| ("cancel", json!({"id": id}), "{}")).collect();
    let canceled = transcript(&ids).calls(&cancels).reply("done");
    assert_eq!(one(&grader, &canceled), "null: the calls can be matched in too many ways");
}
