use super::*;
use ResultFault::{EmptyOutput, InvalidType, JsonDecodeError, NoTag, TagMalformed};

type Outcome = Result<&'static str, ResultFault>;

/// An output, and the response in tolerant and in reference mode.
const CASES: &[(&str, &str, Outcome, Outcome)] = &[
    ("nothing", "", Err(EmptyOutput), Err(EmptyOutput)),
    ("white space", " \n", Err(EmptyOutput), Err(EmptyOutput)),
    ("nothing but thinking", "<think>a</think>\n", Err(EmptyOutput), Err(EmptyOutput)),
    ("thinking cut off", "<think>a", Err(EmptyOutput), Err(NoTag)),
    ("no tag", "{\"a\":1}", Err(NoTag), Err(NoTag)),
    (
        "as asked",
        "<think>a</think>\n\n<execution_result>\n{\"a\":1}\n</execution_result>",
        Ok("{\"a\":1}"),
        Ok("{\"a\": 1}"),
    ),
    (
        "at the start of the output",
        "<execution_result>\n{\"a\":1}\n</execution_result>",
        Ok("{\"a\":1}"),
        Err(TagMalformed),
    ),
    ("on one line", "\n<execution_result>{\"a\":1}</execution_result>", Ok("{\"a\":1}"), Err(TagMalformed)),
    ("CRLF", "\r\n<execution_result>\r\n[1]\r\n</execution_result>", Ok("[1]"), Err(TagMalformed)),
    ("no closing tag", "\n<execution_result>\n{\"a\":1}\n", Err(TagMalformed), Err(TagMalformed)),
    (
        "fenced inside the tags",
        "\n<execution_result>\n```json\n{\"a\":1}\n```\n</execution_result>",
        Ok("{\"a\":1}"),
        Err(JsonDecodeError),
    ),
    (
        "not JSON",
        "\n<execution_result>\n{a}\n</execution_result>",
        Err(JsonDecodeError),
        Err(JsonDecodeError),
    ),
    ("a text", "\n<execution_result>\n\"a\"\n</execution_result>", Err(InvalidType), Err(InvalidType)),
    ("a number", "\n<execution_result>\n5\n</execution_result>", Err(InvalidType), Err(InvalidType)),
    ("null", "\n<execution_result>\nnull\n</execution_result>", Err(InvalidType), Err(InvalidType)),
    ("an empty object", "\n<execution_result>\n{}\n</execution_result>", Ok("{}"), Err(InvalidType)),
    ("an empty array", "\n<execution_result>\n[]\n</execution_result>", Ok("[]"), Ok("[]")),
    (
        "the first of two, with text around",
        "Here:\n<execution_result>\n[1]\n</execution_result>\n<execution_result>\n[2]\n</execution_result> done",
        Ok("[1]"),
        Ok("[1]"),
    ),
    (
        "a block inside thinking does not count",
        "<think>\n<execution_result>\n[1]\n</execution_result>\n</think>\n<execution_result>\n[2]\n</execution_result>",
        Ok("[2]"),
        Ok("[2]"),
    ),
    (
        "text that is not ASCII is kept",
        "\n<execution_result>\n{\"é\":\"\\u00e9\"}\n</execution_result>",
        Ok("{\"é\":\"\\u00e9\"}"),
        Ok("{\"é\": \"é\"}"),
    ),
    (
        "NaN is JSON for Python only",
        "\n<execution_result>\n[NaN]\n</execution_result>",
        Err(JsonDecodeError),
        Ok("[NaN]"),
    ),
];

#[test]
fn the_code_table_in_both_modes() {
    for (name, text, tolerant, reference) in CASES {
        for (mode, expected) in [(ParseMode::Tolerant, tolerant), (ParseMode::Reference, reference)] {
            assert_eq!(parse_result(text, mode), expected.map(str::to_owned), "{mode:?}: {name}");
        }
    }
}

#[test]
fn well_formed_outputs_read_back() {
    for (response, expected) in [
        ("{\"a\": 1}", "{\"a\": 1}"),
        (" [1,2]\n", "[1,2]"),
        ("{}", "{}"),
        ("done", "{\"result\":\"done\"}"),
        ("5", "{\"result\": 5}"),
        ("\"say \\\"hi\\\"\"", "{\"result\": \"say \\\"hi\\\"\"}"),
        ("", "{\"result\":\"\"}"),
    ] {
        let output = format_result(response);
        assert_eq!(parse_result(&output, ParseMode::Tolerant).as_deref(), Ok(expected));
        // The reference wants a line break before the tag, which a think block gives.
        if expected != "{}" {
            assert!(parse_result(&format!("<think></think>\n{output}"), ParseMode::Reference).is_ok());
        }
    }
}

#[test]
fn errors_in_responses_are_found() {
    for (response, code, ends_reference) in [
        ("{\"error\": {\"code\": \"NOT_FOUND\", \"message\": \"x\"}}", Some("NOT_FOUND"), false),
        ("{\"error\": \"no such order\"}", Some("ERROR"), false),
        ("{\"error\": \"no such order\", \"code\": \"E1\"}", Some("E1"), false),
        ("{\"error\": null, \"a\": 1}", None, false),
        ("{\"error\": false}", None, false),
        ("{\"error\": \"\"}", None, false),
        ("{\"error_tool_call\": {\"code\": \"X\"}}", Some("X"), true),
        ("{\"error_tool_call\": null}", Some("ERROR"), true),
        ("[{\"error_tool_call\": 1}]", None, false),
        ("{\"a\": {\"error\": 1}}", None, false),
        ("not JSON", None, false),
    ] {
        assert_eq!(error_code_of(response).as_deref(), code, "{response}");
        assert_eq!(is_reference_error(response), ends_reference, "{response}");
    }
}

proptest::proptest! {
    #[test]
    fn any_response_is_formatted_so_that_it_reads_back(response in "\\PC{0,30}") {
        let output = format_result(&response);
        if !response.contains("<") {
            proptest::prop_assert!(parse_result(&output, ParseMode::Tolerant).is_ok());
        }
    }

    #[test]
    fn never_panics(pieces in proptest::collection::vec(proptest::sample::select(vec![
        "<execution_result>", "</execution_result>", "<think>", "</think>", "\n", "é", "{}", "[1]", "```",
    ]), 0..12)) {
        let text = pieces.concat();
        for mode in [ParseMode::Tolerant, ParseMode::Reference] {
            if let Ok(response) = parse_result(&text, mode) {
                proptest::prop_assert!(PyValue::parse(&response).is_ok());
            }
        }
    }
}
