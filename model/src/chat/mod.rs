//! Dialogues as text and tokens: messages, chat templates, the tokenizer.

mod message;

pub use message::{ChatMessage, Speaker, ToolCall};
