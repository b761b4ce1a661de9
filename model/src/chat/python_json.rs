//! Values as Python writes them: `json.dumps`, `str` and `repr`, which chat templates were written against.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Options of `json.dumps`, with the defaults that chat templates get.
#[derive(Debug, Clone)]
struct Dump {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The `tojson` filter: `json.dumps` with `ensure_ascii=False`, and without HTML escaping.
///
/// Takes the keywords `ensure_ascii`, `indent` (a number or a text), `separators` and `sort_keys`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value.clone())?),
        }),
    };
    let separators = match options.get::<Option<Value>>("separators")? {
        Some(value) if !value.is_none() => {
            Some((value.get_item_by_index(0)?.to_string(), value.get_item_by_index(1)?.to_string()))
        }
        _ => None,
    };
    let (item_separator, key_separator) = separators.unwrap_or_else(|| {
        let item = if indent.is_some() { "," } else { ", " };
        (item.to_owned(), ": ".to_owned())
    });
    let dump = Dump {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    dump.write(&mut out, value, 0)?;
    Ok(Value::from_safe_string(out))
}

impl Dump {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(out, ['[', ']'], items.len(), depth, |out, index| {
                    self.write(out, items.get(index).unwrap_or(&Value::UNDEFINED), depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    entries.push((key_text(&key), item));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_all(out, ['{', '}'], entries.len(), depth, |out, index| {
                    let Some((key, item)) = entries.get(index) else { return Ok(()) };
                    self.write_string(out, key);
                    out.push_str(&self.key_separator);
                    self.write(out, item, depth + 1)
                })?;
            }
            other => {
                let problem = format!("a value of kind {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
        Ok(())
    }

    fn write_all(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        n: usize,
        depth: usize,
        item: impl Fn(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for index in 0..n {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(out, depth + 1);
            item(out, index)?;
        }
        if n > 0 {
            self.break_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A dictionary key as `json.dumps` turns it into text.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => (if key.is_true() { "true" } else { "false" }).to_owned(),
        ValueKind::Number => number(key),
        _ => key.to_string(),
    }
}

/// `str(value)`; what is undefined is the empty text.
pub(super) fn str_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            write_repr(&mut out, value);
            out
        }
    }
}

fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &item);
            }
            if value.is_tuple() && value.len() == Some(1) {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// `repr` of a text; characters that Python calls unprintable are escaped as far as controls and spaces go.
fn write_string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                let code = u32::from(c);
                let _ =
                    if code <= 0xff { write!(out, "\\x{code:02x}") } else { write!(out, "\\u{code:04x}") };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `repr` of a number: the shortest digits that give it back, with Python's exponents.
fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) if number.is_infinite() => {
            (if number > 0.0 { "Infinity" } else { "-Infinity" }).to_owned()
        }
        Ok(number) => {
            // Rust's `Debug` changes to exponents at the same sizes as Python's `repr`.
            let text = format!("{number:?}");
            match text.split_once('e') {
                None => text,
                Some((digits, exponent)) => {
                    let (sign, exponent) = match exponent.strip_prefix('-') {
                        Some(exponent) => ('-', exponent),
                        None => ('+', exponent),
                    };
                    format!("{digits}e{sign}{exponent:0>2}")
                }
            }
        }
        Err(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        // python: [repr(x) for x in (1.0, 0.1, 1e16, 1e15, 1e-4, 1e-5, 1.5e300, -2.5e-10, 123456789.125)]
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e300, "1.5e+300"),
            (-2.5e-10, "-2.5e-10"),
            (123_456_789.125, "123456789.125"),
        ];
        for (given, expected) in cases {
            assert_eq!(number(&Value::from(given)), expected);
        }
        assert_eq!(number(&Value::from(u64::MAX)), "18446744073709551615");
    }

    #[test]
    fn texts_are_quoted_as_python_quotes_them() {
        // python: [repr(x) for x in ("a", "it's", 'say "hi"', "'\"", "a\n\t\\\x00", "é\xa0")]
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("say \"hi\"", "'say \"hi\"'"),
            ("'\"", "'\\'\"'"),
            ("a\n\t\\\0", "'a\\n\\t\\\\\\x00'"),
            ("é\u{a0}", "'é\\xa0'"),
        ];
        for (given, expected) in cases {
            let mut out = String::new();
            write_string_repr(&mut out, given);
            assert_eq!(out, expected);
        }
    }
}
