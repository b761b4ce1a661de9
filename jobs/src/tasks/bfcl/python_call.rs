//! Reads calls written as Python text: `name(1, key='value')`.

use serde_json::{Map, Number, Value};

/// Lists and dicts within one another, at most.
const MAX_DEPTH: usize = 32;
/// Longest text shown in a reason, in characters.
const SHOWN_CHARS: usize = 100;

/// A call in Python.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PythonCall {
    /// Name, possibly with dots.
    pub name: String,
    /// Arguments without a name, in order.
    pub positional: Vec<Value>,
    /// Arguments with one, in order.
    pub named: Vec<(String, Value)>,
}

/// Reads one call whose arguments are literals; a tuple becomes a list.
pub(super) fn parse_call(text: &str) -> Result<PythonCall, String> {
    let mut parser = Parser { text, place: 0 };
    parser.call().map_err(|reason| {
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        format!("{reason} at character {}: {shown}", parser.characters())
    })
}

struct Parser<'t> {
    text: &'t str,
    /// Byte offset.
    place: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.place..).unwrap_or_default()
    }

    fn characters(&self) -> usize {
        self.text.get(..self.place).unwrap_or_default().chars().count()
    }

    fn skip_space(&mut self) {
        self.place = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes `token`, after any space, if it is there.
    fn take(&mut self, token: char) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.place += token.len_utf8();
        }
        found
    }

    fn expect(&mut self, token: char) -> Result<(), String> {
        if self.take(token) { Ok(()) } else { Err(format!("`{token}` expected")) }
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest();
        let end = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.place += end;
        rest.get(..end).unwrap_or_default()
    }

    fn call(&mut self) -> Result<PythonCall, String> {
        self.skip_space();
        let name = self.take_while(|c| c.is_alphanumeric() || c == '_' || c == '.').to_owned();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("name of a function expected".to_owned());
        }
        self.expect('(')?;
        let (mut positional, mut named) = (Vec::new(), Vec::new());
        while !self.take(')') {
            match self.keyword() {
                Some(key) => named.push((key.to_owned(), self.value(0)?)),
                None if named.is_empty() => positional.push(self.value(0)?),
                None => return Err("an argument without a name follows one with a name".to_owned()),
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        self.skip_space();
        if self.rest().is_empty() {
            Ok(PythonCall { name, positional, named })
        } else {
            Err("end expected".to_owned())
        }
    }

    /// Takes `key=`, if that comes next.
    fn keyword(&mut self) -> Option<&'t str> {
        self.skip_space();
        let start = self.place;
        let key = self.take_while(|c| c.is_alphanumeric() || c == '_');
        if !key.is_empty() && self.take('=') && !self.rest().starts_with('=') {
            return Some(key);
        }
        self.place = start;
        None
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err("lists too deep".to_owned());
        }
        self.skip_space();
        match self.rest().chars().next() {
            Some('\'' | '"') => self.strings(),
            Some('[') => self.list('[', ']', depth),
            Some('(') => self.list('(', ')', depth),
            Some('{') => self.dict(depth),
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            Some(_) => match self.take_while(|c| c.is_alphanumeric() || c == '_') {
                "True" => Ok(Value::Bool(true)),
                "False" => Ok(Value::Bool(false)),
                "None" => Ok(Value::Null),
                _ => Err("literal expected".to_owned()),
            },
            None => Err("literal expected".to_owned()),
        }
    }

    /// One string, or several that stand side by side.
    fn strings(&mut self) -> Result<Value, String> {
        let mut text = String::new();
        loop {
            self.skip_space();
            let Some(quote) = self.rest().chars().next().filter(|c| matches!(c, '\'' | '"')) else {
                return Ok(Value::String(text));
            };
            self.place += 1;
            self.string(quote, &mut text)?;
        }
    }

    /// The rest of a string after its opening quote.
    fn string(&mut self, quote: char, text: &mut String) -> Result<(), String> {
        loop {
            let c = self.next_char()?;
            match c {
                _ if c == quote => return Ok(()),
                '\\' => self.escape(text)?,
                '\n' => return Err("string not closed".to_owned()),
                _ => text.push(c),
            }
        }
    }

    fn next_char(&mut self) -> Result<char, String> {
        let c = self.rest().chars().next().ok_or_else(|| "string not closed".to_owned())?;
        self.place += c.len_utf8();
        Ok(c)
    }

    fn escape(&mut self, text: &mut String) -> Result<(), String> {
        let c = self.next_char()?;
        let n_digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        match c {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            '\\' | '\'' | '"' => text.push(c),
            '\n' => {}
            'x' | 'u' | 'U' => {
                let digits = self.rest().get(..n_digits).unwrap_or_default();
                let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                text.push(code.ok_or_else(|| "no such character".to_owned())?);
                self.place += n_digits;
            }
            // Python keeps the backslash of an escape that it does not know.
            _ => text.extend(['\\', c]),
        }
        Ok(())
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Result<Value, String> {
        self.expect(open)?;
        let mut items = Vec::new();
        let mut has_comma = false;
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take(',') {
                self.expect(close)?;
                break;
            }
            has_comma = true;
        }
        match <[Value; 1]>::try_from(items) {
            // One value in parentheses is that value.
            Ok([item]) if open == '(' && !has_comma => Ok(item),
            Ok(item) => Ok(Value::Array(item.into())),
            Err(items) => Ok(Value::Array(items)),
        }
    }

    fn dict(&mut self, depth: usize) -> Result<Value, String> {
        self.expect('{')?;
        let mut fields = Map::new();
        while !self.take('}') {
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                Value::Number(key) => key.to_string(),
                _ => return Err("text as key expected".to_owned()),
            };
            self.expect(':')?;
            fields.insert(key, self.value(depth + 1)?);
            if !self.take(',') {
                self.expect('}')?;
                break;
            }
        }
        Ok(Value::Object(fields))
    }

    fn number(&mut self) -> Result<Value, String> {
        let sign = self.take_while(|c| matches!(c, '-' | '+'));
        let digits = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
        let exponent = digits.ends_with(['e', 'E']) && self.rest().starts_with(['-', '+']);
        let power = if exponent {
            self.place += 1;
            let end = self.take_while(|c| c.is_ascii_digit());
            let sign = if self.text.get(..self.place - end.len()).is_some_and(|text| text.ends_with('-')) {
                "-"
            } else {
                ""
            };
            format!("{sign}{end}")
        } else {
            String::new()
        };
        let sign = match sign {
            "" | "+" => "",
            "-" => "-",
            _ => return Err("number expected".to_owned()),
        };
        let text = format!("{sign}{}{power}", digits.replace('_', ""));
        if let Ok(whole) = text.parse::<i64>() {
            return Ok(whole.into());
        }
        let is_decimal = !digits.is_empty()
            && text.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '.' | 'e' | 'E'));
        let number = text.parse::<f64>().ok().filter(|_| is_decimal).and_then(Number::from_f64);
        number.map(Value::Number).ok_or_else(|| "number expected".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_are_read() {
        let cases: &[(&str, &str, Value, Value)] = &[
            ("ls()", "ls", json!([]), json!({})),
            (" a.b( ) ", "a.b", json!([]), json!({})),
            ("sort('report.txt')", "sort", json!(["report.txt"]), json!({})),
            ("tail(file='log', lines = 20)", "tail", json!([]), json!({"file": "log", "lines": 20})),
            ("f(-1.5, +2, 1e3, 1e-3, .5, 1_000)", "f", json!([-1.5, 2, 1000.0, 0.001, 0.5, 1000]), json!({})),
            ("f(True, False, None)", "f", json!([true, false, null]), json!({})),
            (
                "f(a=[1, 'x',], b=(1, 2), c=(3), d={'k': [1], 2: {}})",
                "f",
                json!([]),
                json!({"a": [1, "x"], "b": [1, 2], "c": 3, "d": {"k": [1], "2": {}}}),
            ),
            (r#"f("it's", 'a\'b\n\u00e9\q', 'x' "y")"#, "f", json!(["it's", "a'b\né\\q", "xy"]), json!({})),
            ("f(x==1)", "", json!(null), json!(null)),
            ("f('(a=1)')", "f", json!(["(a=1)"]), json!({})),
            ("f(99999999999999999999)", "f", json!([1e20]), json!({})),
        ];
        for (text, name, positional, named) in cases {
            let result = parse_call(text);
            if name.is_empty() {
                assert!(result.is_err(), "{text}");
                continue;
            }
            let call = result.unwrap();
            assert_eq!(call.name, *name, "{text}");
            assert_eq!(Value::Array(call.positional), *positional, "{text}");
            assert_eq!(Value::Object(call.named.into_iter().collect()), *named, "{text}");
        }
    }

    #[test]
    fn broken_calls_are_refused() {
        for text in [
            "",
            "f",
            "f(",
            "f('a)",
            "f(a=1",
            "f(a=1 b=2)",
            "f(a=1, 2)",
            "f() g()",
            "f(x)",
            "f(--1)",
            "f(0x10)",
            "f(1.2.3)",
            "1f()",
            "f({1})",
            "f({[1]: 2})",
            "f(,)",
            "f(a='x', b: 'y')",
            r"f('\u12')",
        ] {
            assert!(parse_call(text).is_err(), "{text}");
        }
        let deep = format!("f({}{})", "[".repeat(10_000), "]".repeat(10_000));
        assert!(parse_call(&deep).is_err());
        assert_eq!(
            parse_call("cd(folder='x)"),
            Err("string not closed at character 13: cd(folder='x)".to_owned())
        );
    }
}
