//! What an episode may be told to do otherwise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rollout::parse_calls::ParseMode;

/// How episodes are played. Each field states its default; [`EpisodeOptions::paper`] is the reference run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EpisodeOptions {
    /// What answers calls. Default: `rehearsal`.
    pub environment: Environment,
    /// How policy outputs of both roles are read. Default: `tolerant`.
    pub parsing: ParseMode,
    /// Most actor generations. Default: 30.
    pub max_turns: usize,
    /// Where `max_turns` is looked at. Default: `turn`.
    pub max_turns_at: CapCheck,
    /// What must be left of the sequence for the actor to be asked. Default: `rest`.
    pub output_room: OutputRoom,
    /// Most user turns. Default: 30.
    pub max_user_turns: usize,
    /// Most calls of one turn that are answered; each further one gets an error response. 0: no limit.
    /// Default: 20.
    pub max_parallel_calls: usize,
    /// Most policy outputs of both roles, not counting second attempts. 0: no limit, which needs
    /// `max_turns_at = "turn"`. Default: 0.
    pub max_generations: usize,
    /// What becomes of a call that cannot be read. Default: `report`.
    pub on_malformed_call: ErrorPolicy,
    /// With `report`, how many actor outputs with malformed calls are borne; one more ends the trajectory.
    /// Default: 3.
    pub max_malformed_calls: usize,
    /// What becomes of an error response, whoever wrote it. Default: `report`.
    pub on_error_response: ErrorPolicy,
    /// How often a rehearsal output is sampled until one keeps the format. Default: 2.
    pub rehearsal_attempts: usize,
    /// What happens when none does. Default: `fail`.
    pub on_malfunction: MalfunctionPolicy,
    /// Whether a task without graders and checklist ends at once. Default: false, it is played and stays
    /// ungraded.
    pub requires_graders: bool,
    /// Whether each user turn waits for a grade before the next begins. Default: `after`.
    pub gate: Gate,
    /// What is answered without the environment.
    pub guards: GuardOptions,
    /// What the rehearsal role is shown.
    pub rehearsal: RehearsalOptions,
}

/// What answers calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// The policy, in the rehearsal role.
    #[default]
    Rehearsal,
    /// The recorded dialogue: calls equal to a recorded one get its response, others an error.
    Replay,
    /// The executable world of the task, run by the caller.
    World,
}

impl Environment {
    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rehearsal => "rehearsal",
            Self::Replay => "replay",
            Self::World => "world",
        }
    }
}

/// Where a cap is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapCheck {
    /// At every actor output, so that an actor looping on calls is stopped.
    #[default]
    Turn,
    /// Only when a user turn ends (the reference).
    UserTurn,
}

/// What must be left of the longest sequence for the actor to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputRoom {
    /// One token: an output is cut where the sequence is full.
    #[default]
    Rest,
    /// More than a whole output of `max_new_tokens` (the reference); else the trajectory ends.
    Whole,
}

/// What becomes of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorPolicy {
    /// The actor reads it and goes on.
    #[default]
    Report,
    /// It ends the trajectory (the reference).
    Fatal,
}

/// What happens when no rehearsal output keeps its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MalfunctionPolicy {
    /// The trajectory ends, and the actor is not to blame.
    #[default]
    Fail,
    /// An error object is the response (the reference).
    Respond,
}

/// When user turns are graded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// After the rollout: it plays on, and scoring drops what follows a failed required item.
    #[default]
    After,
    /// Before the next user turn begins.
    Inline,
}

/// Calls that are answered without the environment. All are off by default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuardOptions {
    /// Whether a call to an unlisted tool gets `TOOL_NOT_AVAILABLE`. Default: false.
    pub whitelist: bool,
    /// Whether arguments that are no object get `INVALID_PARAMETERS`, and arguments that do not fit the tool's
    /// schema `SCHEMA_VALIDATION_FAILED`. Default: false.
    pub schema: bool,
    /// Whether a call equal to a recorded one gets the recorded response. Default: false.
    pub replay: bool,
}

/// What the rehearsal role is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RehearsalOptions {
    /// Length of the wording. Default: `full`.
    pub wording: Wording,
    /// Which tools it is shown. Default: `full`.
    pub whitelist: Whitelist,
    /// Which recorded calls it is shown with their responses. Default: `past`.
    pub few_shot: FewShot,
    /// Most recorded calls shown; those of the called tool go first, then the latest. 0: all. Default: 0.
    pub few_shot_limit: usize,
    /// Probability, drawn for each call, that no recorded call is shown. Default: 0.
    pub few_shot_dropout: f64,
    /// Whether the conversation so far is shown. Default: true.
    pub history: bool,
    /// Most messages of the conversation shown, the latest. 0: all. Default: 0.
    pub history_limit: usize,
    /// Whether the actor's message that makes the call is shown, with its other calls. Default: true.
    pub latest_message: bool,
    /// Whether the actor's reasoning is shown, in history and latest message. Default: false.
    pub show_thinking: bool,
    /// Text after the last section, such as `/think`. Default: none.
    pub suffix: String,
    /// What is done with a prompt that is too long. Default: `shorten`.
    pub overflow: Overflow,
}

/// Length of the rehearsal prompt's wording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wording {
    /// Sections with headings and rules: for models that follow instructions.
    #[default]
    Full,
    /// A few words, for small models trained on it.
    Compact,
}

/// Which tools the rehearsal role is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Whitelist {
    /// All schemas of the task.
    #[default]
    Full,
    /// The schema of the called tool only.
    Called,
    /// All names, and the schema of the called tool.
    Names,
}

/// Which recorded calls the rehearsal role is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FewShot {
    /// Those up to and including the current user turn.
    #[default]
    Past,
    /// Those of all user turns, also to come (the reference).
    All,
    /// None.
    None,
}

/// What is done with a rehearsal prompt that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// Recorded calls and the oldest messages are left out.
    #[default]
    Shorten,
    /// Tokens are cut off at the left, the instruction first (the reference).
    TruncateLeft,
}

impl Default for EpisodeOptions {
    fn default() -> Self {
        Self {
            environment: Environment::default(),
            parsing: ParseMode::default(),
            max_turns: 30,
            max_turns_at: CapCheck::default(),
            output_room: OutputRoom::default(),
            max_user_turns: 30,
            max_parallel_calls: 20,
            max_generations: 0,
            on_malformed_call: ErrorPolicy::default(),
            max_malformed_calls: 3,
            on_error_response: ErrorPolicy::default(),
            rehearsal_attempts: 2,
            on_malfunction: MalfunctionPolicy::default(),
            requires_graders: false,
            gate: Gate::default(),
            guards: GuardOptions::default(),
            rehearsal: RehearsalOptions::default(),
        }
    }
}

impl Default for RehearsalOptions {
    fn default() -> Self {
        Self {
            wording: Wording::default(),
            whitelist: Whitelist::default(),
            few_shot: FewShot::default(),
            few_shot_limit: 0,
            few_shot_dropout: 0.0,
            history: true,
            history_limit: 0,
            latest_message: true,
            show_thinking: false,
            suffix: String::new(),
            overflow: Overflow::default(),
        }
    }
}

impl EpisodeOptions {
    /// The reference run: strict parsing, every error fatal, one rehearsal attempt, and a rehearsal role that sees
    /// the actor's reasoning and the recorded responses of user turns to come.
    pub fn paper() -> Self {
        Self {
            parsing: ParseMode::Reference,
            max_turns_at: CapCheck::UserTurn,
            output_room: OutputRoom::Whole,
            max_parallel_calls: 0,
            max_generations: 200,
            on_malformed_call: ErrorPolicy::Fatal,
            max_malformed_calls: 0,
            on_error_response: ErrorPolicy::Fatal,
            rehearsal_attempts: 1,
            on_malfunction: MalfunctionPolicy::Respond,
            requires_graders: true,
            rehearsal: RehearsalOptions {
                few_shot: FewShot::All,
                show_thinking: true,
                suffix: "/think".to_owned(),
                overflow: Overflow::TruncateLeft,
                ..RehearsalOptions::default()
            },
            ..Self::default()
        }
    }

    /// What makes no sense, as a sentence; `None` if all is well.
    pub fn problem(&self) -> Option<String> {
        let at_least_one = [
            ("max_turns", self.max_turns),
            ("max_user_turns", self.max_user_turns),
            ("rehearsal_attempts", self.rehearsal_attempts),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Some(format!("`{name}` must be at least 1"));
        }
        if self.max_turns_at == CapCheck::UserTurn && self.max_generations == 0 {
            return Some(
                "with `max_turns_at = \"user_turn\"`, `max_generations` must be at least 1: \
                 nothing else ends a user turn in which the actor goes on calling"
                    .to_owned(),
            );
        }
        if !(0.0..=1.0).contains(&self.rehearsal.few_shot_dropout) {
            let value = self.rehearsal.few_shot_dropout;
            return Some(format!("`few_shot_dropout` must lie between 0 and 1: {value}"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_refused_and_missing_ones_default() {
        let options: EpisodeOptions =
            toml::from_str("max_turns = 5\n[rehearsal]\nfew_shot = \"none\"").unwrap();
        assert_eq!((options.max_turns, options.max_user_turns), (5, 30));
        assert_eq!(options.rehearsal.few_shot, FewShot::None);
        assert!(options.rehearsal.history);
        for text in ["max_turn = 5", "[rehearsal]\nshots = 1", "[guards]\nx = true", "parsing = \"lenient\""]
        {
            assert!(toml::from_str::<EpisodeOptions>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn presets_survive_toml() {
        for options in [EpisodeOptions::default(), EpisodeOptions::paper()] {
            assert_eq!(options.problem(), None);
            let text = toml::to_string(&options).unwrap();
            assert_eq!(toml::from_str::<EpisodeOptions>(&text).unwrap(), options);
        }
        assert_ne!(EpisodeOptions::default(), EpisodeOptions::paper());
    }

    #[test]
    fn senseless_options_are_named() {
        let zero = EpisodeOptions { rehearsal_attempts: 0, ..EpisodeOptions::default() };
        assert_eq!(zero.problem().unwrap(), "`rehearsal_attempts` must be at least 1");
        let endless = EpisodeOptions { max_generations: 0, ..EpisodeOptions::paper() };
        assert!(endless.problem().unwrap().contains("`max_generations` must be at least 1"));
        let mut dropout = EpisodeOptions::default();
        dropout.rehearsal.few_shot_dropout = f64::NAN;
        assert_eq!(dropout.problem().unwrap(), "`few_shot_dropout` must lie between 0 and 1: NaN");
    }
}
