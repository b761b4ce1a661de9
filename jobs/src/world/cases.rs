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

/// What is expected where the user names an id that is not stored: the first call may be answered with an error, and
/// then nothing else is called and the reply says sorry.
///
/// Only there. Where the id is stored, an imagined error fits no case and leaves the user turn ungraded; graded, it
/// would be the easiest response to act on, and the rehearsal role would learn to give no other.
pub(super) fn or_sorry(cases: Vec<Case>) -> Vec<Case> {
    let mut all = Vec::new();
    if let Some(first) = cases.first().and_then(|case| case.calls.first()) {
        let failed = Case { calls: vec![first.clone()], ..Case::new() };
        all.push(failed.when(0, "error", ValueTest::Exists(true)).says("sorry"));
    }
    all.extend(cases);
    all
}
