const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// The two parts of an assistant's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningSplit {
    /// Text between `<think>` and `</think>`, without the line breaks next to the tags; `None` where the text has no
    /// such block, empty where the block is.
    pub reasoning: Option<String>,
    /// What follows, without the line breaks after the closing tag; empty while the block is open.
    pub rest: String,
    /// Whether a block was opened and never closed: then all of the text is reasoning.
    pub is_unclosed: bool,
}

/// Splits an assistant's text into reasoning and the rest.
///
/// A block counts only at the start of the text (whitespace aside); several in a row are joined by a line break. Tags
/// later in the text are text. Where the prompt already opened the block (`is_opened_by_prompt`), and where a
/// closing tag comes without any opening one, the text starts inside it.
pub fn split_reasoning(text: &str, is_opened_by_prompt: bool) -> ReasoningSplit {
    let mut blocks: Vec<&str> = Vec::new();
    let mut rest = text;
    let mut is_inside = is_opened_by_prompt || closes_before_opening(text);
    loop {
        if let Some(inner) = rest.trim_start().strip_prefix(OPEN) {
            rest = inner;
            is_inside = true;
        }
        if !is_inside {
            break;
        }
        is_inside = false;
        match rest.split_once(CLOSE) {
            Some((block, after)) => {
                blocks.push(block.trim_matches('\n'));
                rest = after;
            }
            None => {
                blocks.push(rest.trim_matches('\n'));
                return ReasoningSplit {
                    reasoning: Some(join(&blocks)),
                    rest: String::new(),
                    is_unclosed: true,
                };
            }
        }
    }
    if blocks.is_empty() {
        return ReasoningSplit { reasoning: None, rest: text.to_owned(), is_unclosed: false };
    }
    let rest = rest.trim_start_matches('\n').to_owned();
    ReasoningSplit { reasoning: Some(join(&blocks)), rest, is_unclosed: false }
}

fn closes_before_opening(text: &str) -> bool {
    match (text.find(CLOSE), text.find(OPEN)) {
        (Some(close), Some(open)) => close < open,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

fn join(blocks: &[&str]) -> String {
    blocks.iter().copied().filter(|block| !block.is_empty()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_as_documented() {
        // text, opened by the prompt, reasoning, rest, unclosed
        let cases: &[(&str, bool, Option<&str>, &str, bool)] = &[
            ("hi", false, None, "hi", false),
            ("", false, None, "", false),
            ("<think>\na\n</think>\n\nhi", false, Some("a"), "hi", false),
            ("\n <think>a</think> hi", false, Some("a"), " hi", false),
            ("<think>\n\n</think>\n\nhi", false, Some(""), "hi", false),
            ("<think>\na", false, Some("a"), "", true),
            ("<think>", false, Some(""), "", true),
            ("a\n</think>\n\nhi", true, Some("a"), "hi", false),
            ("a", true, Some("a"), "", true),
            ("", true, Some(""), "", true),
            // A model may open the block again although the prompt did.
            ("<think>a</think>hi", true, Some("a"), "hi", false),
            ("a</think>hi", false, Some("a"), "hi", false),
            ("<think>a</think>\n<think>b</think>hi", false, Some("a\nb"), "hi", false),
            ("<think>a</think><think>b", false, Some("a\nb"), "", true),
            ("hi <think>a</think>", false, None, "hi <think>a</think>", false),
            ("<think>a</think>b</think>c", false, Some("a"), "b</think>c", false),
        ];
        for &(text, opened, reasoning, rest, is_unclosed) in cases {
            let expected = ReasoningSplit {
                reasoning: reasoning.map(str::to_owned),
                rest: rest.to_owned(),
                is_unclosed,
            };
            assert_eq!(split_reasoning(text, opened), expected, "{text:?}, opened by the prompt: {opened}");
        }
    }
}
