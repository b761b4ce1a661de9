//! One question to a judge, and what identifies it.

use envace_schemas::tables::JudgeCallRow;
use serde_json::{Map, Value, json};

use super::answer;
use crate::config::JudgeConfig;

/// Which vote on which item of which state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuestionKey {
    pub task_id: String,
    pub sample: i32,
    pub user_turn: i32,
    pub grader: &'static str,
    pub item: String,
    pub turn: i32,
    pub vote: u32,
}

/// A question and the request that puts it.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub key: QuestionKey,
    /// Hex digest of what is asked and of the vote.
    pub hash: String,
    /// The request, without the form of the answer.
    pub request: Map<String, Value>,
}

impl Question {
    /// A question of `prompt`.
    pub fn new(key: QuestionKey, prompt: &str, config: &JudgeConfig, extra: &Map<String, Value>) -> Self {
        let request = json!({
            "model": config.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": config.temperature,
            "top_p": config.top_p,
            "max_tokens": config.max_tokens,
        });
        let mut request = match request {
            Value::Object(request) => request,
            _ => Map::new(),
        };
        request.extend(extra.iter().map(|(key, value)| (key.clone(), value.clone())));
        // How the form is asked for may change from server to server; that it is this form does not.
        let asked = json!({"request": request, "schema": answer::schema(), "vote": key.vote});
        let hash = blake3::hash(asked.to_string().as_bytes()).to_hex().to_string();
        Self { key, hash, request }
    }

    /// The row of a try, as it stands for this question.
    pub fn row(&self, tried: &JudgeCallRow) -> JudgeCallRow {
        let QuestionKey { task_id, sample, user_turn, grader, item, turn, vote } = self.key.clone();
        JudgeCallRow {
            task_id,
            sample,
            user_turn,
            grader: grader.to_owned(),
            item,
            turn,
            vote: i32::try_from(vote).unwrap_or(i32::MAX),
            ..tried.clone()
        }
    }
}
