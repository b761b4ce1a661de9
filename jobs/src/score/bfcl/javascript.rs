//! Values in the notation of JavaScript, as far as the leaderboard reads it. What does not fit stays the text it is.

use serde_json::{Map, Value};

use super::notation::{fits, pattern, truth};
use super::values::{fraction, whole};

pattern!(WHOLE, r"^-?\d+\n?$");
pattern!(FLOAT, r"^-?\d+(\.\d+)?\n?$");
pattern!(BIGINT, r"^-?\d+n\n?$");
pattern!(
    TABLE,
    r"^(?:\[\s*\[.*?\]\s*(?:,\s*\[.*?\]\s*)*\]|\bnew\s+Array\(\s*\[.*?\]\s*(?:,\s*\[.*?\]\s*)*\))"
);
pattern!(BRACKETS, r"\[(.*?)\]");
pattern!(ARRAY, r"^(?:\[(.*?)\]|\bnew\s+Array\((.*?)\))");
pattern!(DICT, r"^\{(.*?)\}");

/// The value that `text` is for a parameter of this type; `items` is that of its items.
pub(super) fn value(text: &str, type_name: &str, items: Option<&str>) -> Value {
    let read = match type_name {
        "String" => quoted(text).map(|inner| Value::String(inner.to_owned())),
        "integer" => fits(&WHOLE, text).then(|| whole(text)).flatten(),
        "float" => fits(&FLOAT, text).then(|| fraction(text)).flatten(),
        "Bigint" => {
            fits(&BIGINT, text).then(|| whole(text.trim_end_matches('\n').trim_end_matches('n'))).flatten()
        }
        "Boolean" => truth(text),
        "array" => array(text.trim(), items),
        "dict" => dict(text.trim()),
        _ => None,
    };
    match (read, type_name) {
        (Some(value), _) => value,
        (None, "array" | "dict") => Value::String(text.trim().to_owned()),
        (None, _) => Value::String(text.to_owned()),
    }
}

/// What stands between two quotes of one kind. A single quote alone is its own pair, with nothing in it.
fn quoted(text: &str) -> Option<&str> {
    let is_paired = |quote: char| text.starts_with(quote) && text.ends_with(quote);
    if !is_paired('"') && !is_paired('\'') {
        return None;
    }
    Some(text.get(1..text.len().saturating_sub(1).max(1)).unwrap_or_default())
}

/// A value whose type is not declared.
fn untyped(text: &str) -> Value {
    let text = text.trim();
    if let Some(truth) = truth(text) {
        return truth;
    }
    if let Some(inner) = quoted(text) {
        return Value::String(inner.to_owned());
    }
    whole(text).or_else(|| fraction(text)).unwrap_or_else(|| Value::String(text.to_owned()))
}

fn array(text: &str, items: Option<&str>) -> Option<Value> {
    if let Some(table) = TABLE.as_ref()?.find(text) {
        let rows = BRACKETS.as_ref()?.captures_iter(table.as_str()).filter_map(|found| found.get(1));
        let row = |(index, inner): (usize, &str)| {
            let inner = inner.trim();
            // The first row begins with the bracket of the whole.
            let inner = if index == 0 { inner.strip_prefix('[').unwrap_or(inner) } else { inner };
            inner.split(',').map(untyped).collect::<Value>()
        };
        return Some(rows.map(|found| found.as_str()).enumerate().map(row).collect());
    }
    let found = ARRAY.as_ref()?.captures(text)?;
    let inner = found.get(1).or_else(|| found.get(2))?.as_str().trim();
    if inner.is_empty() {
        return Some(Value::Array(Vec::new()));
    }
    let item = |text: &str| items.map_or_else(|| untyped(text), |items| value(text.trim(), items, None));
    Some(inner.split(',').map(item).collect())
}

fn dict(text: &str) -> Option<Value> {
    if text == "{}" {
        return Some(Value::Object(Map::new()));
    }
    let inner = DICT.as_ref()?.captures(text)?.get(1)?.as_str();
    let mut entries = Map::new();
    for (key, written) in pairs(inner) {
        let (key, written) = (key.trim().trim_matches(['\'', '"']), written.trim());
        let is_between = |open: char, close: char| written.starts_with(open) && written.ends_with(close);
        let value = if is_between('[', ']') {
            array(written, None)
        } else if is_between('{', '}') {
            dict(written)
        } else {
            Some(untyped(written.trim_matches(['\'', '"'])))
        };
        entries.insert(key.to_owned(), value.unwrap_or_else(|| Value::String(written.to_owned())));
    }
    Some(Value::Object(entries))
}

/// Keys and values: a key ends at a colon, a value at a comma after which another key comes.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once(':') {
        if key.is_empty() {
            rest = after;
            continue;
        }
        let after = after.trim_start();
        let is_end = |(at, _): &(usize, char)| {
            let next = after.get(at + 1..).unwrap_or_default();
            let until_comma = next.split(',').next().unwrap_or_default();
            // At least one letter before the colon.
            until_comma.char_indices().skip(1).any(|(_, letter)| letter == ':')
        };
        let end = after.char_indices().filter(|(_, letter)| *letter == ',').find(is_end);
        match end {
            Some((at, _)) => {
                pairs.push((key, after.get(..at).unwrap_or_default()));
                rest = after.get(at + 1..).unwrap_or_default().trim_start();
            }
            None => {
                pairs.push((key, after));
                break;
            }
        }
    }
    pairs
}
