//! Makes the text files of the bundled policy's folder: tokenizer, its configuration, and the model's shape.
//!
//! `cargo run -p envace-jobs --example make_policy_assets`
//!
//! The vocabulary is closed and made, not learned: all 256 bytes, so that any text can be written; each piece of
//! text that occurs often enough in the dialogues of the bundled world and in what its rehearsal role is asked;
//! and the special tokens of Qwen3. A piece that is in the vocabulary is one token, any other is spelled in bytes.
//! Run it again when the world's wording or the rehearsal prompt changes, then train the policy anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use envace_jobs::rollout::episode::{EpisodeOptions, FewShot, Whitelist, Wording};
use envace_jobs::rollout::rehearsal_examples::rehearsal_examples;
use envace_jobs::task::Task;
use envace_jobs::world::names::{AMOUNTS, DEVICES, ITEMS, ORDERS, PEOPLE, TEAMS, TICKETS, TOPICS};
use envace_jobs::world::{self, Split};
use envace_model::chat::{ChatTemplate, RenderInput};
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer};

/// Seed and number of the tasks that are read.
const SEED: u64 = 0;
const TASKS: [(Split, u64); 3] = [(Split::Train, 1200), (Split::HeldOut, 300), (Split::Drift, 300)];

/// A piece must occur this often to be a token.
const MIN_COUNT: usize = 3;

/// How text is cut into pieces. Names, ids and numbers stand alone, so that they are the same piece in prose and in
/// JSON; lower-case words take the spaces around them; runs of punctuation, such as `": "`, are one piece.
const PIECES: &str = concat!(
    r"[a-z]+(?:_[a-z]+)+",
    r"| ?[a-z]+(?![a-z_]) ?",
    r"|[A-Z][A-Za-z]*[0-9]*",
    r"|[0-9]+",
    r"| ?[^\sA-Za-z0-9]+(?: [^\sA-Za-z0-9]+)* ?",
    r"|\n| +|\s"
);

/// Added tokens as (text, whether special); all follow the vocabulary, in this order.
const ADDED: [(&str, bool); 11] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<execution_result>", false),
    ("</execution_result>", false),
];

/// Pieces that may be rare in the dialogues but should be one token wherever they occur.
const ALWAYS: [&str; 24] = [
    "{\"",
    "\": \"",
    "\": ",
    "\", \"",
    ", \"",
    "\": {\"",
    "\"}",
    "\"}}",
    "}}",
    "{}",
    "\": \"\", \"",
    "\":\"",
    "\",\"",
    "\":",
    ",\"",
    "\": {}}",
    "[",
    "]",
    "\"]}",
    "\": [\"",
    "true",
    "false",
    "null",
    "error",
];

fn main() -> Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/policy");
    write(&dir, "tokenizer_config.json", &tokenizer_config())?;
    // The template is written by hand and only read here.
    let template = ChatTemplate::load(&dir).context("cannot read the chat template")?;
    let texts = texts(&template)?;
    let pieces = pieces(&texts)?;
    let tokenizer = tokenizer_json(&pieces);
    write(&dir, "tokenizer.json", &tokenizer)?;
    let id = |token: &str| tokenizer_id(&tokenizer, token);
    let (end_of_text, end_of_message) = (id("<|endoftext|>")?, id("<|im_end|>")?);
    write(
        &dir,
        "generation_config.json",
        &json!({
            "bos_token_id": end_of_text,
            "do_sample": true,
            "eos_token_id": [end_of_message, end_of_text],
            "pad_token_id": end_of_text,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
        }),
    )?;
    let n_tokens = pieces.len() + 256 + ADDED.len();
    write(&dir, "config.json", &model_config(n_tokens, end_of_text, end_of_message))?;
    eprintln!("{n_tokens} tokens in {}", dir.display());
    Ok(())
}

/// All that the policy reads and writes in some tasks.
fn texts(template: &ChatTemplate) -> Result<Vec<String>> {
    let extra = BTreeMap::new();
    let mut texts = Vec::new();
    let mut render = |messages: &[_], tools: &[Value]| -> Result<()> {
        let input = RenderInput {
            messages,
            tools,
            add_generation_prompt: false,
            enable_thinking: None,
            extra: &extra,
        };
        texts.push(template.render(&input)?);
        Ok(())
    };
    for row in world::tasks(SEED, &TASKS, 0) {
        let task = Task::parse(row)?;
        render(task.transcript.as_deref().unwrap_or_default(), &task.tools)?;
        for whitelist in [Whitelist::Called, Whitelist::Names, Whitelist::Full] {
            let mut options = EpisodeOptions::default();
            options.rehearsal.wording = Wording::Compact;
            options.rehearsal.whitelist = whitelist;
            options.rehearsal.few_shot = FewShot::All;
            for example in rehearsal_examples(&task, &options, |_, _| 0.5) {
                let answer = envace_model::chat::ChatMessage::text(
                    envace_model::chat::Speaker::Assistant,
                    example.output,
                );
                let [system, user] = example.prompt.messages();
                render(&[system, user, answer], &[])?;
            }
        }
    }
    Ok(texts)
}

/// The pieces that become tokens, in order of their bytes.
fn pieces(texts: &[String]) -> Result<Vec<String>> {
    let cutter: Tokenizer = parse_tokenizer(&tokenizer_json(&[]))?;
    let pre_tokenizer = cutter.get_pre_tokenizer().context("the tokenizer has no pre-tokenizer")?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |text: &str, n: usize| -> Result<()> {
        let mut pieces = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut pieces).map_err(anyhow::Error::msg)?;
        for (piece, _, _) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            *counts.entry(piece.to_owned()).or_default() += n;
        }
        Ok(())
    };
    let added = regex::Regex::new(&ADDED.map(|(text, _)| regex::escape(text)).join("|"))?;
    for text in texts {
        for part in added.split(text) {
            count(part, 1)?;
        }
    }
    let amounts: Vec<String> = AMOUNTS.iter().map(u32::to_string).collect();
    let lists: [&[&str]; 8] = [&PEOPLE, &DEVICES, &TICKETS, &ORDERS, &ITEMS, &TOPICS, &TEAMS, &ALWAYS];
    for word in lists.into_iter().flatten().copied().chain(amounts.iter().map(String::as_str)) {
        count(word, MIN_COUNT)?;
    }
    let bytes: BTreeSet<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    Ok(counts
        .into_iter()
        .filter(|(piece, n)| *n >= MIN_COUNT && !bytes.contains(piece))
        .map(|(piece, _)| piece)
        .collect())
}

fn tokenizer_json(pieces: &[String]) -> Value {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let words = bytes.into_iter().map(String::from).chain(pieces.iter().cloned());
    let vocab: serde_json::Map<String, Value> =
        words.zip(0..).map(|(word, id)| (word, Value::from(id))).collect();
    let first = vocab.len();
    let added: Vec<Value> = ADDED
        .iter()
        .enumerate()
        .map(|(index, (text, is_special))| {
            json!({
                "id": first + index, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": is_special
            })
        })
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": false},
            byte_level
        ]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": []
        }
    })
}

fn parse_tokenizer(value: &Value) -> Result<Tokenizer> {
    Tokenizer::from_bytes(value.to_string()).map_err(anyhow::Error::msg)
}

fn tokenizer_id(tokenizer: &Value, token: &str) -> Result<u64> {
    tokenizer["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|added| added["content"] == token)
        .and_then(|added| added["id"].as_u64())
        .with_context(|| format!("no such token: {token}"))
}

fn tokenizer_config() -> Value {
    json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "bos_token": null,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": null,
    })
}

/// About 1.4 million parameters.
fn model_config(n_tokens: usize, end_of_text: u64, end_of_message: u64) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_message,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 160,
        "initializer_range": 0.08,
        "intermediate_size": 480,
        "max_position_embeddings": 2048,
        "model_type": "qwen3",
        "num_attention_heads": 6,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": null,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": n_tokens,
    })
}

fn write(dir: &Path, name: &str, value: &Value) -> Result<()> {
    let path = dir.join(name);
    let text = serde_json::to_string_pretty(value)? + "\n";
    fs_err::write(path, text)?;
    Ok(())
}
