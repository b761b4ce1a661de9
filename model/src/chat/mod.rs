//! Text in and out of the model: messages, tokenizer, chat templates, and the one stream of tokens a dialogue is.
//!
//! [`ChatFormat`] is what most callers need: it loads everything a model folder says about text, turns a dialogue
//! into prompt tokens, and says which tokens follow a sampled generation.

mod error;
mod format;
mod generation_config;
mod guard;
mod message;
mod python_json;
mod reasoning;
mod special_tokens;
mod stream;
mod template;
mod template_date;
mod tokenizer;

pub use error::ChatError;
pub use format::{ChatFormat, Prompt, PromptOptions};
pub use generation_config::GenerationConfig;
pub use message::{ChatMessage, Speaker, ToolCall};
pub use reasoning::{ReasoningSplit, split_reasoning};
pub use special_tokens::SpecialTokens;
pub use stream::{History, Suffix, SuffixRequest};
pub use template::{ChatTemplate, RenderInput};
pub use tokenizer::Tokenizer;
