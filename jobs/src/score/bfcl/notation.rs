//! What the notations of Java and JavaScript have in common.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// A regular expression, made when it is first used.
pub(super) type Pattern = LazyLock<Option<Regex>>;

macro_rules! pattern {
    ($name:ident, $text:literal) => {
        static $name: std::sync::LazyLock<Option<regex::Regex>> =
            std::sync::LazyLock::new(|| regex::Regex::new($text).ok());
    };
}
pub(super) use pattern;

/// Whether the pattern is found in the text.
pub(super) fn fits(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(text))
}

pub(super) fn truth(text: &str) -> Option<Value> {
    match text {
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        _ => None,
    }
}
