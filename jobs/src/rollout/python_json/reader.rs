//! Reads JSON as Python's `json.loads` does.

use super::{PyJsonError, PyValue};

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 128;

/// Reads `text`, which must hold one value and white space.
pub(super) fn read(text: &str) -> Result<PyValue, PyJsonError> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    if reader.at == text.len() { Ok(value) } else { Err(reader.error("extra data")) }
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
