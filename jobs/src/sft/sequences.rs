//! Recorded dialogues as sequences to train on, for both roles.

use envace_model::chat::{ChatError, ChatFormat, ChatMessage, PromptOptions, Speaker};

/// Tokens of one sequence, and which of them a policy would have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demonstration {
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// Ascending positions of the tokens to learn, each predicted from the one before it.
    pub trained: Vec<u32>,
}

impl Demonstration {
    fn begin(prompt: Vec<u32>) -> Self {
        Self { token_ids: prompt, trained: Vec::new() }
    }

    fn learn(&mut self, target: &[u32]) {
        let start = self.token_ids.len();
        self.token_ids.extend(target);
        self.trained.extend((start..self.token_ids.len()).map(|position| position as u32));
    }
}

/// The actor's sequences of a recorded dialogue: one stream, cut where the template rewrites what is in it; and how
/// many messages cannot be learned.
///
/// Every assistant message is a target, with the token that ends it. A message that the template does not render
/// as an extension of its own prompt is left out; so is one that holds the text of special tokens.
///
/// # Errors
/// [`ChatError`] if the template refuses the dialogue.
pub fn actor_demonstrations(
    format: &ChatFormat,
    options: &PromptOptions,
    messages: &[ChatMessage],
) -> Result<(Vec<Demonstration>, usize), ChatError> {
    let (mut sequences, mut n_left_out) = (Vec::<Demonstration>::new(), 0);
    for (index, message) in messages.iter().enumerate() {
        if message.role != Speaker::Assistant {
            continue;
        }
        let before = messages.get(..index).unwrap_or_default();
        let with = messages.get(..=index).unwrap_or_default();
        let prompt = format.prompt(before, options)?;
        let whole = format.transcript(with, options)?;
        // Text of special tokens that stands in the prompt does no harm to what follows it.
        let is_plain = whole.n_hidden == prompt.n_hidden;
        let target = match whole.text.strip_prefix(&prompt.text).filter(|_| is_plain) {
            Some(target) => target_ids(format, target)?,
            None => None,
        };
        let Some(target) = target else {
            n_left_out += 1;
            continue;
        };
        match sequences.last_mut() {
            Some(last) if prompt.ids.starts_with(&last.token_ids) => {
                let rest = prompt.ids.get(last.token_ids.len()..).unwrap_or_default();
                last.token_ids.extend(rest);
            }
            _ => sequences.push(Demonstration::begin(prompt.ids)),
        }
        if let Some(last) = sequences.last_mut() {
            last.learn(&target);
        }
    }
    Ok((sequences, n_left_out))
}

/// The rehearsal role's sequence for one call: its prompt, and the output it should write.
///
/// # Errors
/// [`ChatError`] if the template refuses the prompt.
pub fn rehearsal_demonstration(
    format: &ChatFormat,
    options: &PromptOptions,
    prompt: &[ChatMessage],
    output: &str,
) -> Result<Demonstration, ChatError> {
    let mut sequence = Demonstration::begin(format.prompt(prompt, options)?.ids);
    let mut target = format.tokenizer().encode_text(output)?;
    target.extend(format.turn_end_id());
    sequence.learn(&target);
    Ok(sequence)
}

/// Ids of an assistant message as rendered, up to and including the token that ends it.
fn target_ids(format: &ChatFormat, text: &str) -> Result<Option<Vec<u32>>, ChatError> {
    let mut ids = format.tokenizer().encode(text)?;
    let stop_ids = format.stop_ids();
    let Some(end) = ids.iter().position(|id| stop_ids.contains(id)) else { return Ok(None) };
    ids.truncate(end + 1);
    Ok(Some(ids))
}
