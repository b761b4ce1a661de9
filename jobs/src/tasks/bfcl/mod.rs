//! Prompts of the Berkeley function calling leaderboard (BFCL), version 4, single-turn and multi-turn.
//!
//! The possible answers of single-turn prompts become [`Bfcl`](crate::score::GraderKind::Bfcl) graders, which check calls
//! by the leaderboard's rules. Those of multi-turn prompts become [`Calls`](crate::score::GraderKind::Calls) graders:
//! these compare calls by our rules, instead of the state of the leaderboard's programs, so that a score on them is none
//! of the leaderboard. Categories without expected calls are graded by whether calls
//! are made at all, and prompts without an answer file by whether the calls made are valid.
//!
//! A task has one list of tools from start to end. Where the leaderboard holds a function back and offers it in a
//! user turn of its own without a message, the function is offered from the start, and the calls expected in that
//! user turn are expected in the one before.
//!
//! Not taken: agentic categories (web search, memory), and prompts that hold several user messages at once.

mod multi_turn;
mod python_call;
mod single_turn;

use std::collections::BTreeMap;
use std::path::Path;

use envace_model::chat::{ChatMessage, Speaker};
use envace_schemas::Decimal;
use envace_schemas::tables::TaskRow;
use serde::Deserialize;
use serde_json::{Value, json};

use super::records::json_reason;
use super::{ImportError, ImportOptions};
use crate::score::{GraderKind, GraderSpec, json_schema};

/// Documentation file of each class of functions.
const DOC_FILES: &[(&str, &str)] = &[
    ("GorillaFileSystem", "gorilla_file_system.json"),
    ("MathAPI", "math_api.json"),
    ("MessageAPI", "message_api.json"),
    ("TwitterAPI", "posting_api.json"),
    ("TicketAPI", "ticket_api.json"),
    ("TradingBot", "trading_bot.json"),
    ("TravelAPI", "travel_booking.json"),
    ("VehicleControlAPI", "vehicle_control.json"),
];
const DOC_FOLDER: &str = "multi_turn_func_doc";
const ANSWER_FOLDER: &str = "possible_answer";

/// The files that belong to a file of prompts.
#[derive(Debug, Clone, Default)]
pub struct Companions {
    /// The possible answers. `None`: there are none, and tasks are graded by the validity of their calls alone.
    pub answers: Option<Vec<u8>>,
    /// Function documentation by file name, such as `math_api.json`: needed for multi-turn prompts.
    pub docs: BTreeMap<String, Vec<u8>>,
}

impl Companions {
    /// Whether no file is given.
    pub fn is_empty(&self) -> bool {
        self.answers.is_none() && self.docs.is_empty()
    }

    /// Reads the files that belong to the prompts at `path`, where the leaderboard keeps them: the answers in
    /// `possible_answer/` beside the file or beside its folder, the documentation in `multi_turn_func_doc/` of a
    /// folder above. What is not there is left out.
    ///
    /// # Errors
    /// [`ImportError::Read`] if a file is there and cannot be read.
    pub fn beside(path: &Path) -> Result<Self, ImportError> {
        let read = |path: &Path| {
            fs_err::read(path).map_err(|source| ImportError::Read { path: path.to_owned(), source })
        };
        let mut companions = Self::default();
        let folders: Vec<&Path> = path.ancestors().skip(1).collect();
        if let Some(name) = path.file_name() {
            let places = folders.iter().take(2).map(|folder| folder.join(ANSWER_FOLDER).join(name));
            let place = places.into_iter().find(|place| place.is_file());
            companions.answers = place.map(|place| read(&place)).transpose()?;
        }
        let docs = folders.iter().map(|folder| folder.join(DOC_FOLDER)).find(|folder| folder.is_dir());
        for (_, name) in DOC_FILES {
            let file = docs.as_ref().map(|folder| folder.join(name)).filter(|file| file.is_file());
            if let Some(file) = file {
                companions.docs.insert((*name).to_owned(), read(&file)?);
            }
        }
        Ok(companions)
    }
}

/// The companions of a file of prompts, parsed.
#[derive(Debug)]
pub(super) struct Library {
    /// Ground truth by id. `None`: there is no file of them.
    answers: Option<BTreeMap<String, Value>>,
    /// Functions of each class.
    functions: BTreeMap<&'static str, Vec<Value>>,
}

impl Library {
    pub(super) fn new(companions: &Companions) -> Result<Self, ImportError> {
        #[derive(Deserialize)]
        struct Answer {
            id: String,
            ground_truth: Value,
        }
        let answers = companions.answers.as_ref().map(|bytes| json_lines::<Answer>(ANSWER_FOLDER, bytes));
        let answers = answers.transpose()?.map(|answers| {
            answers.into_iter().map(|answer| (answer.id, answer.ground_truth)).collect::<BTreeMap<_, _>>()
        });
        let mut functions = BTreeMap::new();
        for (class, file) in DOC_FILES {
            if let Some(bytes) = companions.docs.get(*file) {
                functions.insert(*class, json_lines::<Value>(file, bytes)?);
            }
        }
        Ok(Self { answers, functions })
    }
}

fn json_lines<T: serde::de::DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<Vec<T>, ImportError> {
    let lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let parse = |(index, line): (usize, &[u8])| {
        serde_json::from_slice(line).map_err(|source| ImportError::Companion {
            file: file.to_owned(),
            line: index + 1,
            source,
        })
    };
    lines.map(parse).collect()
}

#[derive(Deserialize)]
struct Prompt {
    id: String,
    question: Vec<Vec<Message>>,
    #[serde(default)]
    function: Option<Value>,
    #[serde(default)]
    involved_classes: Vec<String>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// What the format-specific part makes of a prompt.
struct Parts {
    opening: Vec<ChatMessage>,
    later_user_turns: Vec<String>,
    functions: Vec<Value>,
    graders: Vec<GraderSpec>,
}

/// One prompt as a row.
pub(super) fn row(text: &str, library: &Library, options: &ImportOptions) -> Result<TaskRow, String> {
    let prompt: Prompt = serde_json::from_str(text).map_err(|error| json_reason("not a prompt", &error))?;
    let category = category(&prompt.id)?.to_owned();
    if category.starts_with("memory") || category.starts_with("web_search") {
        return Err(format!("agentic categories are not taken: {category}"));
    }
    let answer = match &library.answers {
        _ if has_no_answers(&category) => None,
        None => None,
        Some(answers) => Some(answers.get(&prompt.id).ok_or_else(|| "it has no possible answer".to_owned())?),
    };
    let parts = match &prompt.function {
        Some(functions) => single_turn::parts(&prompt, &category, functions, answer)?,
        None => multi_turn::parts(&prompt, library, answer)?,
    };
    let json = |value: Value| value.to_string();
    let graders = serde_json::to_string(&parts.graders).map_err(|error| error.to_string())?;
    let opening = serde_json::to_string(&parts.opening).map_err(|error| error.to_string())?;
    Ok(TaskRow {
        task_id: prompt.id,
        split: options.split.clone().unwrap_or_else(|| category.clone()),
        source: options.source.clone().unwrap_or_else(|| format!("bfcl:{category}")),
        family: Some(category),
        opening,
        tools: json(parts.functions.iter().map(tool).collect()),
        later_user_turns: json(parts.later_user_turns.into()),
        recorded_calls: "[]".to_owned(),
        transcript: None,
        graders,
        checklist: None,
        world: None,
        task_hash: String::new(),
    })
}

/// The category in an id: all before the last underscore, after which stand numbers joined by dashes.
fn category(id: &str) -> Result<&str, String> {
    let split = id.rsplit_once('_').filter(|(category, number)| {
        !category.is_empty() && number.starts_with(|c: char| c.is_ascii_digit())
    });
    split.map(|(category, _)| category).ok_or_else(|| format!("its id does not name a category: {id}"))
}

fn has_no_answers(category: &str) -> bool {
    category.ends_with("irrelevance") || category.ends_with("relevance")
}

/// The declaration of a documented function as chat templates take it, its types those of JSON schema. What is
/// said of the response is left out.
fn tool(function: &Value) -> Value {
    let parameters = function.get("parameters").map_or_else(|| json!({"type": "object"}), json_schema);
    json!({"type": "function", "function": {
        "name": function.get("name").cloned().unwrap_or_default(),
        "description": function.get("description").cloned().unwrap_or_else(|| json!("")),
        "parameters": parameters,
    }})
}

/// The leading system messages and the one user message of a user turn.
fn opening(messages: &[Message]) -> Result<Vec<ChatMessage>, String> {
    let chat = |message: &Message| match message.role.as_str() {
        "system" => Ok(ChatMessage::text(Speaker::System, &message.content)),
        "user" => Ok(ChatMessage::text(Speaker::User, &message.content)),
        other => Err(format!("its prompt holds a message of another speaker: {other}")),
    };
    let opening: Vec<ChatMessage> = messages.iter().map(chat).collect::<Result<_, _>>()?;
    let n_users = opening.iter().filter(|message| message.role == Speaker::User).count();
    if n_users != 1 || opening.last().is_none_or(|message| message.role != Speaker::User) {
        return Err(format!("its prompt must hold one user message, at the end: {n_users}"));
    }
    Ok(opening)
}

fn spec(item: &str, user_turn: usize, weight: Decimal, is_required: bool, kind: GraderKind) -> GraderSpec {
    GraderSpec { item: item.to_owned(), user_turn, weight, is_required, kind }
}
