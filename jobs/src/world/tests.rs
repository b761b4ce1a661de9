use std::collections::BTreeSet;

use envace_model::chat::Speaker;

use super::names::{DEVICES, ORDERS, PEOPLE, TICKETS};
use super::scene::is_reserved;
use super::*;
use crate::score::GraderKind;
use crate::task::{Task, function_of};

const SEED: u64 = 7;

fn parsed(split: Split, n: u64) -> Vec<Task> {
    tasks(SEED, &[(split, n)], 0).into_iter().map(|row| Task::parse(row).unwrap()).collect()
}

/// Executes the calls of the recorded dialogue that `keep` accepts; returns the world and the replies.
fn replay(task: &Task, keep: impl Fn(usize) -> bool) -> (World, Vec<String>) {
    let mut world = World::from_task(task).unwrap();
    for (index, call) in task.recorded_calls.iter().enumerate() {
        if keep(index) {
            let response = world.execute(&call.name, call.arguments.get());
            assert_eq!(response, call.result, "{}", task.id());
        }
    }
    let transcript = task.transcript.as_ref().unwrap();
    let replies = transcript
        .iter()
        .filter(|message| message.role == Speaker::Assistant && message.tool_calls.is_empty())
        .map(|message| message.content.clone())
        .collect();
    (world, replies)
}

#[test]
fn the_scripted_policy_solves_every_task() {
    for split in Split::ALL {
        for task in parsed(split, 240) {
            let (world, replies) = replay(&task, |_| true);
            assert_eq!(replies.len(), task.n_user_turns(), "{}", task.id());
            let report = world.check(&replies);
            assert!(report.is_solved(), "{}: {report:?}", task.id());
        }
    }
}

#[test]
fn policies_that_do_not_do_the_job_fail() {
    for split in Split::ALL {
        for task in parsed(split, 240) {
            let (_, replies) = replay(&task, |_| true);
            // Nothing done, nothing said; nothing done, and a fixed excuse.
            let world = World::from_task(&task).unwrap();
            assert!(!world.check::<String>(&[]).is_solved(), "{}", task.id());
            let excuses = vec!["Sorry, this is closed, canceled and refunded."; task.n_user_turns()];
            assert!(!world.check(&excuses).is_solved(), "{}", task.id());
            // Everything said, but the last call that changes something left out: also its place is found.
            let changes = |index: &usize| {
                let call = &task.recorded_calls[*index];
                let is_lookup = call.name.starts_with("get_")
                    || ["user", "order", "device", "ticket"].contains(&&*call.name);
                !is_lookup && !call.result.contains("error")
            };
            if let Some(last) = (0..task.recorded_calls.len()).rfind(changes) {
                let mut world = World::from_task(&task).unwrap();
                for (index, call) in task.recorded_calls.iter().enumerate() {
                    if index != last {
                        world.execute(&call.name, call.arguments.get());
                    }
                }
                assert!(!world.check(&replies).differences.is_empty(), "{}", task.id());
            }
        }
    }
}

#[test]
fn tasks_depend_on_seed_split_and_index_alone() {
    let first: Vec<TaskRow> = tasks(SEED, &[(Split::Train, 12), (Split::Drift, 3)], 0);
    assert_eq!(generate(SEED, Split::Train, 11, 0).task_hash, first[11].task_hash);
    assert_eq!(generate(SEED, Split::Drift, 2, 0).task_hash, first[14].task_hash);
    let hashes: BTreeSet<&str> = first.iter().map(|row| row.task_hash.as_str()).collect();
    assert_eq!(hashes.len(), 15);
    assert_ne!(generate(SEED + 1, Split::Train, 0, 0).opening, first[0].opening);
    // Changes only when the world is changed on purpose: then stored tasks are no longer what is generated.
    let digest = blake3::hash(first.iter().map(|row| row.task_hash.as_str()).collect::<String>().as_bytes());
    assert_eq!(&digest.to_hex()[..16], "da432c361a6d9969");
}

/// Names in the user messages of a task.
fn asked(task: &Task) -> BTreeSet<String> {
    let messages =
        task.opening.last().map(|message| &message.content).into_iter().chain(&task.later_user_turns);
    messages
        .flat_map(|text| text.split(|character: char| !character.is_alphanumeric()))
        .filter(|word| [&PEOPLE[..], &DEVICES, &TICKETS, &ORDERS].iter().any(|list| list.contains(word)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn held_out_tasks_ask_about_what_training_never_does() {
    let pairs = |task: &Task| -> BTreeSet<(String, String)> {
        let family = task.row.family.clone().unwrap();
        asked(task).into_iter().map(|name| (family.clone(), name)).collect()
    };
    let train: BTreeSet<_> = parsed(Split::Train, 1200).iter().flat_map(pairs).collect();
    // Training knows each of the names, from other families or from responses.
    let known: String =
        tasks(SEED, &[(Split::Train, 600)], 0).into_iter().filter_map(|row| row.transcript).collect();
    for task in parsed(Split::HeldOut, 240) {
        let of_task = pairs(&task);
        assert!(of_task.iter().any(|pair| !train.contains(pair)), "{}", task.id());
        assert!(of_task.iter().all(|(_, name)| known.contains(name.as_str())), "{}", task.id());
    }
    // One name in six: 8 of 48.
    assert_eq!((0..48).filter(|index| is_reserved(Family::Close, *index)).count(), 8);
}

#[test]
fn dialogues_are_of_the_promised_size() {
    let (mut n_calls, mut n_user_turns, mut n_with_error, mut openings) =
        (BTreeSet::new(), BTreeSet::new(), 0, BTreeSet::new());
    let train = parsed(Split::Train, 600);
    for task in &train {
        n_calls.insert(task.recorded_calls.len());
        n_user_turns.insert(task.n_user_turns());
        n_with_error += usize::from(task.recorded_calls.iter().any(|call| call.result.contains("error")));
        let words = task.opening[1]
            .content
            .split(|character: char| !character.is_lowercase())
            .collect::<Vec<_>>()
            .join(" ");
        openings.insert((task.row.family.clone(), words));
    }
    assert_eq!((n_calls.first(), n_calls.last()), (Some(&1), Some(&5)));
    assert_eq!(n_user_turns, BTreeSet::from([1, 2, 3]));
    assert!((90..=180).contains(&n_with_error), "{n_with_error} of 600 dialogues hold an error");
    for family in Family::ALL {
        let phrasings = openings.iter().filter(|(name, _)| name.as_deref() == Some(family.name())).count();
        assert!(phrasings >= 5, "{}: {phrasings}", family.name());
    }
}

#[test]
fn graders_weigh_one_per_user_turn_and_demand_no_imagined_value() {
    for task in parsed(Split::Train, 120) {
        for user_turn in 0..task.n_user_turns() {
            let weights: i64 = task
                .graders
                .iter()
                .filter(|grader| grader.user_turn == user_turn)
                .map(|grader| grader.weight.scaled())
                .sum();
            assert_eq!(weights, envace_schemas::Decimal::ONE.scaled(), "{}", task.id());
        }
        // A value that stands in a grader was said by the user or is a word of the rules.
        let said: Vec<String> = task
            .opening
            .iter()
            .map(|message| message.content.clone())
            .chain(task.later_user_turns.iter().cloned())
            .collect();
        for grader in &task.graders {
            let GraderKind::Branch { cases, .. } = &grader.kind else { continue };
            for argument in cases.iter().flat_map(|case| &case.calls).flat_map(|call| call.arguments.values())
            {
                if let crate::score::Argument::Is(Value::String(value)) = argument {
                    assert!(said.iter().any(|text| text.contains(value.as_str())), "{}: {value}", task.id());
                }
            }
        }
    }
}

#[test]
fn tools_are_valid_schemas_and_fit_the_recorded_calls() {
    for split in Split::ALL {
        let schemas = tool_schemas(split);
        assert_eq!(schemas.len(), 11);
        for task in parsed(split, 60) {
            assert_eq!(task.tools, schemas);
            for call in &task.recorded_calls {
                let schema = schemas.iter().map(function_of).find(|tool| tool["name"] == *call.name).unwrap();
                let arguments = serde_json::from_str(call.arguments.get()).unwrap();
                let validator = jsonschema::validator_for(&schema["parameters"]).unwrap();
                assert!(validator.is_valid(&arguments), "{}: {arguments}", task.id());
            }
        }
    }
}

#[test]
fn slips_change_the_recorded_dialogue_and_nothing_else() {
    let (mut n_changed, mut n_solved) = (0, 0);
    for index in 0..240 {
        let (careful, careless) =
            (generate(SEED, Split::Train, index, 0), generate(SEED, Split::Train, index, 100));
        for (name, left, right) in [
            ("opening", &careful.opening, &careless.opening),
            ("later_user_turns", &careful.later_user_turns, &careless.later_user_turns),
            ("graders", &careful.graders, &careless.graders),
        ] {
            assert_eq!(left, right, "{name} of {}", careful.task_id);
        }
        assert_eq!(careful.world, careless.world);
        assert_ne!(careful.source, careless.source);
        n_changed += usize::from(careful.transcript != careless.transcript);
        let task = Task::parse(careless).unwrap();
        let (world, replies) = replay(&task, |_| true);
        let is_solved = world.check(&replies).is_solved();
        n_solved += usize::from(is_solved);
        // In the other families there may be nothing to slip in, or it makes no difference.
        if ["cancel", "follow_up"].contains(&task.row.family.as_deref().unwrap()) {
            assert!(!is_solved, "{}", task.id());
        }
    }
    assert!((120..200).contains(&n_changed), "{n_changed} changed");
    assert!(n_solved + n_changed >= 240, "what is not changed is solved: {n_solved} of 240");
    // Between none and all: some are as they were.
    let halves = tasks(SEED, &[(Split::Train, 240)], 50);
    let careful = tasks(SEED, &[(Split::Train, 240)], 0);
    let n_same = halves.iter().zip(&careful).filter(|(a, b)| a.transcript == b.transcript).count();
    assert!((60..=180).contains(&n_same), "{n_same} of 240 dialogues without a slip");
}
