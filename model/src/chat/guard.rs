use serde_json::Value as Json;

use super::error::ChatError;
use super::tokenizer::Tokenizer;

/// Keeps text from outside from becoming special tokens.
///
/// A template is one text, so a tool response that contains `<|im_end|>` would end the turn. The guard puts one
/// private character in place of each special token's text in every message and tool, lets the template run, and
/// when the result is tokenized spells the hidden text out in ordinary tokens. Nothing else changes: without such
/// text in the input the tokens are those of the plain rendering, and decoded tokens always give the plain rendering.
#[derive(Debug)]
pub(super) struct Guard {
    /// (stand-in, text), longest text first.
    hidden: Vec<(char, String)>,
    n_hidden: usize,
}

/// Private-use planes 15 and 16.
const FIRST: u32 = 0xF_0000;
const LAST: u32 = 0x10_FFFD;

impl Guard {
    /// Texts to hide, and all the text they may occur in (to choose characters that are not in it).
    pub(super) fn new<'a>(hide: impl Iterator<Item = &'a str>, inputs: &[&Json]) -> Self {
        let mut texts: Vec<String> = hide.filter(|text| !text.is_empty()).map(str::to_owned).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let mut used = std::collections::BTreeSet::new();
        for input in inputs {
            for_each_text(input, &mut |text| used.extend(text.chars().filter(|c| u32::from(*c) >= FIRST)));
        }
        let free = (FIRST..=LAST).filter_map(char::from_u32).filter(|c| !used.contains(c));
        Self { hidden: free.zip(texts).collect(), n_hidden: 0 }
    }

    /// How often a text was hidden so far.
    pub(super) fn n_hidden(&self) -> usize {
        self.n_hidden
    }

    /// Hides in a text.
    pub(super) fn hide(&mut self, text: &str) -> String {
        let mut out = text.to_owned();
        for (stand_in, hidden) in &self.hidden {
            let n = out.matches(hidden.as_str()).count();
            if n > 0 {
                self.n_hidden += n;
                out = out.replace(hidden.as_str(), stand_in.encode_utf8(&mut [0; 4]));
            }
        }
        out
    }

    /// Hides in every text and key of a JSON value.
    pub(super) fn hide_json(&mut self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.hide(text)),
            Json::Array(values) => values.iter().map(|value| self.hide_json(value)).collect(),
            Json::Object(map) => {
                let mut out = serde_json::Map::new();
                for (key, value) in map {
                    let key = self.hide(key);
                    let value = self.hide_json(value);
                    out.insert(key, value);
                }
                Json::Object(out)
            }
            other => other.clone(),
        }
    }

    /// The text with everything hidden put back.
    pub(super) fn reveal(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match self.hidden_by(c) {
                Some(hidden) => out.push_str(hidden),
                None => out.push(c),
            }
        }
        out
    }

    /// Ids of a guarded rendering.
    pub(super) fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, ChatError> {
        let encode = |text: &str| tokenizer.encode(text);
        let mut ids = Vec::new();
        let mut start = 0;
        for (at, c) in text.char_indices() {
            if let Some(hidden) = self.hidden_by(c) {
                ids.extend(encode_piece(text.get(start..at).unwrap_or_default(), start > 0, &encode)?);
                ids.extend(encode_piece(hidden, true, &|text| tokenizer.encode_text(text))?);
                start = at + c.len_utf8();
            }
        }
        ids.extend(encode_piece(text.get(start..).unwrap_or_default(), start > 0, &encode)?);
        Ok(ids)
    }

    fn hidden_by(&self, c: char) -> Option<&str> {
        if u32::from(c) < FIRST {
            return None;
        }
        self.hidden.iter().find(|(stand_in, _)| *stand_in == c).map(|(_, text)| text.as_str())
    }
}

/// Ids of a piece of a text. Some tokenizers put a space before a text, so what follows another piece is encoded after
/// a line break, which is then taken away.
fn encode_piece(
    piece: &str,
    follows: bool,
    encode: &dyn Fn(&str) -> Result<Vec<u32>, ChatError>,
) -> Result<Vec<u32>, ChatError> {
    if follows && !piece.is_empty() {
        let after_line_break = encode(&format!("\n{piece}"))?;
        if let Some(ids) = after_line_break.strip_prefix(encode("\n")?.as_slice()) {
            return Ok(ids.to_vec());
        }
    }
    encode(piece)
}

fn for_each_text<'a>(value: &'a Json, visit: &mut dyn FnMut(&'a str)) {
    match value {
        Json::String(text) => visit(text),
        Json::Array(values) => values.iter().for_each(|value| for_each_text(value, visit)),
        Json::Object(map) => {
            for (key, value) in map {
                visit(key);
                for_each_text(value, visit);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_longest_first_and_gives_it_back() {
        let input = Json::from("a<|end|><|end|>x b<|end|> \u{f0000}");
        let mut guard = Guard::new(["<|end|>", "<|end|>x"].into_iter(), &[&input]);
        let text = input.as_str().unwrap();
        let hidden = guard.hide(text);
        // U+F0000 is in the input, so the stand-ins are the two after it; the longer text has the first.
        assert_eq!(hidden, "a\u{f0002}\u{f0001} b\u{f0002} \u{f0000}");
        assert_eq!(guard.n_hidden(), 3);
        assert_eq!(guard.reveal(&hidden), text);
    }

    #[test]
    fn hides_in_keys_and_values_but_not_elsewhere() {
        let input = serde_json::json!({"<s>": ["<s>", 1, null, {"k": "a<s>"}]});
        let mut guard = Guard::new(["<s>"].into_iter(), &[&input]);
        let hidden = guard.hide_json(&input);
        let expected = serde_json::json!({"\u{f0000}": ["\u{f0000}", 1, null, {"k": "a\u{f0000}"}]});
        assert_eq!((hidden, guard.n_hidden()), (expected, 3));
    }
}
