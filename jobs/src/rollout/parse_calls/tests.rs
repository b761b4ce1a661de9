use super::*;
use CallFault::{
    ArgumentsNotAnObject, InvalidToolName, JsonDecodeError, NoArguments, NoToolCallFound, ToolCallNotClosed,
};

/// What a parser makes of an output: the content, and each call as `name arguments` or its fault.
type Outcome = (&'static str, &'static [Result<&'static str, CallFault>]);

/// One line of the edge table.
struct Case {
    name: &'static str,
    text: &'static str,
    tolerant: Outcome,
    reference: Outcome,
}

const GOOD: &str = r#"{"name": "f", "arguments": {"a": 1}}"#;

/// The edge table of the reference's parser, each line with what both modes do.
const CASES: &[Case] = &[
    Case {
        name: "no tag: a final reply",
        text: "All done.",
        tolerant: ("All done.", &[]),
        reference: ("All done.", &[]),
    },
    Case {
        name: "a block after text",
        text: "Wait.\n<tool_call>\nGOOD\n</tool_call>",
        tolerant: ("Wait.", &[Ok("f {\"a\": 1}")]),
        reference: ("Wait.", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "a block at the very start",
        text: "<tool_call>\nGOOD\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("<tool_call>\nGOOD\n</tool_call>", &[Err(NoToolCallFound)]),
    },
    Case {
        name: "after thinking",
        text: "<think>hm</think>\n\n<tool_call>\nGOOD\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "two adjacent blocks",
        text: "\n<tool_call>\nGOOD\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}"), Ok("g {}")]),
        reference: ("", &[Ok("f {\"a\": 1}"), Ok("g {}")]),
    },
    Case {
        name: "one inline block and a good one: the reference drops the inline one",
        text: "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>\n<tool_call>\nGOOD\n</tool_call>",
        tolerant: ("", &[Ok("g {}"), Ok("f {\"a\": 1}")]),
        reference: ("<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "second block unterminated",
        text: "\n<tool_call>\nGOOD\n</tool_call>\n<tool_call>\n{\"name\": \"g\"",
        tolerant: ("<tool_call>\n{\"name\": \"g\"", &[Ok("f {\"a\": 1}"), Err(ToolCallNotClosed)]),
        reference: ("", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "a complete block inside thinking",
        text: "<think>maybe\n<tool_call>\nGOOD\n</tool_call>\n</think>Done.",
        tolerant: ("Done.", &[]),
        // What stands before the block is an unclosed think block: reasoning.
        reference: ("", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "a mention of the tag inside thinking, then a reply",
        text: "<think>I could use <tool_call> here.</think>Done.",
        tolerant: ("Done.", &[]),
        reference: ("Done.", &[Err(NoToolCallFound)]),
    },
    Case {
        name: "CRLF line ends",
        text: "\r\n<tool_call>\r\nGOOD\r\n</tool_call>\r\n",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("<tool_call>\r\nGOOD\r\n</tool_call>", &[Err(NoToolCallFound)]),
    },
    Case {
        name: "a trailing space after the tag",
        text: "\n<tool_call> \nGOOD\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("<tool_call> \nGOOD\n</tool_call>", &[Err(NoToolCallFound)]),
    },
    Case {
        name: "both `parameters` and `arguments`",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"parameters\": {\"a\": 2}}\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 2}")]),
        reference: ("", &[Ok("f {\"a\": 2}")]),
    },
    Case {
        name: "`parameters` null: `arguments` count",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"parameters\": null}\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "arguments are a number",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": 5}\n</tool_call>",
        tolerant: (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": 5}\n</tool_call>",
            &[Err(ArgumentsNotAnObject)],
        ),
        reference: ("", &[Ok("f 5")]),
    },
    Case {
        name: "arguments are an array",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>",
        tolerant: (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>",
            &[Err(ArgumentsNotAnObject)],
        ),
        reference: ("", &[Ok("f [1]")]),
    },
    Case {
        name: "arguments are a text that is no object",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": \"x\"}\n</tool_call>",
        tolerant: (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": \"x\"}\n</tool_call>",
            &[Err(ArgumentsNotAnObject)],
        ),
        reference: ("", &[Ok("f \"x\"")]),
    },
    Case {
        name: "arguments are a text that holds an object",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("", &[Ok("f \"{\\\"a\\\": 1}\"")]),
    },
    Case {
        name: "null arguments",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": null}\n</tool_call>",
        tolerant: ("<tool_call>\n{\"name\": \"f\", \"arguments\": null}\n</tool_call>", &[Err(NoArguments)]),
        reference: ("<tool_call>\n{\"name\": \"f\", \"arguments\": null}\n</tool_call>", &[Err(NoArguments)]),
    },
    Case {
        name: "name bad and arguments missing",
        text: "\n<tool_call>\n{\"name\": 1}\n</tool_call>",
        tolerant: ("<tool_call>\n{\"name\": 1}\n</tool_call>", &[Err(NoArguments)]),
        reference: ("<tool_call>\n{\"name\": 1}\n</tool_call>", &[Err(NoArguments)]),
    },
    Case {
        name: "blank name",
        text: "\n<tool_call>\n{\"name\": \" \", \"arguments\": {}}\n</tool_call>",
        tolerant: (
            "<tool_call>\n{\"name\": \" \", \"arguments\": {}}\n</tool_call>",
            &[Err(InvalidToolName)],
        ),
        reference: (
            "<tool_call>\n{\"name\": \" \", \"arguments\": {}}\n</tool_call>",
            &[Err(InvalidToolName)],
        ),
    },
    Case {
        name: "the body is `[]`: the reference takes it for a final reply",
        text: "Hi.\n<tool_call>\n[]\n</tool_call>",
        tolerant: ("Hi.\n<tool_call>\n[]\n</tool_call>", &[Err(NoToolCallFound)]),
        reference: ("Hi.\n<tool_call>\n[]\n</tool_call>", &[]),
    },
    Case {
        name: "the body is `5`",
        text: "\n<tool_call>\n5\n</tool_call>",
        tolerant: ("<tool_call>\n5\n</tool_call>", &[Err(NoArguments)]),
        reference: ("<tool_call>\n5\n</tool_call>", &[Err(NoArguments)]),
    },
    Case {
        name: "an array of calls, one of them no object: only the reference drops its sibling",
        text: "\n<tool_call>\n[GOOD, 5]\n</tool_call>",
        tolerant: ("<tool_call>\n[GOOD, 5]\n</tool_call>", &[Ok("f {\"a\": 1}"), Err(NoArguments)]),
        reference: ("<tool_call>\n[GOOD, 5]\n</tool_call>", &[Err(NoArguments)]),
    },
    Case {
        name: "an array of calls",
        text: "\n<tool_call>\n[GOOD, {\"name\": \"g\", \"parameters\": {}}]\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}"), Ok("g {}")]),
        reference: ("", &[Ok("f {\"a\": 1}"), Ok("g {}")]),
    },
    Case {
        name: "NaN is JSON for Python only",
        text: "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": NaN}}\n</tool_call>",
        tolerant: (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": NaN}}\n</tool_call>",
            &[Err(JsonDecodeError)],
        ),
        reference: ("", &[Ok("f {\"a\": NaN}")]),
    },
    Case {
        name: "duplicate keys: the last wins",
        text: "\n<tool_call>\n{\"name\": \"x\", \"name\": \"f\", \"arguments\": {}, \"arguments\": {\"a\":2}}\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\":2}")]),
        reference: ("", &[Ok("f {\"a\": 2}")]),
    },
    Case {
        name: "not JSON",
        text: "\n<tool_call>\nf(a=1)\n</tool_call>",
        tolerant: ("<tool_call>\nf(a=1)\n</tool_call>", &[Err(JsonDecodeError)]),
        reference: ("<tool_call>\nf(a=1)\n</tool_call>", &[Err(JsonDecodeError)]),
    },
    Case {
        name: "text after the last block: the reference loses it",
        text: "Before.\n<tool_call>\nGOOD\n</tool_call>\nAfter.",
        tolerant: ("Before.\nAfter.", &[Ok("f {\"a\": 1}")]),
        reference: ("Before.", &[Ok("f {\"a\": 1}")]),
    },
    Case {
        name: "one bad block voids the output only in the reference",
        text: "\n<tool_call>\nGOOD\n</tool_call>\n<tool_call>\nbad\n</tool_call>",
        tolerant: ("<tool_call>\nbad\n</tool_call>", &[Ok("f {\"a\": 1}"), Err(JsonDecodeError)]),
        reference: (
            "<tool_call>\nGOOD\n</tool_call>\n<tool_call>\nbad\n</tool_call>",
            &[Err(JsonDecodeError)],
        ),
    },
    Case {
        name: "a fenced call",
        text: "\n<tool_call>\n```json\nGOOD\n```\n</tool_call>",
        tolerant: ("", &[Ok("f {\"a\": 1}")]),
        reference: ("<tool_call>\n```json\nGOOD\n```\n</tool_call>", &[Err(JsonDecodeError)]),
    },
    Case {
        name: "thinking cut off inside a call: nothing but reasoning",
        text: "<think>now <tool_call>",
        tolerant: ("", &[]),
        reference: ("", &[Err(NoToolCallFound)]),
    },
];

fn check(name: &str, text: &str, mode: ParseMode, (content, calls): Outcome) {
    let text = text.replace("GOOD", GOOD);
    let parsed = parse_calls(&text, mode);
    let found: Vec<Result<String, CallFault>> = parsed
        .calls
        .iter()
        .map(|call| match call {
            Ok(call) => Ok(format!("{} {}", call.name, call.arguments)),
            Err(malformed) => Err(malformed.fault),
        })
        .collect();
    let calls: Vec<Result<String, CallFault>> = calls.iter().map(|call| call.map(str::to_owned)).collect();
    assert_eq!(found, calls, "{mode:?}: {name}");
    assert_eq!(parsed.content, content.replace("GOOD", GOOD), "{mode:?}: {name}");
}

#[test]
fn the_edge_table_in_both_modes() {
    for Case { name, text, tolerant, reference } in CASES {
        check(name, text, ParseMode::Tolerant, *tolerant);
        check(name, text, ParseMode::Reference, *reference);
    }
}

#[test]
fn arguments_keep_their_bytes() {
    let parsed = parse_calls(
        "<tool_call>{\"name\":\"f\",\"arguments\":{ \"é\":1.50,\n\"a\":{} }}</tool_call>",
        ParseMode::Tolerant,
    );
    assert_eq!(parsed.calls[0].as_ref().unwrap().arguments, "{ \"é\":1.50,\n\"a\":{} }");
    assert_eq!(parsed.reasoning, None);
}

#[test]
fn what_later_readers_could_not_parse_is_no_json() {
    for arguments in ["{\"a\": 1e999}", "{\"a\": \"\\ud800\"}"] {
        let text = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>");
        assert_eq!(
            parse_calls(&text, ParseMode::Tolerant).first_fault(),
            Some(JsonDecodeError),
            "{arguments}"
        );
    }
}

#[test]
fn reasoning_is_kept_apart() {
    let text = "<think>\nfirst\n</think>\nHello\n<tool_call>GOOD</tool_call>".replace("GOOD", GOOD);
    let parsed = parse_calls(&text, ParseMode::Tolerant);
    assert_eq!(parsed.reasoning.as_deref(), Some("first"));
    assert_eq!(parsed.content, "Hello");
}

proptest::proptest! {
    /// Whatever is written, nothing panics, and each opening tag outside reasoning is accounted for.
    #[test]
    fn never_panics_and_never_drops_a_block(
        pieces in proptest::collection::vec(proptest::sample::select(vec![
            "<tool_call>", "</tool_call>", "\n", "é ", GOOD, "[", "]", "{\"name\":", "5", "\"",
        ]), 0..12)
    ) {
        let text = pieces.concat();
        let tolerant = parse_calls(&text, ParseMode::Tolerant);
        proptest::prop_assert!(tolerant.calls.len() >= text.matches(CALL_OPEN).count());
        for call in tolerant.calls.iter().flatten() {
            proptest::prop_assert!(serde_json::from_str::<Value>(&call.arguments).unwrap().is_object());
        }
        let reference = parse_calls(&text, ParseMode::Reference);
        proptest::prop_assert!(reference.calls.iter().all(Result::is_ok) || reference.calls.len() == 1);
    }
}
