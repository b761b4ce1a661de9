//! JSON as Python's `json` module reads and writes it.
//!
//! Needed where texts must equal those of a reference written in Python (its parsers, its prompts), and for the
//! canonical form by which two argument texts are compared. It differs from `serde_json` in three ways: `NaN`,
//! `Infinity` and `-Infinity` are values, integers keep all their digits, and lone surrogates are read (as
//! U+FFFD). Of equal keys the last wins, at the place of the first.

mod reader;

use std::fmt::Write as _;

use serde_json::Value;

/// A JSON value, with Python's extras.
#[derive(Debug, Clone, PartialEq)]
pub enum PyValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer: its digits, with an optional minus sign.
    Int(String),
    /// Any other number; may be NaN or infinite.
    Float(f64),
    /// A text.
    Text(String),
    /// An array.
    List(Vec<Self>),
    /// An object, in the order written, each key once.
    Dict(Vec<(String, Self)>),
}

/// Why a text is no JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at byte {at}")]
pub struct PyJsonError {
    reason: &'static str,
    at: usize,
}

/// How [`PyValue::dumps`] writes.
#[derive(Debug, Clone, Copy)]
pub struct Dumps {
    /// Whether all but ASCII becomes `\u` escapes, in UTF-16 pairs.
    pub ensure_ascii: bool,
    /// Whether keys are sorted, by code point.
    pub sort_keys: bool,
    /// Between elements.
    pub item_separator: &'static str,
    /// Between a key and its value.
    pub key_separator: &'static str,
    /// Whether every element starts a line (`indent=0`).
    pub lines: bool,
}

impl Dumps {
    /// `json.dumps(value, ensure_ascii=False)`.
    pub const PLAIN: Self = Self {
        ensure_ascii: false,
        sort_keys: false,
        item_separator: ", ",
        key_separator: ": ",
        lines: false,
    };
    /// `json.dumps(value)`.
    pub const ASCII: Self = Self { ensure_ascii: true, ..Self::PLAIN };
    /// `json.dumps(value, sort_keys=True, separators=(",", ":"))`.
    pub const CANONICAL: Self =
        Self { ensure_ascii: true, sort_keys: true, item_separator: ",", key_separator: ":", lines: false };
    /// `json.dumps(value, indent=0)`.
    pub const LINES: Self = Self { ensure_ascii: true, item_separator: ",", lines: true, ..Self::PLAIN };
}

impl PyValue {
    /// Reads `text`, which must hold one value and white space.
    ///
    /// # Errors
    /// [`PyJsonError`] says what is wrong at which byte.
    pub fn parse(text: &str) -> Result<Self, PyJsonError> {
        reader::read(text)
    }

    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Dict(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Writes the value on one line, or on one line per element.
    pub fn dumps(&self, style: Dumps) -> String {
        let mut out = String::new();
        self.write(style, &mut out);
        out
    }

    fn write(&self, style: Dumps, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(digits) => out.push_str(digits),
            Self::Float(value) => out.push_str(&float_repr(*value)),
            Self::Text(text) => write_text(text, style.ensure_ascii, out),
            Self::List(items) => write_all(style, out, ('[', ']'), items, |item, out| item.write(style, out)),
            Self::Dict(entries) => {
                let mut entries: Vec<&(String, Self)> = entries.iter().collect();
                if style.sort_keys {
                    entries.sort_by(|left, right| left.0.cmp(&right.0));
                }
                write_all(style, out, ('{', '}'), entries, |(key, value), out| {
                    write_text(key, style.ensure_ascii, out);
                    out.push_str(style.key_separator);
                    value.write(style, out);
                });
            }
        }
    }
}

impl From<&Value> for PyValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) if number.is_f64() => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            Value::Number(number) => Self::Int(number.to_string()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(entries) => {
                Self::Dict(entries.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect())
            }
        }
    }
}

/// The form in which two argument texts are equal exactly when they mean the same; `None` if `text` is no JSON.
///
/// Keys are sorted; `1` and `1.0` differ.
pub fn canonical(text: &str) -> Option<String> {
    PyValue::parse(text).ok().map(|value| value.dumps(Dumps::CANONICAL))
}

fn write_all<T>(
    style: Dumps,
    out: &mut String,
    (open, close): (char, char),
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T, &mut String),
) {
    out.push(open);
    let mut is_empty = true;
    for item in items {
        if !is_empty {
            out.push_str(style.item_separator);
        }
        if style.lines {
            out.push('\n');
        }
        is_empty = false;
        write(item, out);
    }
    if style.lines && !is_empty {
        out.push('\n');
    }
    out.push(close);
}

fn write_text(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ if character < ' ' || (ensure_ascii && character > '~') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// A float as Python's `repr` writes it: the shortest digits that read back, in exponent form below 1e-4 and
/// from 1e16 on.
fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    } else {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { format!("{plain}.0") }
    }
}

#[cfg(test)]
mod tests;
