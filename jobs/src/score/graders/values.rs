//! When two values, or a value and a text, count as the same.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Number, Value};

/// Longest value shown in a reason, in characters.
const SHOWN_CHARS: usize = 60;

/// Whether `found` equals `expected`: numbers by value, texts without case and without space at the ends (unless
/// `exact_text`), lists in order, objects by key.
pub(super) fn same(found: &Value, expected: &Value, exact_text: bool) -> bool {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => same_number(found, expected),
        (Value::String(found), Value::String(expected)) => {
            found == expected || (!exact_text && folded(found) == folded(expected))
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| same(found, expected, exact_text))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && found.iter().all(|(key, value)| {
                    expected.get(key).is_some_and(|expected| same(value, expected, exact_text))
                })
        }
        _ => found == expected,
    }
}

fn same_number(found: &Number, expected: &Number) -> bool {
    let whole = |number: &Number| number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    match (whole(found), whole(expected)) {
        (Some(found), Some(expected)) => found == expected,
        _ => found.as_f64() == expected.as_f64(),
    }
}

fn folded(text: &str) -> String {
    text.trim().to_lowercase()
}

/// Whether `text` occurs in `reply`, without case; runs of space count as one.
///
/// A number at an end of `text` must be the whole number there: `17` does not occur in `170`, `5` not in `2.5`.
pub(super) fn occurs(reply: &str, text: &str) -> bool {
    let (reply, text) = (spaced(reply), spaced(text));
    if text.is_empty() {
        return true;
    }
    reply.match_indices(&text).any(|(start, found)| {
        let (before, after) = (&reply[..start], &reply[start + found.len()..]);
        let begins_inside = text.starts_with(|c: char| c.is_ascii_digit()) && ends_in_number(before);
        let ends_inside = text.ends_with(|c: char| c.is_ascii_digit()) && starts_in_number(after);
        !begins_inside && !ends_inside
    })
}

fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Whether a digit that follows `text` would continue a number of it.
fn ends_in_number(text: &str) -> bool {
    let mut chars = text.chars().rev();
    match chars.next() {
        Some('.' | ',') => chars.next().is_some_and(|c| c.is_ascii_digit()),
        last => last.is_some_and(|c| c.is_ascii_digit()),
    }
}

/// Whether `text`, after a digit, continues its number.
fn starts_in_number(text: &str) -> bool {
    let mut chars = text.chars();
    match chars.next() {
        Some('.' | ',') => chars.next().is_some_and(|c| c.is_ascii_digit()),
        first => first.is_some_and(|c| c.is_ascii_digit()),
    }
}

/// The numbers written in `text`, with or without thousands separators; digits inside a word are none.
pub(super) fn numbers(text: &str) -> Vec<f64> {
    static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?").ok()
    });
    let Some(pattern) = NUMBER.as_ref() else { return Vec::new() };
    let mut found = Vec::new();
    for number in pattern.find_iter(text) {
        let mut before = text[..number.start()].chars().rev();
        let sign = before.next();
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        if is_word(sign) {
            continue;
        }
        let digits = number.as_str().replace(',', "");
        let Ok(value) = digits.parse::<f64>() else { continue };
        // A minus between two words or numbers is a dash: `3-5` is 3 and 5.
        let is_negative = matches!(sign, Some('-' | '\u{2212}')) && !is_word(before.next());
        found.push(if is_negative { -value } else { value });
    }
    found
}

/// Whether some number in `text` is within `tolerance` of `value`; rounding of decimal fractions is forgiven.
pub(super) fn number_occurs(text: &str, value: f64, tolerance: f64) -> bool {
    let slack = 1e-9 * value.abs().max(1.0);
    numbers(text).iter().any(|number| (number - value).abs() <= tolerance + slack)
}

/// The value as JSON, shortened for a reason.
pub(super) fn shown(value: &Value) -> String {
    shortened(&value.to_string())
}

/// `text` cut to a length that fits a reason.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equality_by_value() {
        let cases: &[(Value, Value, bool, bool)] = &[
            (json!(1), json!(1.0), true, true),
            (json!(1), json!("1"), false, false),
            (json!(1), json!(true), false, false),
            (json!(null), json!(null), true, true),
            (json!(" New York"), json!("new york "), true, false),
            (json!("a b"), json!("ab"), false, false),
            (json!(["A", 2]), json!(["a", 2.0]), true, false),
            (json!([1, 2]), json!([2, 1]), false, false),
            (json!({"a": 1, "b": 2}), json!({"b": 2.0, "a": 1}), true, true),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false, false),
            (json!(9_007_199_254_740_993_i64), json!(9_007_199_254_740_992_i64), false, false),
            (json!(18_446_744_073_709_551_615_u64), json!(-1), false, false),
        ];
        for (a, b, tolerant, exact) in cases {
            assert_eq!(same(a, b, false), *tolerant, "{a} {b}");
            assert_eq!(same(b, a, false), *tolerant, "{b} {a}");
            assert_eq!(same(a, b, true), *exact, "exact {a} {b}");
        }
    }

    #[test]
    fn texts_in_replies() {
        let cases: &[(&str, &str, bool)] = &[
            ("Your order O1 is open.", "o1", true),
            ("Your order O17 is open.", "O1", false),
            ("It costs 170 euros", "17", false),
            ("It costs 2.5 euros", "5", false),
            ("It costs 1,500 euros", "1", false),
            ("It costs 5.", "5", true),
            ("3, 5", "3", true),
            ("refunded", "refund", true),
            ("New\n  York", "new york", true),
            ("anything", " ", true),
            ("", "x", false),
            ("155 and 5", "5", true),
        ];
        for (reply, text, expected) in cases {
            assert_eq!(occurs(reply, text), *expected, "{text:?} in {reply:?}");
        }
    }

    #[test]
    fn numbers_in_replies() {
        let cases: &[(&str, &[f64])] = &[
            ("1,234.50 and $-3, T17, x_4", &[1234.5, -3.0]),
            ("3-5 or -7 or \u{2212}2", &[3.0, 5.0, -7.0, -2.0]),
            ("1,2,3", &[1.0, 2.0, 3.0]),
            ("1,234,567 of 12,345", &[1_234_567.0, 12_345.0]),
            ("1e3%, .5.", &[1000.0, 0.5]),
            ("ends with 42.", &[42.0]),
            ("none", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(numbers(text), *expected, "{text}");
        }
        assert!(number_occurs("0.3", 0.1 + 0.2, 0.0));
        assert!(number_occurs("about 99", 100.0, 1.0));
        assert!(!number_occurs("about 98", 100.0, 1.0));
    }
}
