use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::error::{ChatError, read_json_if_present};
use super::generation_config::GenerationConfig;
use super::guard::Guard;
use super::message::{ChatMessage, Speaker};
use super::template::{ChatTemplate, RenderInput, RenderJson};
use super::tokenizer::Tokenizer;
use crate::config::CONFIG_FILE;

/// Everything a model folder says about text: tokenizer, chat template, and what ends a generation.
#[derive(Debug)]
pub struct ChatFormat {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    generation: GenerationConfig,
    turn_end: Option<u32>,
    stops: Vec<(u32, String)>,
    stop_ids: Arc<[u32]>,
}

/// How the dialogues of one role are rendered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptOptions {
    /// JSON schemas of the tools.
    pub tools: Vec<Json>,
    /// Passed to the template as `enable_thinking` where given.
    pub enable_thinking: Option<bool>,
    /// Further variables of the template; see [`RenderInput::extra`].
    pub extra: BTreeMap<String, Json>,
}

/// A prompt, ready for the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// The rendering they were made from.
    pub text: String,
    /// How often the text of a special token stood in a message or tool and was spelled out in ordinary tokens.
    pub n_hidden: usize,
    /// Whether the prompt ends inside an opened `<think>` block.
    pub opens_reasoning: bool,
}

const MARK: &str = "turnendprobe";

impl ChatFormat {
    /// Loads it from a model folder in Hugging Face layout.
    ///
    /// # Errors
    /// Those of [`Tokenizer::load`], [`ChatTemplate::load`] and [`GenerationConfig::load`]; [`ChatError::Key`] if the
    /// `vocab_size` of `config.json` leaves a token without an embedding.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let tokenizer = Tokenizer::load(dir)?;
        check_vocabulary(dir, &tokenizer)?;
        let template = ChatTemplate::load(dir)?;
        let generation = GenerationConfig::load(dir, &tokenizer)?;
        let turn_end = turn_end(&tokenizer, &template, &generation);
        let mut ids = generation.eos_token_ids.clone();
        ids.extend(turn_end);
        ids.sort_unstable();
        ids.dedup();
        let stops = ids.iter().filter_map(|&id| Some((id, tokenizer.token_text(id)?))).collect();
        Ok(Self { tokenizer, template, generation, turn_end, stops, stop_ids: ids.into() })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// What the folder says about generating.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The special token the template writes at the end of an assistant message.
    pub fn turn_end_id(&self) -> Option<u32> {
        self.turn_end
    }

    /// Every id that ends a generation, ascending: all end-of-sequence ids, and the template's end of turn.
    pub fn stop_ids(&self) -> Arc<[u32]> {
        Arc::clone(&self.stop_ids)
    }

    /// The stop ids with their text.
    pub(super) fn stops(&self) -> &[(u32, String)] {
        &self.stops
    }

    /// Prompt of a dialogue, ending with the opening of the assistant's message.
    ///
    /// Text of special tokens inside messages and tools does not become special tokens ([`Prompt::n_hidden`]); all
    /// other text is tokenized as the plain rendering would be.
    ///
    /// # Errors
    /// [`ChatError::Template`] where the template refuses the dialogue, [`ChatError::Encode`] where the tokenizer does.
    pub fn prompt(&self, messages: &[ChatMessage], options: &PromptOptions) -> Result<Prompt, ChatError> {
        self.encode_dialogue(messages, options, true)
    }

    /// A whole dialogue, as supervised training needs it, without the opening of another message.
    ///
    /// # Errors
    /// As for [`ChatFormat::prompt`].
    pub fn transcript(&self, messages: &[ChatMessage], options: &PromptOptions) -> Result<Prompt, ChatError> {
        self.encode_dialogue(messages, options, false)
    }

    fn encode_dialogue(
        &self,
        messages: &[ChatMessage],
        options: &PromptOptions,
        add_generation_prompt: bool,
    ) -> Result<Prompt, ChatError> {
        let mut guarded = GuardedDialogue::new(self, messages, options);
        let text = guarded.render(self, messages.len(), add_generation_prompt)?;
        guarded.prompt(self, &text)
    }
}

/// A dialogue in which the text of special tokens is hidden.
pub(super) struct GuardedDialogue<'a> {
    pub guard: Guard,
    json: RenderJson<'a>,
    all_messages: Vec<Json>,
}

impl<'a> GuardedDialogue<'a> {
    pub(super) fn new(format: &ChatFormat, messages: &'a [ChatMessage], options: &'a PromptOptions) -> Self {
        let mut json = RenderJson::new(&RenderInput {
            messages,
            tools: &options.tools,
            add_generation_prompt: true,
            enable_thinking: options.enable_thinking,
            extra: &options.extra,
        });
        let inputs: Vec<&Json> = json.messages.iter().chain(&json.tools).collect();
        let special = format.tokenizer.special_tokens().iter().chain(format.stops());
        let mut guard = Guard::new(special.map(|(_, text)| text.as_str()), &inputs);
        json.tools = json.tools.iter().map(|tool| guard.hide_json(tool)).collect();
        let all_messages = json.messages.iter().map(|message| guard.hide_json(message)).collect();
        Self { guard, json, all_messages }
    }

    /// Guarded rendering of the first messages.
    pub(super) fn render(
        &mut self,
        format: &ChatFormat,
        n_messages: usize,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        self.json.messages = self.all_messages.iter().take(n_messages).cloned().collect();
        self.json.add_generation_prompt = add_generation_prompt;
        format.template.render_json(&self.json)
    }

    pub(super) fn prompt(&self, format: &ChatFormat, text: &str) -> Result<Prompt, ChatError> {
        Ok(Prompt {
            ids: self.guard.encode(&format.tokenizer, text)?,
            text: self.guard.reveal(text),
            n_hidden: self.guard.n_hidden(),
            opens_reasoning: text.trim_end().ends_with("<think>"),
        })
    }
}

/// Refuses a tokenizer with ids that the model of its folder does not have: they would only be met in a prompt.
fn check_vocabulary(dir: &Path, tokenizer: &Tokenizer) -> Result<(), ChatError> {
    let path = dir.join(CONFIG_FILE);
    let json = read_json_if_present(&path)?.unwrap_or(Json::Null);
    let n_tokens = tokenizer.vocab_size();
    match json.get("vocab_size").and_then(Json::as_u64) {
        Some(vocab_size) if vocab_size < n_tokens as u64 => Err(ChatError::Key {
            path,
            key: "vocab_size".to_owned(),
            problem: format!("is {vocab_size}, and `tokenizer.json` beside it has more tokens: {n_tokens}"),
        }),
        _ => Ok(()),
    }
}

/// The first special or end-of-sequence token after the content of an assistant message.
fn turn_end(tokenizer: &Tokenizer, template: &ChatTemplate, generation: &GenerationConfig) -> Option<u32> {
    let dialogue = [
        ChatMessage::text(Speaker::User, "a"),
        ChatMessage::text(Speaker::Assistant, MARK),
        ChatMessage::text(Speaker::User, "b"),
    ];
    let extra = BTreeMap::from([("date".to_owned(), Json::from("2000-01-01"))]);
    let render = |messages| {
        let input = RenderInput {
            messages,
            tools: &[],
            add_generation_prompt: false,
            enable_thinking: None,
            extra: &extra,
        };
        template.render(&input)
    };
    let text = render(&dialogue).or_else(|_| render(dialogue.get(..2).unwrap_or_default()));
    let text =
        text.inspect_err(|error| tracing::warn!(%error, "the end of a turn could not be found")).ok()?;
    let (_, after) = text.split_once(MARK)?;
    let eos = generation.eos_token_ids.iter().filter_map(|&id| Some((id, tokenizer.token_text(id)?)));
    tokenizer
        .special_tokens()
        .iter()
        .cloned()
        .chain(eos)
        .filter_map(|(id, text)| Some((after.find(&text)?, std::cmp::Reverse(text.len()), id)))
        .min()
        .map(|(_, _, id)| id)
}
