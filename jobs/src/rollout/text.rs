//! Cleaning and dividing what a policy wrote.

use std::borrow::Cow;

/// Opens reasoning.
pub const THINK_OPEN: &str = "<think>";
/// Closes reasoning.
pub const THINK_CLOSE: &str = "</think>";

/// Replaces NUL and Unicode non-characters, which tokenizers and tables choke on, by U+FFFD each.
///
/// Applied to policy outputs, tool schemas and injected user texts, before anything else looks at them.
pub fn sanitize(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_unwanted) {
        let clean = |character| if is_unwanted(character) { char::REPLACEMENT_CHARACTER } else { character };
        Cow::Owned(text.chars().map(clean).collect())
    } else {
        Cow::Borrowed(text)
    }
}

fn is_unwanted(character: char) -> bool {
    let code = u32::from(character);
    code == 0 || (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

/// A stretch of a policy output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stretch<'a> {
    /// Inside think tags, which it does not include.
    Thinking(&'a str),
    /// Between the tags that were looked for, which it does not include.
    Block {
        /// What lies between.
        body: &'a str,
        /// Whether the closing tag is there.
        is_closed: bool,
    },
    /// Anything else.
    Plain(&'a str),
}

/// Divides `text` into reasoning, blocks between `open` and `close`, and the rest.
///
/// Tags are read from left to right, so a block inside reasoning is reasoning, and a think tag inside a block is
/// the block's. Reasoning that is not closed reaches to the end. A closing think tag without an opening one
/// (a generation prompt may have opened it) makes all before it reasoning. A block that is not closed ends before
/// the next opening tag, or at the end.
pub fn divide<'a>(text: &'a str, open: &str, close: &str) -> Vec<Stretch<'a>> {
    let mut stretches = Vec::new();
    let mut rest = text;
    if let Some(end) = orphan_think_close(text, open, close) {
        push_plain_as(&mut stretches, &text[..end], Stretch::Thinking);
        rest = &text[end + THINK_CLOSE.len()..];
    }
    while !rest.is_empty() {
        let think = rest.find(THINK_OPEN);
        let block = rest.find(open);
        match (think, block) {
            (Some(at), next) if next.is_none_or(|block| at < block) => {
                push_plain_as(&mut stretches, &rest[..at], Stretch::Plain);
                let inside = &rest[at + THINK_OPEN.len()..];
                let end = inside.find(THINK_CLOSE);
                push_plain_as(&mut stretches, &inside[..end.unwrap_or(inside.len())], Stretch::Thinking);
                rest = end.map_or("", |end| &inside[end + THINK_CLOSE.len()..]);
            }
            (_, Some(at)) => {
                push_plain_as(&mut stretches, &rest[..at], Stretch::Plain);
                let inside = &rest[at + open.len()..];
                let next_open = inside.find(open).unwrap_or(inside.len());
                let end = inside[..next_open].find(close);
                stretches.push(Stretch::Block {
                    body: &inside[..end.unwrap_or(next_open)],
                    is_closed: end.is_some(),
                });
                rest = end.map_or(&inside[next_open..], |end| &inside[end + close.len()..]);
            }
            _ => {
                push_plain_as(&mut stretches, rest, Stretch::Plain);
                rest = "";
            }
        }
    }
    stretches
}

/// Divides `text` into its reasoning, if there is any, and the rest without white space at its ends.
pub fn split_reasoning(text: &str) -> (Option<String>, String) {
    let mut reasoning = Vec::new();
    let mut visible = Vec::new();
    // No block is looked for: a tag that cannot occur.
    for stretch in divide(text, "\0<", "\0>") {
        match stretch {
            Stretch::Thinking(text) => reasoning.push(text),
            Stretch::Plain(text) => visible.push(text),
            Stretch::Block { .. } => {}
        }
    }
    (join_trimmed(&reasoning), join_trimmed(&visible).unwrap_or_default())
}

/// The parts without white space at their ends, blank ones left out, one a line; `None` if none is left.
pub fn join_trimmed<T: AsRef<str>>(parts: &[T]) -> Option<String> {
    let parts: Vec<&str> =
        parts.iter().map(|part| part.as_ref().trim()).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { None } else { Some(parts.join("\n")) }
}

/// The text inside a Markdown fence, if `text` is one fenced block; else `text`, trimmed.
pub fn without_fence(text: &str) -> &str {
    let text = text.trim();
    let fenced = text.strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    match fenced.and_then(|inside| inside.split_once('\n')) {
        Some((language, body)) if language.trim().chars().all(char::is_alphanumeric) => body.trim(),
        _ => text,
    }
}

fn push_plain_as<'a>(stretches: &mut Vec<Stretch<'a>>, text: &'a str, kind: fn(&'a str) -> Stretch<'a>) {
    if !text.is_empty() {
        stretches.push(kind(text));
    }
}

/// Where the first closing think tag lies, if no opening one precedes it and it is not inside a closed block.
fn orphan_think_close(text: &str, open: &str, close: &str) -> Option<usize> {
    let end = text.find(THINK_CLOSE)?;
    let before = &text[..end];
    if before.contains(THINK_OPEN) {
        return None;
    }
    let is_inside_block = before.rfind(open).is_some_and(|start| {
        let body = &text[start + open.len()..];
        body.find(close).is_some_and(|length| {
            start + open.len() + length > end
                && serde_json::from_str::<serde::de::IgnoredAny>(&body[..length]).is_ok()
        })
    });
    if is_inside_block { None } else { Some(end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_nul_and_non_characters_and_nothing_else() {
        for (input, expected) in [
            ("plain é 😀 \u{fffd}", "plain é 😀 \u{fffd}"),
            ("a\0b", "a\u{fffd}b"),
            ("\u{fdd0}\u{fdef}\u{fdcf}\u{fdf0}", "\u{fffd}\u{fffd}\u{fdcf}\u{fdf0}"),
            ("\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}\u{1fffd}", "\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{1fffd}"),
        ] {
            assert_eq!(sanitize(input), expected, "{input:?}");
        }
    }

    #[test]
    fn divides_from_left_to_right() {
        use Stretch::{Block, Plain, Thinking};
        let closed = |body| Block { body, is_closed: true };
        let open = |body| Block { body, is_closed: false };
        for (input, expected) in [
            ("", vec![]),
            ("a", vec![Plain("a")]),
            ("<think>a</think>b<c>d</c>e", vec![Thinking("a"), Plain("b"), closed("d"), Plain("e")]),
            ("<think><c>d</c></think>b", vec![Thinking("<c>d</c>"), Plain("b")]),
            ("<c><think></c></think>", vec![closed("<think>"), Plain("</think>")]),
            ("<think>a<c>d</c>", vec![Thinking("a<c>d</c>")]),
            ("a<c>x</c></think>b", vec![Thinking("a<c>x</c>"), Plain("b")]),
            ("<c>\"</think>\"</c>b", vec![closed("\"</think>\""), Plain("b")]),
            ("<c>a<c>b</c><c>", vec![open("a"), closed("b"), open("")]),
            ("<think></think>", vec![]),
        ] {
            assert_eq!(divide(input, "<c>", "</c>"), expected, "{input}");
        }
    }

    #[test]
    fn reasoning_is_split_off() {
        for (input, reasoning, visible) in [
            ("hello ", None, "hello"),
            ("<think>\nwhy\n</think>\n\nhello", Some("why"), "hello"),
            ("why</think>hello", Some("why"), "hello"),
            ("<think>cut off", Some("cut off"), ""),
            ("<think>a</think>b<think>c</think>d", Some("a\nc"), "b\nd"),
            ("<think></think>x", None, "x"),
        ] {
            assert_eq!(split_reasoning(input), (reasoning.map(str::to_owned), visible.to_owned()), "{input}");
        }
    }

    #[test]
    fn fences_are_taken_off() {
        for (input, expected) in [
            (" {} ", "{}"),
            ("```json\n{}\n```", "{}"),
            ("```\n[1]```", "[1]"),
            ("``` {} ```", "``` {} ```"),
            ("```json\n{}", "```json\n{}"),
        ] {
            assert_eq!(without_fence(input), expected, "{input}");
        }
    }
}
