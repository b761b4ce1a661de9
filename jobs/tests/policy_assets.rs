//! The bundled policy's folder: what its tokenizer and template promise.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use envace_jobs::rollout::episode::{EpisodeOptions, Whitelist, Wording};
use envace_jobs::rollout::rehearsal_examples::rehearsal_examples;
use envace_jobs::task::Task;
use envace_jobs::world::names::{AMOUNTS, DEVICES, ITEMS, ORDERS, PEOPLE, TEAMS, TICKETS, TOPICS};
use envace_jobs::world::{self, Split};
use envace_model::chat::{ChatMessage, ChatTemplate, RenderInput, Speaker, Tokenizer, ToolCall};
use proptest::prelude::*;
use serde_json::{Value, json};

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/policy")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&dir()).unwrap()
}

fn render(messages: &[ChatMessage], tools: &[Value], add_generation_prompt: bool) -> String {
    let extra = BTreeMap::new();
    let input =
        RenderInput { messages, tools, add_generation_prompt, enable_thinking: Some(false), extra: &extra };
    ChatTemplate::load(&dir()).unwrap().render(&input).unwrap()
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

#[test]
fn any_text_comes_back() {
    let tokenizer = tokenizer();
    for text in [
        "",
        " ",
        "  two spaces, a tab\tand\r\nline ends\n\n",
        "Grüße, 日本語, مرحبا, 👩‍👧 and \u{0}\u{fffd}",
        "camelCase SHOUTING get_order2 _x_ 007 T1 T123 O12x",
        r#"{"a":{"b":[1, 2.5e-3,null]},"c":"\"\\"}"#,
        "<|im_start|>user\n<tool_call>\n</think><|im_end|>",
    ] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
        assert_eq!(tokenizer.decode(&tokenizer.encode_text(text).unwrap()), text);
    }
}

proptest! {
    #[test]
    fn arbitrary_text_comes_back(text in any::<String>()) {
        let tokenizer = tokenizer();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode_text(&text).unwrap()), text);
    }
}

#[test]
fn names_ids_and_values_are_one_token_wherever_they_stand() {
    let tokenizer = tokenizer();
    let amounts: Vec<String> = AMOUNTS.iter().map(u32::to_string).collect();
    let lists: [&[&str]; 7] = [&PEOPLE, &DEVICES, &TICKETS, &ORDERS, &ITEMS, &TOPICS, &TEAMS];
    for word in lists.into_iter().flatten().copied().chain(amounts.iter().map(String::as_str)) {
        let id = tokenizer.token_id(word).unwrap_or_else(|| panic!("{word} is no token"));
        assert_eq!(tokenizer.encode(word).unwrap(), [id], "{word}");
        assert!(tokenizer.encode(&format!("{{\"user\": \"{word}\"}}")).unwrap().contains(&id), "{word}");
    }
    for name in PEOPLE.iter().chain(&DEVICES).chain(&TICKETS).chain(&ORDERS) {
        let id = tokenizer.token_id(name).unwrap();
        for text in [format!("It is for {name}."), format!("{name} asks"), format!("of {name}, now")] {
            assert!(tokenizer.encode(&text).unwrap().contains(&id), "{text}");
        }
    }
    // {" user ": " Alma ", " amount ":  25 }
    assert_eq!(tokenizer.encode(r#"{"user": "Alma", "amount": 25}"#).unwrap().len(), 9);
}

#[test]
fn configuration_and_tokenizer_agree() {
    let tokenizer = tokenizer();
    let read = |name: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(dir().join(name)).unwrap()).unwrap()
    };
    let (config, generation) = (read("config.json"), read("generation_config.json"));
    assert_eq!(config["vocab_size"], json!(tokenizer.vocab_size()));
    let id = |token: &str| json!(tokenizer.token_id(token).unwrap());
    assert_eq!(generation["eos_token_id"], json!([id("<|im_end|>"), id("<|endoftext|>")]));
    assert_eq!(config["eos_token_id"], id("<|im_end|>"));
    let special: Vec<&str> = tokenizer.special_tokens().iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(special, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
    for token in ["<think>", "<tool_call>", "</tool_response>", "<execution_result>"] {
        assert_eq!(tokenizer.encode(token).unwrap().len(), 1, "{token}");
    }
}

/// Written by hand after the template.
#[test]
fn a_dialogue_with_everything_renders_as_expected() {
    let mut calls = ChatMessage::text(Speaker::Assistant, "I look.");
    calls.tool_calls = vec![call("a", "find", r#"{"x": "é", "n": 2}"#), call("b", "list", "{}")];
    let mut thought = ChatMessage::text(Speaker::Assistant, "Done.");
    thought.reasoning_content = Some("Hm.".into());
    let messages = [
        ChatMessage::text(Speaker::System, "Rules."),
        ChatMessage::text(Speaker::User, "Hi"),
        calls,
        ChatMessage::text(Speaker::Tool, "[1]"),
        ChatMessage::text(Speaker::Tool, "[2]"),
        thought,
        ChatMessage::text(Speaker::User, "Bye"),
    ];
    let tools = [
        json!({"type": "function", "function": {"name": "find", "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "string"}, "n": {"type": "number"}, "kind": {"enum": ["a", "b"]}
            },
            "required": ["x"]
        }}}),
        json!({"name": "list"}),
    ];
    let expected = "\
<|im_start|>system
Rules.
tools:
find(x, n?: \"number\", kind?: [\"a\", \"b\"])
list()<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
I look.
<tool_call>
{\"name\": \"find\", \"arguments\": {\"x\": \"é\", \"n\": 2}}
</tool_call>
<tool_call>
{\"name\": \"list\", \"arguments\": {}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
[1]
</tool_response>
<tool_response>
[2]
</tool_response><|im_end|>
<|im_start|>assistant
<think>
Hm.
</think>

Done.<|im_end|>
<|im_start|>user
Bye<|im_end|>
<|im_start|>assistant
";
    assert_eq!(render(&messages, &tools, true), expected.replace("\"number\"", "number"));
}

#[test]
fn a_longer_dialogue_starts_as_the_shorter_one_did() {
    for split in Split::ALL {
        for row in world::tasks(3, &[(split, 12)], 0) {
            let task = Task::parse(row).unwrap();
            let transcript = task.transcript.unwrap();
            let whole = render(&transcript, &task.tools, false);
            for end in 2..transcript.len() {
                // Responses to the calls of one turn come together.
                if transcript[end].role != Speaker::Tool {
                    assert!(whole.starts_with(&render(&transcript[..end], &task.tools, false)), "{end}");
                }
            }
        }
    }
}

/// Smallest, median and largest.
fn spread(mut lengths: Vec<usize>) -> (usize, usize, usize) {
    lengths.sort_unstable();
    (lengths[0], lengths[lengths.len() / 2], lengths[lengths.len() - 1])
}

#[test]
fn prompts_and_dialogues_stay_short() {
    let tokenizer = tokenizer();
    let length = |text: &str| tokenizer.encode(text).unwrap().len();
    let mut options = EpisodeOptions::default();
    options.rehearsal.wording = Wording::Compact;
    options.rehearsal.whitelist = Whitelist::Called;
    options.rehearsal.few_shot_limit = 3;
    for split in Split::ALL {
        let tools = render(&[], &world::tool_schemas(split), false);
        assert!(length(&tools) < 100, "{split}: the tools take {} tokens", length(&tools));
    }
    for split in [Split::Train, Split::HeldOut] {
        let (mut dialogues, mut rehearsals) = (Vec::new(), Vec::new());
        for row in world::tasks(0, &[(split, 300)], 0) {
            let task = Task::parse(row).unwrap();
            dialogues.push(length(&render(task.transcript.as_deref().unwrap(), &task.tools, false)));
            for example in rehearsal_examples(&task, &options, |_, _| 0.5) {
                rehearsals.push(length(&render(&example.prompt.messages(), &[], true)));
            }
        }
        let (dialogues, rehearsals) = (spread(dialogues), spread(rehearsals));
        println!("{split}: dialogues {dialogues:?}, rehearsal prompts {rehearsals:?}");
        assert!(dialogues.1 <= 300 && dialogues.2 <= 450, "{split}: {dialogues:?}");
        assert!(rehearsals.1 <= 180 && rehearsals.2 <= 300, "{split}: {rehearsals:?}");
    }
}

/// Nothing the policy reads or writes needs spelling in bytes.
#[test]
fn dialogues_hold_no_spelled_words() {
    let tokenizer = tokenizer();
    for split in Split::ALL {
        for row in world::tasks(11, &[(split, 120)], 0) {
            let task = Task::parse(row).unwrap();
            let text = render(task.transcript.as_deref().unwrap(), &task.tools, false);
            let ids = tokenizer.encode(&text).unwrap();
            let spelled: Vec<String> = ids
                .windows(2)
                .map(|pair| tokenizer.decode(pair))
                .filter(|text| {
                    text.len() == 2 && text.chars().all(|character| character.is_ascii_alphanumeric())
                })
                .collect();
            assert!(spelled.is_empty(), "{}: {spelled:?}", task.id());
        }
    }
}
