//! Kinds of values, and when two are equal.

use serde_json::Value;

/// The kinds that the leaderboard tells apart: whole numbers are no fractions, and truth values are no numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool,
    Int,
    Float,
    Str,
    List,
    Dict,
}

pub(super) fn kind(value: &Value) -> Kind {
    match value {
        Value::Null => Kind::Null,
        Value::Bool(_) => Kind::Bool,
        Value::Number(number) if number.is_f64() => Kind::Float,
        Value::Number(_) => Kind::Int,
        Value::String(_) => Kind::Str,
        Value::Array(_) => Kind::List,
        Value::Object(_) => Kind::Dict,
    }
}

/// Whether two values are equal as Python has it: numbers and truth values by their worth, all else within its kind.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        (Value::Null, Value::Null) => true,
        (Value::String(a), Value::String(b)) => a == b,
        _ => match (worth(a), worth(b)) {
            (Some(Worth::Whole(a)), Some(Worth::Whole(b))) => a == b,
            (Some(Worth::Fraction(a)), Some(Worth::Fraction(b))) => a == b,
            (Some(Worth::Whole(whole)), Some(Worth::Fraction(fraction)))
            | (Some(Worth::Fraction(fraction)), Some(Worth::Whole(whole))) => {
                // Exact also where a fraction cannot hold the whole number.
                whole as f64 == fraction && fraction as i128 == whole
            }
            _ => false,
        },
    }
}

enum Worth {
    Whole(i128),
    Fraction(f64),
}

fn worth(value: &Value) -> Option<Worth> {
    match value {
        Value::Bool(is_true) => Some(Worth::Whole(i128::from(*is_true))),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => Some(Worth::Whole(whole.into())),
            (_, Some(whole), _) => Some(Worth::Whole(whole.into())),
            (_, _, Some(fraction)) => Some(Worth::Fraction(fraction)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether `value` equals one of `accepted`.
pub(super) fn is_among(value: &Value, accepted: &[Value]) -> bool {
    accepted.iter().any(|one| equal(value, one))
}

/// Whether it is the empty text, which stands for "may be left out".
pub(super) fn is_blank(value: &Value) -> bool {
    value.as_str() == Some("")
}

/// A text as it is compared: in small letters, with `"` for `'`, and without spaces and ``,./-_*^``.
pub(super) fn normalized(text: &str) -> String {
    let kept: String = text.chars().filter(|letter| !" ,./-_*^".contains(*letter)).collect();
    kept.to_lowercase().replace('\'', "\"")
}

/// The same of a value that is a text; others stay as they are.
pub(super) fn normalized_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(normalized(text)),
        other => other.clone(),
    }
}

/// The only list an accepted value can be read as: a text is the list of its letters.
pub(super) fn as_list(value: &Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items.clone()),
        Value::String(text) => Some(text.chars().map(|letter| Value::String(letter.to_string())).collect()),
        _ => None,
    }
}

/// The whole number in a text, if it can be held.
pub(super) fn whole(text: &str) -> Option<Value> {
    let digits = without_underscores(text.trim())?;
    digits.parse::<i64>().map(Value::from).or_else(|_| digits.parse::<u64>().map(Value::from)).ok()
}

/// The fraction in a text, also of a whole number.
pub(super) fn fraction(text: &str) -> Option<Value> {
    let number: f64 = without_underscores(text.trim())?.parse().ok()?;
    serde_json::Number::from_f64(number).map(Value::Number)
}

/// Python lets single underscores stand between digits.
fn without_underscores(text: &str) -> Option<String> {
    let is_sound = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    is_sound.then(|| text.replace('_', ""))
}
