//! The transitions of the reference's state machine, each with what the default and the paper preset do.

use super::*;

type Change = fn(&mut EpisodeOptions);

/// A script, and for each preset what the episode waits for then and what has been said.
struct Case {
    name: &'static str,
    change: Change,
    script: Vec<Given>,
    default: (&'static str, &'static str),
    paper: (&'static str, &'static str),
}

fn case(
    name: &'static str,
    script: Vec<Given>,
    default: (&'static str, &'static str),
    paper: (&'static str, &'static str),
) -> Case {
    Case { name, change: |_| {}, script, default, paper }
}

fn with(change: Change, case: Case) -> Case {
    Case { change, ..case }
}

fn malformed() -> Given {
    say("\n<tool_call>\nfind the book\n</tool_call>")
}

fn babble(attempt: usize) -> Given {
    Rehearsal(0, attempt, "I cannot know that.".to_owned())
}

const ERROR: &str = r#"{"error": "no such title"}"#;
const REFERENCE_ERROR: &str = r#"{"error_tool_call": {"code": "X", "message": "no such title"}}"#;

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let both = |outcome| (outcome, outcome);
    let same = |name, script, outcome| { let (default, paper) = both(outcome); case(name, script, default, paper) };
    vec![
        same("R2: begins", vec![], ("actor fresh", "")),
        same("R3: the prompt does not fit", vec![Given::ActorDoesNotFit], ("ended length, partial", "")),
        same("A1: a reply", vec![say("It is in.")], ("actor new user turn", "a u")),
        case("A1: a block that holds no call is a reply to the reference",
            vec![say("\n<tool_call>\n[]\n</tool_call>")],
            ("actor after responses", "a t:envace"), ("actor new user turn", "a u")),
        case("A2: a malformed call", vec![malformed()],
            ("actor after responses", "a t:envace"), ("ended malformed_calls, partial", "a t:envace")),
        case("A2: one malformed beside a good one",
            vec![say("\n<tool_call>\n{\"name\": \"find_copy\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n5\n</tool_call>")],
            ("rehearse 0.0", "a"), ("ended malformed_calls, partial", "a t:envace")),
        same("A3, P2: calls are queued, nothing is appended", vec![calls(&[FIND, HOLD])], ("rehearse 0.0 rehearse 1.0", "a")),
        with(|options| options.guards.replay = true,
            same("P1: one answered inline, one queued", vec![calls(&[FIND, HOLD])], ("rehearse 0.0", "a"))),
        with(|options| options.guards.replay = true,
            same("P3: all answered inline", vec![calls(&[HOLD])], ("actor after responses", "a t:replay"))),
        with(|options| options.guards.whitelist = true,
            case("P4: a guard refuses", vec![calls(&[("find_book", "{}")])],
                ("actor after responses", "a t:envace"), ("ended error_response, partial", "a t:envace"))),
        same("S1: one of two responses", vec![calls(&[FIND, HOLD]), respond(1, "[1]")], ("rehearse 0.0", "a")),
        same("S2: the last response", vec![calls(&[FIND, HOLD]), respond(1, "[1]"), respond(0, "[0]")],
            ("actor after responses", "a t:rehearsal t:rehearsal")),
        same("S2: an error of another shape", vec![calls(&[FIND]), respond(0, ERROR)],
            ("actor after responses", "a t:rehearsal")),
        case("S3: an error response", vec![calls(&[FIND]), respond(0, REFERENCE_ERROR)],
            ("actor after responses", "a t:rehearsal"), ("ended error_response, partial", "a t:rehearsal")),
        case("S3: one nested in an array", vec![calls(&[FIND]), respond(0, "[{\"error_tool_call\": 1}]")],
            ("actor after responses", "a t:rehearsal"), ("actor after responses", "a t:rehearsal")),
        case("S3: a malformed rehearsal", vec![calls(&[FIND]), babble(0)],
            ("rehearse 0.1", "a"), ("ended error_response, partial", "a t:rehearsal")),
        same("I2: the last reply", vec![say("It is in."), say("Friday.")], ("ended finished", "a u a")),
        with(|options| options.gate = Gate::Inline,
            same("I1: waits for the grade", vec![say("It is in.")], ("gate", "a"))),
        with(|options| options.gate = Gate::Inline,
            same("I2: the judge says stop", vec![say("It is in."), Given::Gate(false)], ("ended gated", "a"))),
        with(|options| options.gate = Gate::Inline,
            same("I4: the judge says go on", vec![say("It is in."), Given::Gate(true)], ("actor new user turn", "a u"))),
        with(|options| options.max_turns = 1,
            same("I3: the turn cap at the end of a user turn", vec![say("It is in.")], ("ended max_turns", "a"))),
        with(|options| options.max_user_turns = 1,
            same("I3: the user turn cap", vec![say("It is in.")], ("ended max_user_turns", "a"))),
        with(|options| options.max_turns = 1,
            case("I3: the turn cap inside a user turn", vec![calls(&[FIND])],
                ("ended max_turns, partial", "a"), ("rehearse 0.0", "a"))),
        same("I5: the next user message does not fit", vec![say("It is in."), Given::ActorDoesNotFit],
            ("ended length, partial", "a u")),
        with(|options| options.max_generations = 2,
            same("O1: no output is left", vec![calls(&[FIND]), respond(0, "[1]")],
                ("ended max_generations, partial", "a t:rehearsal"))),
        with(|options| options.max_generations = 2,
            same("O1: one call is answered, the other not", vec![calls(&[FIND, HOLD]), respond(0, "[1]")],
                ("ended max_generations, partial", "a t:rehearsal"))),
    ]
}

#[test]
fn every_transition_in_both_presets() {
    for Case { name, change, script, default, paper } in cases() {
        let presets =
            [("default", EpisodeOptions::default(), default), ("paper", EpisodeOptions::paper(), paper)];
        for (preset, mut options, (waits, said)) in presets {
            change(&mut options);
            let episode = play(options, &script);
            assert_eq!(waits_for(&episode), waits, "{preset}: {name}");
            assert_eq!(speakers(&episode), said, "{preset}: {name}");
        }
    }
}

#[test]
fn r1_a_task_without_graders_is_played_unless_they_are_required() {
    let mut task = library_task();
    task.graders.clear();
    let task = Arc::new(task);
    let begin = |options| Episode::new(Arc::clone(&task), 0, Arc::new(options));
    assert_eq!(waits_for(&begin(EpisodeOptions::default())), "actor fresh");
    assert_eq!(waits_for(&begin(EpisodeOptions::paper())), "ended no_graders, partial");
}

#[test]
fn i2_an_empty_user_message_ends_the_script() {
    let mut task = library_task();
    task.later_user_turns = vec![String::new(), "More?".to_owned()];
    let mut episode = Episode::new(Arc::new(task), 0, Arc::new(EpisodeOptions::default()));
    give(&mut episode, &say("It is in.")).unwrap();
    assert_eq!(waits_for(&episode), "ended finished");
}

/// S4 and X1: what was not asked for is refused and changes nothing.
#[test]
fn what_was_not_asked_for_is_refused() {
    for options in [EpisodeOptions::default(), EpisodeOptions::paper()] {
        let mut episode = play(options.clone(), &[calls(&[FIND, HOLD]), respond(0, "[0]")]);
        for given in [
            say("Hi."),
            respond(0, "[1]"),
            respond(2, "[1]"),
            Rehearsal(1, 1, String::new()),
            Response(1, "[1]"),
            Given::Gate(true),
            Given::ActorDoesNotFit,
            Given::RehearsalDoesNotFit(0),
        ] {
            assert!(give(&mut episode, &given).is_err(), "{given:?}");
            assert_eq!(waits_for(&episode), "rehearse 1.0", "{given:?}");
        }
        assert!(episode.rehearsal_prompt(0, 0.5).is_err());
        assert!(episode.rehearsal_prompt(1, 0.5).is_ok());
        assert_eq!(episode.finish(), Err(EpisodeError::NotEnded));

        let mut ended = play(options, &[Given::ActorDoesNotFit]);
        assert_eq!(
            give(&mut ended, &say("Hi.")).unwrap_err().to_string(),
            "the episode does not wait for an actor output"
        );
        ended.abort("too late");
        assert_eq!(waits_for(&ended), "ended length, partial");
    }
}

#[test]
fn malformed_calls_are_borne_up_to_a_limit() {
    let mut options = EpisodeOptions { max_malformed_calls: 2, ..EpisodeOptions::default() };
    let script = [malformed(), malformed(), malformed()];
    assert_eq!(waits_for(&play(options.clone(), &script[..2])), "actor after responses");
    let episode = play(options.clone(), &script);
    assert_eq!(waits_for(&episode), "ended malformed_calls, partial");
    assert_eq!(speakers(&episode), "a t:envace a t:envace a t:envace");
    let reported = r#"{"error":{"code":"JSON_DECODE_ERROR","message":"the call is not valid JSON"}}"#;
    assert_eq!(episode.new_messages()[0].content, reported);
    let record = episode.finish().unwrap();
    assert_eq!((record.n_malformed_calls, record.n_calls, record.n_turns), (3, 0, 3));
    assert_eq!(record.end.detail.as_deref(), Some("turn 2: JSON_DECODE_ERROR: the call is not valid JSON"));
    options.on_malformed_call = ErrorPolicy::Fatal;
    assert_eq!(waits_for(&play(options, &script[..1])), "ended malformed_calls, partial");
}

#[test]
fn calls_beyond_the_limit_get_an_error() {
    let options = EpisodeOptions { max_parallel_calls: 1, ..EpisodeOptions::default() };
    let episode = play(options, &[calls(&[FIND, HOLD, HOLD]), respond(0, "[0]")]);
    assert_eq!(waits_for(&episode), "actor after responses");
    let responses = episode.new_messages();
    assert_eq!(responses.len(), 3);
    assert_eq!(responses[0].content, "[0]");
    assert_eq!(
        responses[2].content,
        r#"{"error":{"code":"TOO_MANY_CALLS","message":"at most 1 calls at a time"}}"#
    );
    assert_eq!(responses[2].tool_call_id.as_deref(), Some("call_0_2"));
    // The reference never enforces the limit.
    let many: Vec<(&str, &str)> = std::iter::repeat_n(FIND, 21).collect();
    assert!(waits_for(&play(EpisodeOptions::paper(), &[calls(&many)])).ends_with("rehearse 20.0"));
    assert!(waits_for(&play(EpisodeOptions::default(), &[calls(&many)])).ends_with("rehearse 19.0"));
}

#[test]
fn a_rehearsal_that_keeps_failing_is_not_the_actors_fault() {
    let script = [calls(&[FIND, HOLD]), babble(0), babble(1)];
    let mut episode = play(EpisodeOptions::default(), &script);
    // The other call is answered first, whatever the order.
    assert_eq!(waits_for(&episode), "rehearse 1.0");
    give(&mut episode, &respond(1, "[1]")).unwrap();
    assert_eq!(waits_for(&episode), "ended rehearsal_failed, partial");
    assert_eq!(speakers(&episode), "a t:rehearsal");
    let record = episode.finish().unwrap();
    assert_eq!(
        record.end.detail.as_deref(),
        Some("turn 0, call 0: 2 malformed rehearsals, last NO_EXECUTION_RESULT_TAG_FOUND")
    );
    let row = record.trajectory_row("train");
    assert_eq!((row.n_rehearsals, row.n_malfunctions, row.n_calls), (3, 2, 2));
    assert_eq!(row.end_reason, "rehearsal_failed");
}

#[test]
fn a_second_attempt_may_save_it() {
    let saved = Rehearsal(0, 1, "<execution_result>{}</execution_result>".to_owned());
    let episode = play(EpisodeOptions::default(), &[calls(&[FIND]), babble(0), saved]);
    assert_eq!(waits_for(&episode), "actor after responses");
    assert_eq!(episode.new_messages()[0].content, "{}");
}

#[test]
fn a_rehearsal_prompt_that_does_not_fit_ends_it_and_is_not_the_actors_fault() {
    let script = [calls(&[FIND, HOLD]), Given::RehearsalDoesNotFit(0)];
    let mut episode = play(EpisodeOptions::default(), &script);
    assert_eq!(waits_for(&episode), "rehearse 1.0");
    give(&mut episode, &respond(1, "[1]")).unwrap();
    assert_eq!(waits_for(&episode), "ended rehearsal_failed, partial");
}

/// The first call that ends the episode, in the order of the calls, gives the reason.
#[test]
fn of_several_failures_the_first_call_counts() {
    let detail = |script: &[Given]| match play(EpisodeOptions::default(), script).phase {
        Phase::Ended(end) => end.detail.unwrap(),
        _ => "not ended".to_owned(),
    };
    let second_fails = |attempt| Rehearsal(1, attempt, String::new());
    let script = [calls(&[FIND, HOLD]), second_fails(0), second_fails(1), Given::RehearsalDoesNotFit(0)];
    assert_eq!(detail(&script), "turn 0, call 0: the rehearsal prompt does not fit");
    let script = [calls(&[FIND, HOLD]), Given::RehearsalDoesNotFit(1), babble(0), babble(1)];
    assert_eq!(detail(&script), "turn 0, call 0: 2 malformed rehearsals, last NO_EXECUTION_RESULT_TAG_FOUND");
}

#[test]
fn an_executable_world_answers_through_the_caller() {
    let options = EpisodeOptions { environment: Environment::World, ..EpisodeOptions::default() };
    let error = r#"{"error": {"code": "NOT_FOUND", "message": "x"}}"#;
    let script = [calls(&[FIND, HOLD]), Response(0, "{\"copy_id\":\"c9\"}"), Response(1, error)];
    assert_eq!(waits_for(&play(options.clone(), &script[..1])), "execute 0 execute 1");
    let episode = play(options, &script);
    assert_eq!(speakers(&episode), "a t:world t:world");
    assert_eq!(episode.notes.last().unwrap().error_code.as_deref(), Some("NOT_FOUND"));
}

#[test]
fn the_recorded_dialogue_answers_alone() {
    let options = EpisodeOptions { environment: Environment::Replay, ..EpisodeOptions::default() };
    let episode = play(options, &[calls(&[HOLD, FIND])]);
    assert_eq!(speakers(&episode), "a t:replay t:envace");
    assert_eq!(episode.notes.last().unwrap().error_code.as_deref(), Some("NOT_RECORDED"));
}

#[test]
fn needs_are_taken_once() {
    let mut episode = begin(EpisodeOptions::default());
    assert_eq!(episode.take_needs().len(), 1);
    assert_eq!(episode.take_needs(), []);
    give(&mut episode, &calls(&[FIND, HOLD])).unwrap();
    assert_eq!(episode.take_needs().len(), 2);
    give(&mut episode, &babble(0)).unwrap();
    let second = Need::Rehearsal(RehearsalNeed { user_turn: 0, turn: 0, call_index: 0, attempt: 1 });
    assert_eq!(episode.take_needs(), [second]);
}

#[test]
fn what_the_policy_writes_is_cleaned() {
    let script = [say("a\0b\u{fffe}")];
    let episode = play(EpisodeOptions::default(), &script);
    assert_eq!(episode.messages[2].content, "a\u{fffd}b\u{fffd}");
    let mut world = begin(EpisodeOptions { environment: Environment::World, ..EpisodeOptions::default() });
    give(&mut world, &calls(&[FIND])).unwrap();
    give(&mut world, &Response(0, "\0")).unwrap();
    assert_eq!(world.new_messages()[0].content, "\u{fffd}");
}
