//! Checklists: what a judge model is asked about a user turn, as records of the reference implementation have it.

use std::collections::BTreeSet;

use envace_schemas::Decimal;
use serde::Deserialize;

/// How far the weights of a user turn may miss 1.
const WEIGHT_TOLERANCE: f64 = 1e-6;

/// The items of each user turn, of each variant.
pub type Checklist = Vec<Vec<Vec<ChecklistItem>>>;

/// One point that a judge decides.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ChecklistItem {
    /// Its name, unique in its user turn and variant.
    pub id: String,
    /// What is asked.
    pub question: String,
    /// What to look at; left out: everything.
    #[serde(default)]
    pub focus_on: Focus,
    /// When the answer is yes; empty: the question says it.
    #[serde(default)]
    pub pass_condition: String,
    /// Cases in which it is no.
    #[serde(default)]
    pub failure_examples: Vec<String>,
    /// Where it stands in the recorded dialogue.
    #[serde(default)]
    pub evidence: Vec<Evidence>,
    /// Whether later user turns count only if it passes.
    #[serde(default, rename = "required_for_next_turn")]
    pub is_required: bool,
    /// Its share of the score of its user turn.
    pub weight: f64,
}

/// A passage of the recorded dialogue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Evidence {
    /// The passage.
    pub snippet: String,
}

/// What an item looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Focus {
    /// The calls that the actor made.
    #[serde(rename = "assistant.tool_calls")]
    ToolCalls,
    /// Its reasoning.
    #[serde(rename = "assistant.content.thinking")]
    Thinking,
    /// What it told the user.
    #[serde(rename = "assistant.content.user_visible_reply")]
    Reply,
    /// The responses.
    #[serde(rename = "tool.content")]
    Responses,
    /// All of it.
    #[default]
    #[serde(rename = "all")]
    All,
}

impl Focus {
    /// In words, for a prompt.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::ToolCalls => "the assistant's \"tool_calls\"",
            Self::Thinking => "the assistant's \"reasoning\"",
            Self::Reply => "the assistant's \"reply\"",
            Self::Responses => "the \"response\" of tools",
            Self::All => "all messages",
        }
    }

    /// Whether it is about calls or what they got.
    pub fn is_of_tools(self) -> bool {
        matches!(self, Self::ToolCalls | Self::Responses)
    }
}

impl ChecklistItem {
    /// Its weight as tables have it.
    ///
    /// # Errors
    /// A reason, if it is no such number.
    pub fn decimal_weight(&self) -> Result<Decimal, String> {
        Decimal::from_f64(self.weight).map_err(|error| format!("weight of item `{}`: {error}", self.id))
    }
}

/// Checks a checklist of a dialogue of `n_user_turns`.
///
/// Every variant must have items of unique names for every user turn, of weights that are not negative and sum to 1.
///
/// # Errors
/// The first fault, in words.
pub fn check_checklist(checklist: &Checklist, n_user_turns: usize) -> Result<(), String> {
    if checklist.is_empty() {
        return Err("it has no checklist".to_owned());
    }
    for (index, variant) in checklist.iter().enumerate() {
        if variant.len() != n_user_turns {
            return Err(format!(
                "checklist {index} has {} user turns, the dialogue {n_user_turns}",
                variant.len()
            ));
        }
        for (user_turn, items) in variant.iter().enumerate() {
            check_items(items)
                .map_err(|reason| format!("checklist {index}, user turn {user_turn}: {reason}"))?;
        }
    }
    Ok(())
}

fn check_items(items: &[ChecklistItem]) -> Result<(), String> {
    let mut ids = BTreeSet::new();
    for item in items {
        if !ids.insert(&item.id) {
            return Err(format!("two items are called `{}`", item.id));
        }
        if item.weight.is_nan() || item.weight < 0.0 {
            return Err(format!("weight of item `{}` is negative: {}", item.id, item.weight));
        }
    }
    let sum: f64 = items.iter().map(|item| item.weight).sum();
    if (sum - 1.0).abs() > WEIGHT_TOLERANCE {
        return Err(format!("weights must sum to 1: {sum}"));
    }
    Ok(())
}
