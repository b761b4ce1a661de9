//! The tokens of one trajectory, exactly as given and sampled.

use envace_model::chat::{ChatError, ChatFormat, ChatMessage, History, PromptOptions, Suffix, SuffixRequest};
use envace_model::engine::Generated;
use envace_schemas::tables::SequenceRow;

use super::episode::{GenerationKey, Role};

/// One sequence under way.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Whose it is.
    pub role: Role,
    /// The first generation in it: what its index follows from.
    pub first: GenerationKey,
    token_ids: Vec<u32>,
    loss_mask: Vec<bool>,
    sampling_logprobs: Vec<Option<f32>>,
}

/// Where a generation lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanOf {
    /// Its sequence, by that one's first generation.
    pub sequence: GenerationKey,
    /// First sampled token's place.
    pub start: usize,
    /// Sampled tokens.
    pub n_tokens: usize,
}

impl Sequence {
    /// A sequence that begins with a prompt, before its first generation.
    pub fn begin(role: Role, first: GenerationKey, prompt: &[u32]) -> Self {
        let mut sequence =
            Self { role, first, token_ids: Vec::new(), loss_mask: Vec::new(), sampling_logprobs: Vec::new() };
        sequence.give(prompt);
        sequence
    }

    /// Token ids so far: the prompt of the next generation.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// Appends tokens that nobody sampled.
    pub fn give(&mut self, ids: &[u32]) {
        self.token_ids.extend(ids);
        self.loss_mask.resize(self.token_ids.len(), false);
        self.sampling_logprobs.resize(self.token_ids.len(), None);
    }

    /// Appends a generation as sampled.
    pub fn sample(&mut self, generated: &Generated) -> SpanOf {
        let start = self.token_ids.len();
        self.token_ids.extend(&generated.token_ids);
        self.loss_mask.resize(self.token_ids.len(), true);
        self.sampling_logprobs.extend(generated.logprobs.iter().copied().map(Some));
        // An engine reports one logprob a token; were one missing it would read "not known", never shift the rest.
        self.sampling_logprobs.resize(self.token_ids.len(), None);
        SpanOf { sequence: self.first, start, n_tokens: generated.token_ids.len() }
    }

    /// The row of the finished sequence.
    pub fn into_row(self, task_id: &str, sample: i32, sequence_index: usize) -> SequenceRow {
        SequenceRow {
            task_id: task_id.to_owned(),
            sample,
            sequence_index: sequence_index as i32,
            role: self.role.name().to_owned(),
            token_ids: self.token_ids,
            loss_mask: self.loss_mask,
            sampling_logprobs: self.sampling_logprobs,
        }
    }
}

/// The actor's tokens: append-only, cut where the template rewrites history.
#[derive(Debug, Default)]
pub struct ActorStream {
    sequences: Vec<Sequence>,
    /// Messages the current prompt was rendered from.
    n_rendered: usize,
    /// Whether the next generation begins inside a think block.
    opens_reasoning: bool,
    /// The last generation as sampled.
    sampled: Vec<u32>,
}

impl ActorStream {
    /// Makes the prompt of the actor's next generation, `key`, from all messages so far.
    ///
    /// # Errors
    /// [`ChatError`] if the template refuses them.
    pub fn prompt(
        &mut self,
        format: &ChatFormat,
        options: &PromptOptions,
        history: History,
        messages: &[ChatMessage],
        key: GenerationKey,
    ) -> Result<&[u32], ChatError> {
        let before = messages.get(..self.n_rendered).unwrap_or_default();
        let after = messages.get(self.n_rendered..).unwrap_or_default();
        match (self.sequences.last_mut(), after.split_first()) {
            (Some(sequence), Some((assistant, new_messages))) => {
                let request = SuffixRequest {
                    before,
                    assistant,
                    sampled: &self.sampled,
                    new_messages,
                    options,
                    history,
                };
                match format.suffix(&request)? {
                    Suffix::Append { ids, opens_reasoning, .. } => {
                        sequence.give(&ids);
                        self.opens_reasoning = opens_reasoning;
                    }
                    Suffix::Rewritten { prompt } => {
                        self.opens_reasoning = prompt.opens_reasoning;
                        self.sequences.push(Sequence::begin(Role::Actor, key, &prompt.ids));
                    }
                }
            }
            _ => {
                let prompt = format.prompt(messages, options)?;
                self.opens_reasoning = prompt.opens_reasoning;
                self.sequences.push(Sequence::begin(Role::Actor, key, &prompt.ids));
            }
        }
        self.n_rendered = messages.len();
        Ok(self.sequences.last().map(Sequence::token_ids).unwrap_or_default())
    }

    /// Appends the generation sampled from that prompt.
    pub fn sample(&mut self, generated: &Generated) -> Option<SpanOf> {
        self.sampled.clone_from(&generated.token_ids);
        self.sequences.last_mut().map(|sequence| sequence.sample(generated))
    }

    /// Whether the prompt ends inside a think block.
    pub fn opens_reasoning(&self) -> bool {
        self.opens_reasoning
    }

    /// The sequences, in order. One without a generation, whose prompt did not fit, is among them.
    pub fn into_sequences(self) -> Vec<Sequence> {
        self.sequences
    }
}
