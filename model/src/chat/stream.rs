//! A trajectory is one stream of tokens: what follows a sampled generation is rendered, the generation itself never.

use super::error::ChatError;
use super::format::{ChatFormat, GuardedDialogue, Prompt, PromptOptions};
use super::message::ChatMessage;

/// What to do where a template would change what is already in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// Start a new sequence with the template's own rendering: what the model meets when it is served.
    #[default]
    Template,
    /// Go on with the stream, with everything in it that was sampled.
    AsSampled,
}

/// What [`ChatFormat::suffix`] needs to know.
#[derive(Debug, Clone, Copy)]
pub struct SuffixRequest<'a> {
    /// Messages before the generation: what its prompt was rendered from.
    pub before: &'a [ChatMessage],
    /// The generation, parsed. [`ChatMessage::reasoning_content`] is `Some` where its text had a `<think>` block,
    /// empty or not.
    pub assistant: &'a ChatMessage,
    /// The generation as sampled, a sampled stop token included.
    pub sampled: &'a [u32],
    /// What was said after it: all responses to its calls, or the next user message. Rendered together.
    pub new_messages: &'a [ChatMessage],
    /// How the dialogue is rendered; the same as for the prompt.
    pub options: &'a PromptOptions,
    /// What to do where the template changes the history.
    pub history: History,
}

/// How the stream goes on after a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suffix {
    /// These tokens follow the sampled ones, up to and including the opening of the next assistant message.
    Append {
        /// Token ids, none of them sampled. The first closes the turn if the generation did not (length stop).
        ids: Vec<u32>,
        /// How often the text of a special token stood in the new messages and was spelled out in ordinary tokens.
        n_hidden: usize,
        /// Whether the stream, read as text, is now exactly the template's rendering of the dialogue. It is not
        /// where the model writes JSON with other spaces than the template, for example.
        is_canonical: bool,
        /// Whether the next generation starts inside an opened `<think>` block.
        opens_reasoning: bool,
    },
    /// The template changes what is in the stream already: a new sequence starts with this prompt.
    Rewritten {
        /// The whole dialogue, rendered afresh.
        prompt: Prompt,
    },
}

impl ChatFormat {
    /// Tokens that follow a sampled generation, without decoding or tokenizing it again.
    ///
    /// The dialogue is rendered before the generation and after the new messages. The suffix is what the second
    /// rendering has after the end of the generation's turn. With [`History::Template`] the result is
    /// [`Suffix::Rewritten`] if the second rendering does not extend the first (Qwen3 drops the reasoning of earlier
    /// user turns, and the empty `<think>` block that its prompt has with thinking off), if it drops the
    /// generation's own reasoning, or if special tokens differ: the sampled ones, and the one that ends the turn.
    ///
    /// # Errors
    /// [`ChatError::NoTurnEnd`] if the template does not end the turn with a special or end-of-sequence token;
    /// [`ChatError::Template`] and [`ChatError::Encode`] as for [`ChatFormat::prompt`].
    pub fn suffix(&self, request: &SuffixRequest<'_>) -> Result<Suffix, ChatError> {
        let n_before = request.before.len();
        let dialogue: Vec<ChatMessage> =
            request.before.iter().chain([request.assistant]).chain(request.new_messages).cloned().collect();
        let mut guarded = GuardedDialogue::new(self, &dialogue, request.options);
        let first = guarded.render(self, n_before, true)?;
        let second = guarded.render(self, dialogue.len(), true)?;
        let no_turn_end = || ChatError::NoTurnEnd { origin: self.template().default_origin().to_owned() };

        if request.history == History::AsSampled {
            let n_earlier = self.turn_ends(&first).count();
            let (at, closing) = self.turn_ends(&second).nth(n_earlier).ok_or_else(no_turn_end)?;
            return self.append(request, &guarded, &second, Turn { prompt: &first, end: at, closing });
        }
        let rewritten =
            |guarded: &GuardedDialogue<'_>| Ok(Suffix::Rewritten { prompt: guarded.prompt(self, &second)? });
        let Some(rest) = second.strip_prefix(&first) else {
            return rewritten(&guarded);
        };
        let (at, closing) = self.turn_ends(rest).next().ok_or_else(no_turn_end)?;
        let own = rest.get(..at).unwrap_or_default();
        let (body, stop) = self.split_stop(request.sampled);
        let is_other_stop = stop.is_some_and(|stop| stop != closing);
        let own_specials = self.special_ids(&guarded.guard.encode(self.tokenizer(), own)?);
        if is_other_stop || drops_reasoning(request.assistant, own) || own_specials != self.special_ids(body)
        {
            return rewritten(&guarded);
        }
        self.append(request, &guarded, &second, Turn { prompt: &first, end: first.len() + at, closing })
    }

    fn append(
        &self,
        request: &SuffixRequest<'_>,
        guarded: &GuardedDialogue<'_>,
        rendering: &str,
        turn: Turn<'_>,
    ) -> Result<Suffix, ChatError> {
        // The closing token is tokenized with what follows it: it may take spaces in.
        let tail = rendering.get(turn.end..).unwrap_or_default();
        let mut ids = guarded.guard.encode(self.tokenizer(), tail)?;
        if request.sampled.last() == Some(&turn.closing) && ids.first() == Some(&turn.closing) {
            ids.remove(0);
        }
        let (body, _) = self.split_stop(request.sampled);
        let sampled_text = self.tokenizer().decode(body);
        let own = rendering.get(..turn.end).and_then(|text| text.strip_prefix(turn.prompt));
        let is_canonical = own.is_some_and(|own| guarded.guard.reveal(own) == sampled_text);
        let prompt_end = rendering.trim_end();
        Ok(Suffix::Append {
            ids,
            n_hidden: guarded.guard.n_hidden(),
            is_canonical,
            opens_reasoning: prompt_end.ends_with("<think>"),
        })
    }

    /// Where stop tokens stand in a guarded rendering, all of them written by the template.
    fn turn_ends<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut from = 0;
        std::iter::from_fn(move || {
            let rest = text.get(from..)?;
            let found = self.stops().iter().filter_map(|(id, stop)| {
                Some((rest.find(stop.as_str())?, std::cmp::Reverse(stop.len()), *id))
            });
            let (at, length, id) = found.min()?;
            let start = from + at;
            from = start + length.0;
            Some((start, id))
        })
    }

    /// A generation without its stop token, and that token.
    fn split_stop<'a>(&self, sampled: &'a [u32]) -> (&'a [u32], Option<u32>) {
        match sampled.split_last() {
            Some((last, body)) if self.stop_ids().contains(last) => (body, Some(*last)),
            _ => (sampled, None),
        }
    }

    fn special_ids(&self, ids: &[u32]) -> Vec<u32> {
        let special = self.tokenizer().special_tokens();
        ids.iter()
            .copied()
            .filter(|id| special.binary_search_by_key(id, |(special, _)| *special).is_ok())
            .collect()
    }
}

/// The turn of the generation in a rendering.
struct Turn<'a> {
    /// The rendering before it.
    prompt: &'a str,
    /// Where its closing token starts.
    end: usize,
    /// That token.
    closing: u32,
}

/// Whether the assistant had reasoning that its own part of the rendering lacks.
fn drops_reasoning(assistant: &ChatMessage, own: &str) -> bool {
    match assistant.reasoning_content.as_deref() {
        None => false,
        Some(_) => !own.contains("</think>"),
    }
}
