//! JSON as Python's `json` module reads and writes it.
//!
//! Needed where texts must equal those of a reference written in Python (its parsers, its prompts), and for the
//! canonical form by which two argument texts are compared. It differs from `serde_json` in three ways: `NaN`,
//! `Infinity` and `-Infinity` are values, integers keep all their digits, and lone surrogates are read (as
//! U+FFFD). Of equal keys the last wins, at the place of the first.

use std::fmt::Write as _;

use serde_json::Value;

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 128;

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
        let mut reader = Reader { text, at: 0 };
        reader.skip_space();
        let value = reader.value(0)?;
        reader.skip_space();
        if reader.at == text.len() { Ok(value) } else { Err(reader.error("extra data")) }
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

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, reason: &'static str) -> PyJsonError {
        PyJsonError { reason, at: self.at }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over `word` if it comes next.
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.rest().starts_with(word);
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<PyValue, PyJsonError> {
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deep"));
        }
        match self.peek() {
            Some(b'{') => self.dict(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(PyValue::Text(self.string()?)),
            _ => {
                for (word, value) in [
                    ("null", PyValue::Null),
                    ("true", PyValue::Bool(true)),
                    ("false", PyValue::Bool(false)),
                    ("NaN", PyValue::Float(f64::NAN)),
                    ("Infinity", PyValue::Float(f64::INFINITY)),
                    ("-Infinity", PyValue::Float(f64::NEG_INFINITY)),
                ] {
                    if self.takes(word) {
                        return Ok(value);
                    }
                }
                self.number()
            }
        }
    }

    fn dict(&mut self, depth: usize) -> Result<PyValue, PyJsonError> {
        self.at += 1;
        let mut entries: Vec<(String, PyValue)> = Vec::new();
        self.skip_space();
        if self.takes("}") {
            return Ok(PyValue::Dict(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.takes(":") {
                return Err(self.error("expected `:`"));
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            match entries.iter_mut().find(|(name, _)| *name == key) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
            self.skip_space();
            if self.takes("}") {
                return Ok(PyValue::Dict(entries));
            }
            if !self.takes(",") {
                return Err(self.error("expected `,`"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<PyValue, PyJsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.takes("]") {
            return Ok(PyValue::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.takes("]") {
                return Ok(PyValue::List(items));
            }
            if !self.takes(",") {
                return Err(self.error("expected `,`"));
            }
        }
    }

    fn number(&mut self) -> Result<PyValue, PyJsonError> {
        let start = self.at;
        self.takes("-");
        let whole = self.digits();
        if whole == 0 || (whole > 1 && self.text.as_bytes().get(self.at - whole) == Some(&b'0')) {
            self.at = start;
            return Err(self.error("expected a value"));
        }
        let mut is_int = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            is_int = false;
            if self.digits() == 0 {
                return Err(self.error("expected a digit"));
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            is_int = false;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("expected a digit"));
            }
        }
        let written = self.text.get(start..self.at).unwrap_or("");
        if is_int {
            return Ok(PyValue::Int(if written == "-0" { "0" } else { written }.to_owned()));
        }
        written.parse().map(PyValue::Float).map_err(|_| self.error("not a number"))
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn string(&mut self) -> Result<String, PyJsonError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(character) = self.rest().chars().next() else {
                return Err(self.error("unterminated text"));
            };
            self.at += character.len_utf8();
            match character {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                _ if character < ' ' => return Err(self.error("control character in a text")),
                _ => text.push(character),
            }
        }
    }

    fn escape(&mut self) -> Result<char, PyJsonError> {
        let Some(kind) = self.peek() else { return Err(self.error("unterminated text")) };
        let plain = match kind {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.error("unknown escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, PyJsonError> {
        let first = self.unit()?;
        if (0xd800..0xdc00).contains(&first) && self.rest().starts_with("\\u") {
            let back = self.at;
            self.at += 1;
            let second = self.unit()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// The four hexadecimal digits after a `u`, which comes next.
    fn unit(&mut self) -> Result<u32, PyJsonError> {
        let digits = self.text.get(self.at + 1..self.at + 5);
        let unit = digits
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.error("expected four hexadecimal digits"))?;
        self.at += 5;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input, and what `json.dumps(json.loads(input), ensure_ascii=False)` writes; Python 3.12.
    #[test]
    fn reads_and_writes_like_python() {
        for (input, expected) in [
            (r#"{"a":1,"b":[true,null]}"#, r#"{"a": 1, "b": [true, null]}"#),
            ("NaN", "NaN"),
            ("[-Infinity, Infinity]", "[-Infinity, Infinity]"),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#),
            ("12345678901234567890123", "12345678901234567890123"),
            ("1.0", "1.0"),
            ("1e16", "1e+16"),
            ("123456789012345.6", "123456789012345.6"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5E-7", "1.5e-07"),
            ("1e400", "Infinity"),
            ("-0", "0"),
            ("-0.0", "-0.0"),
            (r#""caf\u00e9 \ud83d\ude00 \u007f\/""#, "\"café 😀 \u{7f}/\""),
            ("{}", "{}"),
            (" [ ] ", "[]"),
        ] {
            let value = PyValue::parse(input).unwrap();
            assert_eq!(value.dumps(Dumps::PLAIN), expected, "{input}");
        }
    }

    #[test]
    fn refuses_what_python_refuses() {
        for input in [
            "", "{", "[1,]", "{a:1}", "01", "1.", ".5", "+1", "'a'", "\"a", "\"\n\"", "\"\\x\"", "1 2", "nan",
        ] {
            assert!(PyValue::parse(input).is_err(), "{input}");
        }
        assert!(PyValue::parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn other_styles() {
        let value = PyValue::parse(r#"{"b":"é😀","a":[1,{}]}"#).unwrap();
        assert_eq!(value.dumps(Dumps::ASCII), r#"{"b": "\u00e9\ud83d\ude00", "a": [1, {}]}"#);
        assert_eq!(value.dumps(Dumps::CANONICAL), r#"{"a":[1,{}],"b":"\u00e9\ud83d\ude00"}"#);
        assert_eq!(value.dumps(Dumps::LINES), "{\n\"b\": \"\\u00e9\\ud83d\\ude00\",\n\"a\": [\n1,\n{}\n]\n}");
        assert_eq!(canonical("{\"y\" :1, \"x\":\n2}"), canonical(r#"{"x":2,"y":1}"#));
        assert_ne!(canonical("1"), canonical("1.0"));
        assert_eq!(canonical("{"), None);
    }

    /// A lone surrogate becomes U+FFFD, and what follows is kept.
    #[test]
    fn lone_surrogates_are_replaced() {
        for (input, expected) in
            [(r#""\ud800x""#, "\u{fffd}x"), (r#""\ud800\u0041""#, "\u{fffd}A"), (r#""\udc00""#, "\u{fffd}")]
        {
            assert_eq!(PyValue::parse(input), Ok(PyValue::Text(expected.to_owned())), "{input}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(input in r#"[\[\]{}",:\\u0-9a-fNIn.eE+ -]{0,40}"#) {
            if let Ok(value) = PyValue::parse(&input) {
                let written = value.dumps(Dumps::ASCII);
                let again = PyValue::parse(&written).unwrap();
                proptest::prop_assert_eq!(again.dumps(Dumps::ASCII), written);
            }
        }
    }
}
