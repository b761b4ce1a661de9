//! One trajectory under way: its episode, its tokens, and what answers its calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use envace_grpo::seeds::Draw;
use envace_model::chat::{ChatFormat, History, PromptOptions};
use envace_model::engine::{FinishReason as Finish, Generated, GenerationRequest, Sampling};
use envace_schemas::tables::{GenerationRow, MessageRow, SequenceRow, TrajectoryRow};

use super::episode::{
    Episode, EpisodeError, EpisodeOptions, FinishReason, GenerationKey, Need, OutputRoom, Overflow,
    PolicyOutput, RehearsalNeed, Role,
};
use super::prompt_tools::with_tools_in_prompt;
use super::rows::Sampled;
use super::stream::{ActorStream, Sequence, SpanOf};
use crate::error::JobError;
use crate::score::Grader;
use crate::task::Task;
use crate::world::World;

/// Room that a rehearsal output must have at least: with less it could not even close its tag.
const LEAST_OUTPUT_TOKENS: usize = 64;

/// A role's weights, and how they are sampled.
#[derive(Debug, Clone)]
pub struct Voice {
    /// Tokenizer and chat template.
    pub format: Arc<ChatFormat>,
    /// Digest of the weights.
    pub checkpoint: String,
    /// Temperature, top-p, top-k.
    pub sampling: Sampling,
    /// Tokens of one output, at most.
    pub max_new_tokens: usize,
    /// Longest sequence, prompt and output together.
    pub max_sequence_tokens: usize,
}

/// What all trajectories of a stage share.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Seed of the run.
    pub seed: u64,
    /// `train` or `evaluate`.
    pub purpose: &'static str,
    /// Step of the run.
    pub step: u64,
    /// The rules of the episode.
    pub episode: Arc<EpisodeOptions>,
    /// What happens where the template rewrites history.
    pub history: History,
    /// Whether the template turns thinking on.
    pub thinking: Option<bool>,
    /// Whether the tools are written into the system message.
    pub tools_in_prompt: bool,
    /// The actor.
    pub actor: Voice,
    /// The rehearsal role.
    pub rehearsal: Voice,
}

/// A generation the trajectory waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Its place.
    pub key: GenerationKey,
    /// Whether its prompt ended inside a think block.
    opens_reasoning: bool,
}

/// The rows of one finished trajectory.
#[derive(Debug, Clone, Default)]
pub struct TrajectoryRows {
    /// One.
    pub trajectories: Vec<TrajectoryRow>,
    /// Its transcript.
    pub messages: Vec<MessageRow>,
    /// Its generations.
    pub generations: Vec<GenerationRow>,
    /// Its tokens.
    pub sequences: Vec<SequenceRow>,
}

/// One trajectory under way.
#[derive(Debug)]
pub struct Trajectory {
    settings: Arc<Settings>,
    episode: Episode,
    actor: ActorStream,
    actor_options: PromptOptions,
    rehearsals: BTreeMap<GenerationKey, Sequence>,
    spans: BTreeMap<GenerationKey, SpanOf>,
    world: Option<World>,
}

impl Trajectory {
    /// Begins an attempt at a task.
    ///
    /// # Errors
    /// [`JobError::Refused`] if its world is asked for and it has none.
    pub fn begin(task: Arc<Task>, sample: i32, settings: Arc<Settings>) -> Result<Self, JobError> {
        let world = match settings.episode.environment {
            super::Environment::World => Some(World::from_task(&task).map_err(|error| {
                JobError::refused(
                    format!("task `{}` cannot be executed: {error}", task.id()),
                    "only tasks of the bundled world have one: evaluate others with `environment = \"rehearsal\"`",
                )
            })?),
            _ => None,
        };
        let tools = if settings.tools_in_prompt { Vec::new() } else { task.tools.clone() };
        let actor_options =
            PromptOptions { tools, enable_thinking: settings.thinking, ..PromptOptions::default() };
        Ok(Self {
            episode: Episode::new(task, sample, Arc::clone(&settings.episode)),
            actor: ActorStream::default(),
            actor_options,
            rehearsals: BTreeMap::new(),
            spans: BTreeMap::new(),
            world,
            settings,
        })
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.episode.is_done()
    }

    /// Everything it wants generated now; the ids of the requests are the caller's to set.
    ///
    /// # Errors
    /// [`JobError`] if a prompt cannot be made.
    pub fn ask(&mut self) -> Result<Vec<(Asked, GenerationRequest)>, JobError> {
        let mut requests = Vec::new();
        loop {
            let needs = self.episode.take_needs();
            let n_needs = needs.len();
            for need in needs {
                match need {
                    Need::Actor(need) => requests.extend(self.ask_actor(need.turn, need.user_turn)?),
                    Need::Rehearsal(need) => requests.extend(self.ask_rehearsal(&need)?),
                    Need::External(need) => {
                        let response = match &mut self.world {
                            Some(world) => world.execute(&need.call.name, &need.call.arguments),
                            // The episode answers replayed calls itself; nothing else is external.
                            None => "{\"error\": \"no environment\"}".to_owned(),
                        };
                        given(self.episode.give_response(need.call_index, &response))?;
                    }
                    Need::Gate { user_turn } => {
                        let passes = self.passes(user_turn);
                        given(self.episode.give_gate(passes))?;
                    }
                    Need::Done => return Ok(requests),
                }
            }
            if n_needs == 0 {
                return Ok(requests);
            }
        }
    }

    /// Takes the answer to a request.
    ///
    /// # Errors
    /// [`JobError::Refused`] if it was not asked for.
    pub fn take(&mut self, asked: Asked, generated: &Generated) -> Result<(), JobError> {
        let key = asked.key;
        let voice = self.voice(key.role());
        let n_stop = usize::from(generated.finish_reason == Finish::Stop);
        let n_text = generated.token_ids.len().saturating_sub(n_stop);
        let decoded = voice.format.tokenizer().decode(generated.token_ids.get(..n_text).unwrap_or_default());
        let output = PolicyOutput {
            text: if asked.opens_reasoning { format!("<think>{decoded}") } else { decoded },
            n_tokens: generated.token_ids.len(),
            finish_reason: match generated.finish_reason {
                Finish::Stop => FinishReason::Stop,
                Finish::Length => FinishReason::Length,
            },
        };
        let span = match key.role() {
            Role::Actor => self.actor.sample(generated),
            Role::Rehearsal => self.rehearsals.get_mut(&key).map(|sequence| sequence.sample(generated)),
        };
        if let Some(span) = span {
            self.spans.insert(key, span);
        }
        match key.call_index {
            None => given(self.episode.give_actor(output)),
            Some(call_index) => given(self.episode.give_rehearsal(call_index, key.attempt, output)),
        }
    }

    fn ask_actor(
        &mut self,
        turn: usize,
        user_turn: usize,
    ) -> Result<Option<(Asked, GenerationRequest)>, JobError> {
        let key = GenerationKey::actor(turn);
        let settings = Arc::clone(&self.settings);
        let voice = &settings.actor;
        let messages = if settings.tools_in_prompt {
            with_tools_in_prompt(self.episode.messages(), &self.episode.task().tools)
        } else {
            self.episode.messages().to_vec()
        };
        let prompt =
            self.actor.prompt(&voice.format, &self.actor_options, settings.history, &messages, key)?.to_vec();
        let room = match settings.episode.output_room {
            OutputRoom::Rest => 0,
            OutputRoom::Whole => voice.max_new_tokens,
        };
        if prompt.len().saturating_add(room) >= voice.max_sequence_tokens {
            given(self.episode.actor_does_not_fit())?;
            return Ok(None);
        }
        let asked = Asked { key, opens_reasoning: self.actor.opens_reasoning() };
        let seed = self.draw("generate", key, user_turn).seed();
        Ok(Some((asked, request(voice, prompt, seed))))
    }

    fn ask_rehearsal(
        &mut self,
        need: &RehearsalNeed,
    ) -> Result<Option<(Asked, GenerationRequest)>, JobError> {
        let key = GenerationKey::rehearsal(need.turn, need.call_index, need.attempt);
        let settings = Arc::clone(&self.settings);
        let voice = &settings.rehearsal;
        // Sections are dropped to leave room for a whole output, but for no more than half of what there is.
        let whole_output = voice.max_new_tokens.min(voice.max_sequence_tokens / 2);
        let limit = voice.max_sequence_tokens.saturating_sub(whole_output);
        let first = GenerationKey::rehearsal(need.turn, need.call_index, 0);
        let draw = self.draw("few_shot", first, need.user_turn).uniform(0);
        let whole = given(self.episode.rehearsal_prompt(need.call_index, draw))?;
        let options = PromptOptions { enable_thinking: settings.thinking, ..PromptOptions::default() };
        let mut prompt = voice.format.prompt(&whole.messages(), &options)?;
        let mut n_dropped = 0;
        while prompt.ids.len() > limit {
            if settings.episode.rehearsal.overflow == Overflow::TruncateLeft {
                let n_cut = prompt.ids.len() - limit;
                prompt.ids.drain(..n_cut);
                break;
            }
            if n_dropped == whole.n_droppable() {
                let least = voice.max_new_tokens.min(LEAST_OUTPUT_TOKENS);
                if prompt.ids.len() + least <= voice.max_sequence_tokens {
                    break;
                }
                given(self.episode.rehearsal_does_not_fit(need.call_index))?;
                return Ok(None);
            }
            n_dropped += 1;
            prompt = voice.format.prompt(&whole.shortened(n_dropped).messages(), &options)?;
        }
        let asked = Asked { key, opens_reasoning: prompt.opens_reasoning };
        self.rehearsals.insert(key, Sequence::begin(Role::Rehearsal, key, &prompt.ids));
        let seed = self.draw("generate", key, need.user_turn).seed();
        Ok(Some((asked, request(voice, prompt.ids, seed))))
    }

    /// Whether the required items of a user turn pass, as far as it has been played.
    fn passes(&self, user_turn: usize) -> bool {
        Grader::new(self.episode.task()).gate_is_open(&self.episode.message_rows(), user_turn)
    }

    fn voice(&self, role: Role) -> &Voice {
        match role {
            Role::Actor => &self.settings.actor,
            Role::Rehearsal => &self.settings.rehearsal,
        }
    }

    fn draw(&self, what: &str, key: GenerationKey, user_turn: usize) -> Draw {
        let settings = &self.settings;
        let draw = Draw::new(settings.seed, &format!("{what}/{}", settings.purpose))
            .step(settings.step)
            .task_hash(&self.episode.task().row.task_hash)
            .sample(self.episode.sample().unsigned_abs().into())
            .role(key.role().name())
            .user_turn(user_turn as u64)
            .turn(key.turn as u64)
            .attempt(key.attempt as u64);
        match key.call_index {
            Some(call_index) => draw.call(call_index as u64),
            None => draw,
        }
    }

    /// The rows of the ended trajectory.
    ///
    /// # Errors
    /// [`JobError::Refused`] if it has not ended.
    pub fn finish(self) -> Result<TrajectoryRows, JobError> {
        let record = given(self.episode.finish())?;
        let mut sequences: BTreeMap<GenerationKey, Sequence> = self.rehearsals;
        sequences.extend(self.actor.into_sequences().into_iter().map(|sequence| (sequence.first, sequence)));
        // A sequence whose prompt did not fit holds nothing that was sampled.
        sequences.retain(|key, _| self.spans.values().any(|span| span.sequence == *key));
        let index_of: BTreeMap<GenerationKey, usize> =
            sequences.keys().enumerate().map(|(index, key)| (*key, index)).collect();
        let generations = record.generations.iter().enumerate().filter_map(|(index, generation)| {
            let span = self.spans.get(&generation.key)?;
            let voice = match generation.key.role() {
                Role::Actor => &self.settings.actor,
                Role::Rehearsal => &self.settings.rehearsal,
            };
            let sampled = Sampled {
                checkpoint: voice.checkpoint.clone(),
                sequence_index: *index_of.get(&span.sequence)?,
                span_start: span.start,
                n_prompt_tokens: span.start,
                temperature: voice.sampling.temperature,
                top_p: voice.sampling.top_p,
                top_k: voice.sampling.top_k,
            };
            record.generation_row(index, sampled)
        });
        let generations = generations.collect();
        let differences = self.world.as_ref().map(World::differences);
        let trajectory = TrajectoryRow {
            final_state_hash: self.world.as_ref().map(World::final_state_hash),
            state_differences: differences.map(|differences| serde_json::json!(differences).to_string()),
            ..record.trajectory_row(self.settings.purpose)
        };
        let sequences = sequences.into_values().enumerate();
        Ok(TrajectoryRows {
            sequences: sequences
                .map(|(index, sequence)| sequence.into_row(&record.task_id, record.sample, index))
                .collect(),
            trajectories: vec![trajectory],
            messages: record.messages,
            generations,
        })
    }
}

fn request(voice: &Voice, prompt: Vec<u32>, seed: [u8; 32]) -> GenerationRequest {
    let n_left = voice.max_sequence_tokens.saturating_sub(prompt.len());
    GenerationRequest {
        id: 0,
        prompt,
        sampling: voice.sampling,
        seed,
        max_new_tokens: voice.max_new_tokens.min(n_left),
        stop_ids: voice.format.stop_ids(),
    }
}

/// An episode that is given what it did not ask for is a fault of this program, reported as such.
fn given<T>(result: Result<T, EpisodeError>) -> Result<T, JobError> {
    result
        .map_err(|error| JobError::refused(error.to_string(), "this is a fault of envace; please report it"))
}
