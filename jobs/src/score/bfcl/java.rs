//! Values in the notation of Java, as far as the leaderboard reads it. What does not fit stays the text it is.

use serde_json::{Map, Value};

use super::notation::{Pattern, fits, pattern, truth};
use super::values::{fraction, whole};

pattern!(WHOLE, r"^-?\d+\n?$");
pattern!(LONG, r"^-?\d+[lL]\n?$");
pattern!(FLOAT, r"^-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]\n?$");
pattern!(DOUBLE, r"^-?\d+(\.\d+)?([eE][+-]?\d+)?\n?$");
pattern!(LIST_OF, r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)");
pattern!(LIST_BLOCK, r"(?s)new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}");
pattern!(LIST_ADD, r"add\((.+?)\)");
pattern!(LIST_EMPTY, r"new\s+ArrayList<\w*>\(\)");
pattern!(ARRAY, r"new\s+\w+\[\]\s*\{(.*?)\}");
pattern!(MAP_BLOCK, r"(?s)new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}");
pattern!(MAP_PUT, r#"put\("(.*?)",\s*(.*?)\)"#);
pattern!(MAP_EMPTY, r"new\s+HashMap<.*?>\s*\(\)");

fn group<'t>(pattern: &Pattern, text: &'t str) -> Option<&'t str> {
    pattern.as_ref()?.captures(text)?.get(1).map(|found| found.as_str())
}

/// The value that `text` is for a parameter of this type; `items` is that of its items.
pub(super) fn value(text: &str, type_name: &str, items: Option<&str>) -> Value {
    let read = match type_name {
        "byte" | "short" | "integer" => fits(&WHOLE, text).then(|| whole(text)).flatten(),
        "long" => fits(&LONG, text).then(|| whole(without_suffix(text))).flatten(),
        "float" => fits(&FLOAT, text).then(|| fraction(without_suffix(text))).flatten(),
        "double" => fits(&DOUBLE, text).then(|| fraction(text)).flatten(),
        "boolean" => truth(text),
        "ArrayList" => list(text, items),
        "Array" => array(text, items),
        "HashMap" => map(text),
        _ => None,
    };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn without_suffix(text: &str) -> &str {
    let text = text.trim_end_matches('\n');
    text.char_indices().next_back().and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

fn list(text: &str, items: Option<&str>) -> Option<Value> {
    let item = |text: &str| match items {
        Some("char" | "String") => Value::String(inside(text).to_owned()),
        Some(items) => value(text, items, None),
        None => untyped(text),
    };
    if let Some(inner) = group(&LIST_OF, text) {
        return Some(inner.split(',').map(|text| item(text.trim())).collect());
    }
    if let Some(inner) = group(&LIST_BLOCK, text) {
        let added = LIST_ADD.as_ref()?.captures_iter(inner).filter_map(|found| found.get(1));
        return Some(added.map(|found| item(found.as_str().trim())).collect());
    }
    fits(&LIST_EMPTY, text).then(|| Value::Array(Vec::new()))
}

/// Without the first and the last letter, whatever they are.
fn inside(text: &str) -> &str {
    let mut letters = text.chars();
    letters.next();
    letters.next_back();
    letters.as_str()
}

fn array(text: &str, items: Option<&str>) -> Option<Value> {
    let parts = group(&ARRAY, text)?.split(',').map(str::trim).filter(|part| !part.is_empty());
    // Texts keep their quotes here, unlike in a list.
    Some(parts.map(|part| items.map_or_else(|| untyped(part), |items| value(part, items, None))).collect())
}

fn map(text: &str) -> Option<Value> {
    let Some(inner) = group(&MAP_BLOCK, text) else {
        return fits(&MAP_EMPTY, text).then(|| Value::Object(Map::new()));
    };
    let put = MAP_PUT.as_ref()?.captures_iter(inner);
    let entries = put.filter_map(|found| Some((found.get(1)?.as_str(), found.get(2)?.as_str())));
    Some(Value::Object(entries.map(|(key, value)| (key.to_owned(), untyped(value.trim()))).collect()))
}

/// A value whose type is not declared.
fn untyped(text: &str) -> Value {
    if let Some(truth) = truth(text) {
        return truth;
    }
    if text.len() > 1 && text.starts_with('"') && text.ends_with('"') {
        return Value::String(inside(text).to_owned());
    }
    let read = if fits(&LONG, text) {
        whole(without_suffix(text))
    } else if fits(&FLOAT, text) {
        fraction(without_suffix(text))
    } else {
        whole(text).or_else(|| fraction(text))
    };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}
