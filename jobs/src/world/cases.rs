use serde_json::{Value, json};

use super::Api;
use super::tools::Tool;
use crate::score::{Argument, BranchCase, Condition, ExpectedCall, ReplyCase, ResponseValue, ValueTest};

/// What an argument must be, by the world's own keys.
#[derive(Debug, Clone)]
pub(super) enum Expected {
    /// A text that the user said.
    Said(String),
    /// The field `key` of the response to call `call` of the same user turn.
    Seen { call: usize, key: &'static str },
    /// The field `key` of the response to call `call`, one of `tool`, of user turn `user_turn`.
    SeenBefore { user_turn: usize, call: usize, tool: Tool, key: &'static str },
}

/// What is expected of one user turn if the responses are of a certain kind.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    when: Vec<(usize, &'static str, ValueTest)>,
    calls: Vec<(Tool, Vec<Expected>)>,
    texts: Vec<String>,
    values: Vec<(usize, &'static str)>,
}

impl Case {
    /// A case that always applies and in which nothing is expected.
    pub fn new() -> Self {
        Self::default()
    }

    /// The field `key` of the response to call `call` must pass `test`.
    pub fn when(mut self, call: usize, key: &'static str, test: ValueTest) -> Self {
        self.when.push((call, key, test));
        self
    }

    /// Expects one more call; arguments in the order in which the tool declares them.
    pub fn call(mut self, tool: Tool, arguments: impl IntoIterator<Item = Expected>) -> Self {
        self.calls.push((tool, arguments.into_iter().collect()));
        self
    }

    /// The reply must hold `text`.
    pub fn says(mut self, text: &str) -> Self {
        self.texts.push(text.to_owned());
        self
    }

    /// The reply must hold the field `key` of the response to call `call`.
    pub fn tells(mut self, call: usize, key: &'static str) -> Self {
        self.values.push((call, key));
        self
    }

    /// The calls with their conditions, as `api` names things.
    pub fn calls(&self, api: Api) -> BranchCase {
        let when = self.when.iter().map(|(call, key, test)| Condition {
            call: *call,
            path: self.path(api, *call, key),
            test: test.clone(),
        });
        let calls = self.calls.iter().map(|(tool, arguments)| ExpectedCall {
            name: api.tool_name(*tool).to_owned(),
            arguments: tool
                .arguments()
                .iter()
                .zip(arguments)
                .map(|(name, expected)| {
                    (api.argument_name(*tool, name).to_owned(), self.argument(api, expected))
                })
                .collect(),
        });
        BranchCase { when: when.collect(), calls: calls.collect() }
    }

    /// What the reply must hold, as `api` names things.
    pub fn reply(&self, api: Api) -> ReplyCase {
        let value = |(call, key): &(usize, &'static str)| ResponseValue {
            call: *call,
            path: self.path(api, *call, key),
        };
        ReplyCase { texts: self.texts.clone(), values: self.values.iter().map(value).collect() }
    }

    fn argument(&self, api: Api, expected: &Expected) -> Argument {
        match expected {
            Expected::Said(text) => Argument::Is(json!(text)),
            Expected::Seen { call, key } => {
                Argument::From { call: *call, user_turn: None, path: self.path(api, *call, key) }
            }
            Expected::SeenBefore { user_turn, call, tool, key } => {
                Argument::From { call: *call, user_turn: Some(*user_turn), path: api.path(*tool, key) }
            }
        }
    }

    fn path(&self, api: Api, call: usize, key: &str) -> String {
        self.calls.get(call).map_or_else(|| format!("/{key}"), |(tool, _)| api.path(*tool, key))
    }
}

/// The value that the user said.
pub(super) fn said(text: &str) -> Expected {
    Expected::Said(text.to_owned())
}

/// The field `key` of the response to call `call` of the same user turn.
pub(super) fn seen(call: usize, key: &'static str) -> Expected {
    Expected::Seen { call, key }
}

/// Equal to `text`.
pub(super) fn is(text: &str) -> ValueTest {
    ValueTest::Is(json!(text))
}

/// There, and not equal to `text`.
pub(super) fn is_not(text: &str) -> ValueTest {
    ValueTest::IsNot(Value::from(text))
}

/// Puts before `cases` what is expected when a response is an error: no further calls, and a reply that says
/// sorry. Expected calls of the cases must be made one after the other.
pub(super) fn or_sorry(cases: Vec<Case>) -> Vec<Case> {
    let mut failures: Vec<Case> = Vec::new();
    let mut seen = Vec::new();
    for case in &cases {
        for last in 0..case.calls.len() {
            let calls = &case.calls[..=last];
            let mut failure = Case::new();
            failure.calls = calls.to_vec();
            failure.when = case.when.iter().filter(|(call, ..)| *call < last).cloned().collect();
            failure = failure.when(last, "error", ValueTest::Exists(true)).says("sorry");
            let shape = failure.calls(Api::Standard);
            if !seen.contains(&shape) {
                seen.push(shape);
                failures.push(failure);
            }
        }
    }
    failures.extend(cases);
    failures
}
