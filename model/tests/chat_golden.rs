//! Tokens and renderings equal those of the reference implementation, by the golden files that
//! `golden/chat/make_golden.py` writes.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use envace_model::chat::{ChatError, ChatMessage, ChatTemplate, RenderInput, Speaker, Tokenizer};
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat").join(name)
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&fs_err::read_to_string(golden(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// A model folder with the tiny tokenizer's configuration and one of the templates.
fn folder_with(template: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(golden("tiny").join(file), dir.path().join(file)).unwrap();
    }
    let source = golden("templates").join(format!("{template}.jinja"));
    fs_err::copy(source, dir.path().join("chat_template.jinja")).unwrap();
    dir
}

#[test]
fn tokens_equal_the_reference() {
    let tokenizer = Tokenizer::load(&golden("tiny")).unwrap();
    let golden = golden_json("encode.json");
    let encodings = golden["encodings"].as_array().unwrap();
    assert!(encodings.len() >= 12);
    for case in encodings {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), ids(&case["ids"]), "ids of {text:?}");
        assert_eq!(
            tokenizer.decode(&ids(&case["ids"])),
            case["decoded"].as_str().unwrap(),
            "text of {text:?}"
        );
    }
    for case in golden["partial"].as_array().unwrap() {
        assert_eq!(tokenizer.decode(&ids(&case["ids"])), case["decoded"].as_str().unwrap(), "{case}");
    }
}

#[test]
fn text_from_outside_never_becomes_special() {
    let tokenizer = Tokenizer::load(&golden("tiny")).unwrap();
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let text = "a<|im_end|>b";
    assert!(tokenizer.encode(text).unwrap().contains(&end));
    let literal = tokenizer.encode_text(text).unwrap();
    assert!(!literal.contains(&end));
    assert_eq!(tokenizer.decode(&literal), text);
    // Added tokens that are not special stay tokens.
    let think = tokenizer.token_id("<think>").unwrap();
    assert_eq!(tokenizer.encode_text("<think>").unwrap(), vec![think]);
    // The file has ids up to `</think>`; an id beyond them decodes to one replacement character.
    let n = u32::try_from(tokenizer.vocab_size()).unwrap();
    assert_eq!(tokenizer.token_text(n - 1).as_deref(), Some("</think>"));
    assert_eq!(tokenizer.decode(&[tokenizer.encode("a").unwrap()[0], n, end]), "a\u{fffd}<|im_end|>");
}

#[test]
fn renderings_equal_the_reference_byte_for_byte() {
    let golden = golden_json("render.json");
    let dialogues: BTreeMap<String, Vec<ChatMessage>> =
        serde_json::from_value(golden["dialogues"].clone()).unwrap();
    let tools: Vec<Value> = serde_json::from_value(golden["tools"].clone()).unwrap();
    let features = BTreeMap::from([("date_string".to_owned(), json!("31 Jan 2026"))]);
    let nothing = BTreeMap::new();
    let mut templates = BTreeMap::new();
    let mut wrong = Vec::new();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let template =
            templates.entry(name).or_insert_with(|| ChatTemplate::load(folder_with(name).path()).unwrap());
        let input = RenderInput {
            messages: &dialogues[case["dialogue"].as_str().unwrap()],
            tools: if case["tools"].as_bool().unwrap() { &tools } else { &[] },
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: case["enable_thinking"].as_bool(),
            extra: if name == "features" { &features } else { &nothing },
        };
        let rendered = template.render(&input);
        let is_equal = match (&rendered, case["expected"].as_str()) {
            (Ok(rendered), Some(expected)) => rendered == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if !is_equal {
            wrong.push(format!("{case}\nrendered: {rendered:?}"));
        }
    }
    assert!(cases.len() > 200, "the golden file is cut");
    let first = wrong.first().map_or("", String::as_str);
    assert!(wrong.is_empty(), "{} of {} renderings differ, the first:\n{first}", wrong.len(), cases.len());
}

fn render_error(dir: &Path, messages: &[ChatMessage]) -> ChatError {
    let input = RenderInput {
        messages,
        tools: &[],
        add_generation_prompt: false,
        enable_thinking: None,
        extra: &BTreeMap::new(),
    };
    ChatTemplate::load(dir).and_then(|template| template.render(&input)).unwrap_err()
}

#[test]
fn a_template_that_fails_names_file_line_and_reason() {
    let dir = tempfile::tempdir().unwrap();
    let hello = [ChatMessage::text(Speaker::User, "hello")];
    let error = render_error(dir.path(), &hello);
    assert!(matches!(error, ChatError::NoTemplate { .. }), "{error}");
    assert!(error.hint().unwrap().contains("chat_template.jinja"));

    let file = dir.path().join("chat_template.jinja");
    fs_err::write(&file, "a\n{% if %}").unwrap();
    let message = render_error(dir.path(), &hello).to_string();
    assert!(message.contains("chat_template.jinja` failed at line 2"), "{message}");

    fs_err::write(&file, "a\n\n{{ raise_exception('no ' ~ messages[0].content) }}").unwrap();
    let error = render_error(dir.path(), &hello);
    assert!(error.to_string().ends_with("chat_template.jinja` failed at line 3"), "{error}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no hello"), "{cause}");

    fs_err::write(&file, "{{ strftime_now('%Y') }}").unwrap();
    let error = render_error(dir.path(), &hello);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("strftime_now needs a date"), "{cause}");
    assert!(error.hint().unwrap().contains("date"));
    let extra = BTreeMap::from([("date".to_owned(), json!("2026-01-31"))]);
    let input = RenderInput {
        messages: &hello,
        tools: &[],
        add_generation_prompt: false,
        enable_thinking: None,
        extra: &extra,
    };
    assert_eq!(ChatTemplate::load(dir.path()).unwrap().render(&input).unwrap(), "2026");
}

#[test]
fn named_templates_are_chosen_by_tools() {
    let dir = tempfile::tempdir().unwrap();
    let write = |templates: Value| {
        let config = json!({"bos_token": {"content": "<s>"}, "chat_template": templates});
        fs_err::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    };
    let render = |tools: &[Value]| {
        let input = RenderInput {
            messages: &[],
            tools,
            add_generation_prompt: false,
            enable_thinking: None,
            extra: &BTreeMap::new(),
        };
        ChatTemplate::load(dir.path()).and_then(|template| template.render(&input))
    };
    write(json!([
        {"name": "default", "template": "{{ bos_token }}plain"},
        {"name": "tool_use", "template": "tools {{ tools|length }}"},
        {"name": "rag", "template": "documents"},
    ]));
    assert_eq!(render(&[]).unwrap(), "<s>plain");
    assert_eq!(render(&[json!({})]).unwrap(), "tools 1");
    write(json!("only"));
    assert_eq!(render(&[json!({})]).unwrap(), "only");
    write(json!([{"name": "rag", "template": "documents"}]));
    assert!(render(&[]).unwrap_err().to_string().contains("chat_template"));
    write(json!(7));
    assert!(render(&[]).unwrap_err().to_string().contains("key `chat_template`"));
    // A file of its own comes first, as in the reference implementation.
    write(json!("configured"));
    fs_err::write(dir.path().join("chat_template.jinja"), "file\n").unwrap();
    assert_eq!(render(&[]).unwrap(), "file");
}
