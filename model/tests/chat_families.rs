//! Tokens and renderings of whole families of models equal those of the reference implementation, by the golden files
//! that `golden/chat/make_families.py` writes.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use envace_model::chat::{ChatFormat, ChatMessage, ChatTemplate, PromptOptions, RenderInput, Tokenizer};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Tokenizer of each template.
const TEMPLATES: [(&str, &str); 5] = [
    ("qwen3", "qwen"),
    ("qwen2_5", "qwen"),
    ("llama3", "llama3"),
    ("smollm2", "smollm2"),
    ("hermes", "hermes"),
];
const TOKENIZERS: [&str; 4] = ["qwen", "llama3", "smollm2", "hermes"];

#[derive(Deserialize)]
struct Corpus {
    texts: Vec<String>,
    /// A piece, and how often it is repeated.
    long: Vec<(String, usize)>,
}

#[derive(Deserialize)]
struct Encodings {
    texts: Vec<Encoding<u32>>,
    long: Vec<Encoding<(Vec<u32>, usize)>>,
    partial: Vec<Encoding<u32>>,
}

#[derive(Deserialize)]
struct Encoding<T> {
    ids: Vec<T>,
    /// Where special tokens are spelled out, if that differs.
    literal_ids: Option<Vec<T>>,
    /// Where it is not the text.
    decoded: Option<String>,
}

#[derive(Deserialize)]
struct Renderings {
    extra: BTreeMap<String, Value>,
    dialogues: BTreeMap<String, Vec<ChatMessage>>,
    tools: Vec<Value>,
    special_tools: Vec<Value>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    dialogue: String,
    tools: bool,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    /// `None`: the template refuses the dialogue.
    expected: Option<String>,
    n_hidden: Option<usize>,
    ids: Option<Vec<u32>>,
}

fn golden_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat").join(name)
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs_err::read_to_string(golden_file(name)).unwrap()).unwrap()
}

fn expand(runs: &[(Vec<u32>, usize)]) -> Vec<u32> {
    runs.iter().flat_map(|(ids, n)| ids.repeat(*n)).collect()
}

/// A model folder with a tokenizer and a template.
fn format_of(template: &str, tokenizer: &str) -> ChatFormat {
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs_err::copy(golden_file("families").join(tokenizer).join(file), dir.path().join(file)).unwrap();
    }
    let source = golden_file("templates").join(format!("{template}.jinja"));
    fs_err::copy(source, dir.path().join("chat_template.jinja")).unwrap();
    ChatFormat::load(dir.path()).unwrap()
}

#[test]
fn hard_texts_have_the_tokens_of_the_reference() {
    let corpus: Corpus = read("families/corpus.json");
    assert!(corpus.texts.len() > 80 && corpus.long.len() > 15, "the golden file is cut");
    for name in TOKENIZERS {
        let tokenizer = Tokenizer::load(&golden_file("families").join(name)).unwrap();
        let golden: Encodings = read(&format!("families/{name}/encode.json"));
        assert_eq!((golden.texts.len(), golden.long.len()), (corpus.texts.len(), corpus.long.len()));
        let mut n_spelled_out = 0;
        for (text, expected) in corpus.texts.iter().zip(&golden.texts) {
            assert_eq!(tokenizer.encode(text).unwrap(), expected.ids, "{name}: ids of {text:?}");
            let literal_ids = expected.literal_ids.as_ref().unwrap_or(&expected.ids);
            assert_eq!(&tokenizer.encode_text(text).unwrap(), literal_ids, "{name}: literal ids of {text:?}");
            n_spelled_out += usize::from(expected.literal_ids.is_some());
            let decoded = expected.decoded.as_ref().unwrap_or(text);
            assert_eq!(&tokenizer.decode(&expected.ids), decoded, "{name}: text of {text:?}");
        }
        assert!(n_spelled_out > 5, "{name}: {n_spelled_out}");
        for ((piece, n), expected) in corpus.long.iter().zip(&golden.long) {
            let text = piece.repeat(*n);
            let what = format!("{name}: ids of {n} times {:?}", piece.chars().take(20).collect::<String>());
            assert!(tokenizer.encode(&text).unwrap() == expand(&expected.ids), "{what}");
            let literal_ids = expected.literal_ids.as_ref().unwrap_or(&expected.ids);
            assert!(tokenizer.encode_text(&text).unwrap() == expand(literal_ids), "{what}");
        }
        for expected in &golden.partial {
            let decoded = expected.decoded.as_deref().unwrap();
            assert_eq!(tokenizer.decode(&expected.ids), decoded, "{name}: {:?}", expected.ids);
        }
    }
}

#[test]
fn spelled_out_text_has_no_special_token_and_is_not_changed() {
    let corpus: Corpus = read("families/corpus.json");
    for name in TOKENIZERS {
        let tokenizer = Tokenizer::load(&golden_file("families").join(name)).unwrap();
        let special: Vec<u32> = tokenizer.special_tokens().iter().map(|(id, _)| *id).collect();
        assert!(special.len() >= 3, "{name}");
        for text in &corpus.texts {
            let ids = tokenizer.encode_text(text).unwrap();
            assert!(!ids.iter().any(|id| special.contains(id)), "{name}: {text:?} is {ids:?}");
            // One family composes characters, and one puts a space behind every added token.
            if !["qwen", "hermes"].contains(&name) {
                assert_eq!(&tokenizer.decode(&ids), text, "{name}");
            }
        }
    }
}

#[test]
fn dialogues_have_the_text_and_the_tokens_of_the_reference() {
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    for (template, tokenizer) in TEMPLATES {
        let format = format_of(template, tokenizer);
        let golden: Renderings = read(&format!("families/{tokenizer}/render_{template}.json"));
        for case in &golden.cases {
            n_cases += 1;
            if let Err(problem) = check(&format, &golden, case) {
                let Case { dialogue, tools, add_generation_prompt, enable_thinking, .. } = case;
                wrong.push(format!(
                    "{template}, {dialogue}, {tools}, {add_generation_prompt}, {enable_thinking:?}: {problem}"
                ));
            }
        }
    }
    assert!(n_cases > 160, "the golden files are cut");
    assert!(wrong.is_empty(), "{} of {n_cases} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn check(format: &ChatFormat, golden: &Renderings, case: &Case) -> Result<(), String> {
    let messages = &golden.dialogues[&case.dialogue];
    let tools = match (case.tools, case.dialogue.as_str()) {
        (false, _) => Vec::new(),
        (true, "special") => golden.special_tools.clone(),
        (true, _) => golden.tools.clone(),
    };
    let input = RenderInput {
        messages,
        tools: &tools,
        add_generation_prompt: case.add_generation_prompt,
        enable_thinking: case.enable_thinking,
        extra: &golden.extra,
    };
    let rendered = format.template().render(&input);
    let options = PromptOptions {
        tools: tools.clone(),
        enable_thinking: case.enable_thinking,
        extra: golden.extra.clone(),
    };
    let prompt = if case.add_generation_prompt {
        format.prompt(messages, &options)
    } else {
        format.transcript(messages, &options)
    };
    let Some(expected) = &case.expected else {
        return match (rendered, prompt) {
            (Err(_), Err(_)) => Ok(()),
            (rendered, _) => Err(format!("is not refused: {rendered:?}")),
        };
    };
    let rendered = rendered.map_err(|error| format!("{error:?}"))?;
    if &rendered != expected {
        return Err(format!("rendered\n{rendered:?}\nexpected\n{expected:?}"));
    }
    let prompt = prompt.map_err(|error| error.to_string())?;
    if &prompt.text != expected {
        return Err(format!("text of the prompt\n{:?}\nexpected\n{expected:?}", prompt.text));
    }
    if Some(prompt.n_hidden) != case.n_hidden {
        return Err(format!("hidden: {}, expected: {:?}", prompt.n_hidden, case.n_hidden));
    }
    match &case.ids {
        Some(ids) if ids != &prompt.ids => Err(format!("ids\n{:?}\nexpected\n{ids:?}", prompt.ids)),
        _ => Ok(()),
    }
}

#[test]
fn the_end_of_a_turn_is_found_in_each_family() {
    for (template, tokenizer) in TEMPLATES {
        let format = format_of(template, tokenizer);
        let expected = if template == "llama3" { "<|eot_id|>" } else { "<|im_end|>" };
        assert_eq!(format.turn_end_id(), format.tokenizer().token_id(expected), "{template}");
    }
}

#[derive(Deserialize)]
struct Snippets {
    message: ChatMessage,
    snippets: Vec<Snippet>,
}

#[derive(Deserialize)]
struct Snippet {
    template: String,
    expected: Option<String>,
}

#[test]
fn small_templates_give_what_they_give_in_the_reference() {
    let golden: Snippets = read("families/snippets.json");
    assert!(golden.snippets.len() > 100, "the golden file is cut");
    let config = fs_err::read_to_string(golden_file("families/llama3/tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    let mut wrong = Vec::new();
    for Snippet { template, expected } in &golden.snippets {
        let dir = tempfile::tempdir().unwrap();
        config["chat_template"] = Value::from(template.as_str());
        fs_err::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let input = RenderInput {
            messages: std::slice::from_ref(&golden.message),
            tools: &[],
            add_generation_prompt: false,
            enable_thinking: None,
            extra: &BTreeMap::new(),
        };
        let rendered = ChatTemplate::load(dir.path()).and_then(|template| template.render(&input));
        if rendered.as_ref().ok() != expected.as_ref() {
            wrong.push(format!("{template:?}\n  gives    {rendered:?}\n  expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[derive(Deserialize)]
struct Configured {
    texts: Vec<String>,
    cases: Vec<ConfiguredCase>,
}

#[derive(Deserialize)]
struct ConfiguredCase {
    name: String,
    tokenizer_changes: BTreeMap<String, Value>,
    tokenizer_config: Value,
    special_tokens_map: Option<Value>,
    special: Vec<u32>,
    ids: Vec<Vec<u32>>,
    literal_ids: Vec<Vec<u32>>,
}

#[test]
fn configurations_change_the_tokens_as_in_the_reference() {
    let golden: Configured = read("families/configured/cases.json");
    assert!(golden.cases.len() >= 9, "the golden file is cut");
    for case in &golden.cases {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, value: &Value| fs_err::write(dir.path().join(name), value.to_string()).unwrap();
        let mut file: Value = read("families/configured/tokenizer.json");
        for (key, value) in &case.tokenizer_changes {
            file[key] = value.clone();
        }
        write("tokenizer.json", &file);
        write("tokenizer_config.json", &case.tokenizer_config);
        if let Some(map) = &case.special_tokens_map {
            write("special_tokens_map.json", map);
        }
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let special: Vec<u32> = tokenizer.special_tokens().iter().map(|(id, _)| *id).collect();
        assert_eq!(special, case.special, "{}", case.name);
        for ((text, ids), literal_ids) in golden.texts.iter().zip(&case.ids).zip(&case.literal_ids) {
            assert_eq!(&tokenizer.encode(text).unwrap(), ids, "{}: {text:?}", case.name);
            assert_eq!(
                &tokenizer.encode_text(text).unwrap(),
                literal_ids,
                "{}, literal: {text:?}",
                case.name
            );
        }
    }
}
