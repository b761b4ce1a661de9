//! The transitions: what an episode does with what it is given.

use envace_model::chat::{ChatMessage, Speaker, ToolCall};

use super::need::{Continuation, EpisodeError, PolicyOutput};
use super::options::{CapCheck, Environment, ErrorPolicy, Gate, MalfunctionPolicy};
use super::record::{Author, EndReason, GenerationKey, GenerationRecord, MessageNotes};
use super::turn::{PendingTurn, Response, Slot, SlotState};
use super::{Episode, Phase};
use crate::rollout::guards::Guarded;
use crate::rollout::parse_calls::{MalformedCall, ParseMode, ParsedCall, ParsedOutput, parse_calls};
use crate::rollout::parse_result::{error_code_of, error_response, is_reference_error, parse_result};
use crate::rollout::python_json::{Dumps, PyValue};
use crate::rollout::text::{sanitize, split_reasoning};

/// The code of the error response to a call beyond `max_parallel_calls`.
pub const TOO_MANY_CALLS: &str = "TOO_MANY_CALLS";

/// The name of the tool message that reports a malformed call, in the reference.
const ERROR_TOOL: &str = "error_tool_call";

impl Episode {
    /// Takes the actor's output.
    ///
    /// # Errors
    /// [`EpisodeError`] if it does not wait for one.
    pub fn give_actor(&mut self, output: PolicyOutput) -> Result<(), EpisodeError> {
        if !matches!(self.phase, Phase::Actor) {
            return Err(EpisodeError::NotAsked { what: "an actor output", call_index: None });
        }
        let turn = self.n_turns;
        self.n_turns += 1;
        self.n_counted += 1;
        let text = sanitize(&output.text).into_owned();
        let parsed = parse_calls(&text, self.options.parsing);
        let is_blank = match self.options.parsing {
            ParseMode::Tolerant => parsed.content.is_empty() && !parsed.has_calls(),
            ParseMode::Reference => text.trim().is_empty(),
        };
        let fault = parsed.first_fault();
        self.record(GenerationKey::actor(turn), output, text, fault.map(|fault| fault.code()), is_blank);
        let message = self.messages.len();
        let calls = self.push_actor_message(turn, parsed);
        self.first_new_message = self.messages.len();
        if calls.is_empty() {
            self.has_reply = true;
            self.end_user_turn();
            return Ok(());
        }
        self.n_calls += calls.iter().flatten().count();
        self.n_malformed += usize::from(fault.is_some());
        let is_over = match self.options.on_malformed_call {
            ErrorPolicy::Report => self.n_malformed > self.options.max_malformed_calls,
            ErrorPolicy::Fatal => true,
        };
        if let (true, Some(fault)) = (is_over, fault) {
            for malformed in calls.iter().filter_map(|call| call.as_ref().err()) {
                self.push_response(turn, None, self.report(malformed));
            }
            let detail = format!("turn {turn}: {}: {}", fault.code(), fault.message());
            self.end(EndReason::MalformedCalls, Some(detail));
            return Ok(());
        }
        if self.options.max_turns_at == CapCheck::Turn && self.n_turns >= self.options.max_turns {
            let detail = format!("turn {turn}: its calls are left unanswered");
            self.end(EndReason::MaxTurns, Some(detail));
            return Ok(());
        }
        let slots = self.slots(calls);
        self.phase = Phase::Responses(PendingTurn { turn, message, slots });
        self.settle();
        Ok(())
    }

    /// Says that the actor's next prompt does not fit its context; this ends the episode.
    ///
    /// # Errors
    /// [`EpisodeError`] if it does not wait for the actor.
    pub fn actor_does_not_fit(&mut self) -> Result<(), EpisodeError> {
        if !matches!(self.phase, Phase::Actor) {
            return Err(EpisodeError::NotAsked { what: "an actor output", call_index: None });
        }
        self.end(EndReason::Length, Some(format!("the prompt of turn {} does not fit", self.n_turns)));
        Ok(())
    }

    /// Takes an output of the rehearsal role for call `call_index`, sampled as attempt `attempt`.
    ///
    /// # Errors
    /// [`EpisodeError`] if it does not wait for one.
    pub fn give_rehearsal(
        &mut self,
        call_index: usize,
        attempt: usize,
        output: PolicyOutput,
    ) -> Result<(), EpisodeError> {
        let turn = self.rehearsing(call_index, Some(attempt))?;
        let mode = self.options.parsing;
        let text = sanitize(&output.text).into_owned();
        let result = parse_result(&text, mode);
        let is_blank = match mode {
            ParseMode::Tolerant => split_reasoning(&text).1.is_empty(),
            ParseMode::Reference => text.trim().is_empty(),
        };
        let key = GenerationKey::rehearsal(turn, call_index, attempt);
        self.record(key, output, text, result.as_ref().err().map(|fault| fault.code()), is_blank);
        self.n_counted += usize::from(attempt == 0);
        let state = match result {
            Ok(text) => SlotState::Answered(Response {
                error_code: self.error_in(&text),
                text,
                author: Author::Rehearsal,
                generation: Some(key),
            }),
            Err(_) if attempt + 1 < self.options.rehearsal_attempts => {
                SlotState::Rehearsing { attempt: attempt + 1 }
            }
            Err(fault) => match self.options.on_malfunction {
                MalfunctionPolicy::Fail => SlotState::Failed(fault.code()),
                MalfunctionPolicy::Respond => SlotState::Answered(Response {
                    text: error_response(mode, fault.code(), fault.message()),
                    author: Author::Rehearsal,
                    error_code: Some(fault.code().to_owned()),
                    generation: Some(key),
                }),
            },
        };
        self.set_slot(call_index, state);
        Ok(())
    }

    /// Says that the shortest rehearsal prompt for call `call_index` does not fit; this ends the episode once the
    /// other calls of the turn are answered.
    ///
    /// # Errors
    /// [`EpisodeError`] if that call does not wait for the rehearsal role.
    pub fn rehearsal_does_not_fit(&mut self, call_index: usize) -> Result<(), EpisodeError> {
        self.rehearsing(call_index, None)?;
        self.set_slot(call_index, SlotState::DoesNotFit);
        Ok(())
    }

    /// Takes the response of the executable world to call `call_index`.
    ///
    /// # Errors
    /// [`EpisodeError`] if that call does not wait for one.
    pub fn give_response(&mut self, call_index: usize, text: &str) -> Result<(), EpisodeError> {
        let is_asked = matches!(&self.phase, Phase::Responses(pending)
            if pending.slots.get(call_index).is_some_and(|slot| matches!(slot.state, SlotState::External)));
        if !is_asked {
            return Err(EpisodeError::NotAsked { what: "a response", call_index: Some(call_index) });
        }
        let text = sanitize(text).into_owned();
        let error_code = self.error_in(&text);
        let response = Response { text, author: Author::World, error_code, generation: None };
        self.set_slot(call_index, SlotState::Answered(response));
        Ok(())
    }

    /// Takes the grade of the user turn that just ended: whether the next one may begin.
    ///
    /// # Errors
    /// [`EpisodeError`] if it does not wait for one.
    pub fn give_gate(&mut self, passes: bool) -> Result<(), EpisodeError> {
        if !matches!(self.phase, Phase::Gate) {
            return Err(EpisodeError::NotAsked { what: "a grade", call_index: None });
        }
        if passes {
            self.next_user_turn();
        } else {
            self.end(EndReason::Gated, Some(format!("user turn {} did not pass", self.user_turn)));
        }
        Ok(())
    }

    /// Gives the episode up; one that has ended stays as it is.
    pub fn abort(&mut self, detail: impl Into<String>) {
        if !self.is_done() {
            self.end(EndReason::Aborted, Some(detail.into()));
        }
    }

    fn record(
        &mut self,
        key: GenerationKey,
        output: PolicyOutput,
        text: String,
        error_code: Option<&'static str>,
        is_blank: bool,
    ) {
        let PolicyOutput { n_tokens, finish_reason, .. } = output;
        let user_turn = self.user_turn;
        let record = GenerationRecord { key, user_turn, n_tokens, text, finish_reason, error_code, is_blank };
        self.generations.insert(key, record);
    }

    /// Adds the actor's message; returns its calls, the well-formed ones with their ids.
    fn push_actor_message(
        &mut self,
        turn: usize,
        parsed: ParsedOutput,
    ) -> Vec<Result<ToolCall, MalformedCall>> {
        let with_id = |(index, call): (usize, Result<ParsedCall, MalformedCall>)| {
            call.map(|ParsedCall { name, arguments }| ToolCall {
                id: format!("call_{turn}_{index}"),
                name,
                arguments,
            })
        };
        let calls: Vec<Result<ToolCall, MalformedCall>> =
            parsed.calls.into_iter().enumerate().map(with_id).collect();
        let mut message = ChatMessage::text(Speaker::Assistant, parsed.content);
        message.reasoning_content = parsed.reasoning;
        message.tool_calls = calls.iter().flatten().cloned().collect();
        let mut notes = MessageNotes::new(Author::Actor, self.user_turn, Some(turn));
        notes.generation = Some(GenerationKey::actor(turn));
        notes.error_code = calls.iter().find_map(|call| Some(call.as_ref().err()?.fault.code().to_owned()));
        self.push(message, notes);
        calls
    }

    /// Answers what needs no environment, and asks for the rest.
    fn slots(&mut self, calls: Vec<Result<ToolCall, MalformedCall>>) -> Vec<Slot> {
        let max_calls = self.options.max_parallel_calls;
        let mut n_left = match self.options.max_generations {
            0 => usize::MAX,
            max => max.saturating_sub(self.n_counted),
        };
        let mut slots = Vec::with_capacity(calls.len());
        for (index, call) in calls.into_iter().enumerate() {
            let slot = match call {
                Err(malformed) => Slot { call: None, state: SlotState::Answered(self.report(&malformed)) },
                Ok(call) if max_calls > 0 && index >= max_calls => {
                    let message = format!("at most {max_calls} calls at a time");
                    Slot { call: Some(call), state: self.refused(TOO_MANY_CALLS, &message) }
                }
                Ok(call) => {
                    let state = match self.guards.check(&self.task, &call.name, &call.arguments) {
                        Guarded::Refused { code, message } => self.refused(code, &message),
                        Guarded::Replayed(text) => SlotState::Answered(Response {
                            error_code: self.error_in(&text),
                            text,
                            author: Author::Replay,
                            generation: None,
                        }),
                        Guarded::Passed if self.options.environment == Environment::World => {
                            SlotState::External
                        }
                        Guarded::Passed if n_left == 0 => SlotState::BeyondCap,
                        Guarded::Passed => {
                            n_left -= 1;
                            SlotState::Rehearsing { attempt: 0 }
                        }
                    };
                    Slot { call: Some(call), state }
                }
            };
            slots.push(slot);
        }
        slots
    }

    fn refused(&self, code: &str, message: &str) -> SlotState {
        SlotState::Answered(Response {
            text: error_response(self.options.parsing, code, message),
            author: Author::Envace,
            error_code: Some(code.to_owned()),
            generation: None,
        })
    }

    /// What the actor is told about a malformed call.
    fn report(&self, malformed: &MalformedCall) -> Response {
        let (code, message) = (malformed.fault.code(), malformed.fault.message());
        let mode = self.options.parsing;
        let text = match mode {
            ParseMode::Tolerant => error_response(mode, code, message),
            ParseMode::Reference => {
                let text = PyValue::Text(format!("{code}: {message}"));
                PyValue::Dict(vec![(mode.error_key().to_owned(), text)]).dumps(Dumps::ASCII)
            }
        };
        Response { text, author: Author::Envace, error_code: Some(code.to_owned()), generation: None }
    }

    fn error_in(&self, response: &str) -> Option<String> {
        match self.options.parsing {
            ParseMode::Tolerant => error_code_of(response),
            ParseMode::Reference => is_reference_error(response)
                .then(|| error_code_of(response).unwrap_or_else(|| "ERROR".to_owned())),
        }
    }

    /// The turn, if call `call_index` waits for the rehearsal role (at that attempt).
    fn rehearsing(&self, call_index: usize, attempt: Option<usize>) -> Result<usize, EpisodeError> {
        let waiting = match &self.phase {
            Phase::Responses(pending) => pending.slots.get(call_index).and_then(|slot| match slot.state {
                SlotState::Rehearsing { attempt } => Some((pending.turn, attempt)),
                _ => None,
            }),
            _ => None,
        };
        match waiting {
            Some((turn, asked)) if attempt.is_none_or(|attempt| attempt == asked) => Ok(turn),
            _ => Err(EpisodeError::NotAsked { what: "a rehearsal", call_index: Some(call_index) }),
        }
    }

    fn set_slot(&mut self, call_index: usize, state: SlotState) {
        if let Phase::Responses(pending) = &mut self.phase
            && let Some(slot) = pending.slots.get_mut(call_index)
        {
            slot.state = state;
        }
        self.settle();
    }

    /// Goes on once every call of the turn is settled.
    fn settle(&mut self) {
        let Phase::Responses(pending) = &mut self.phase else { return };
        if !pending.is_settled() {
            return;
        }
        let turn = pending.turn;
        let mut end: Option<(EndReason, String)> = None;
        for (index, slot) in std::mem::take(&mut pending.slots).into_iter().enumerate() {
            let failure = match slot.state {
                SlotState::Answered(response) => {
                    let error = response.error_code.clone();
                    // A call that could not be read has a policy of its own.
                    let is_fatal =
                        self.options.on_error_response == ErrorPolicy::Fatal && slot.call.is_some();
                    self.push_response(turn, slot.call, response);
                    error.filter(|_| is_fatal).map(|code| (EndReason::ErrorResponse, format!("error {code}")))
                }
                SlotState::Failed(code) => {
                    let n_attempts = self.options.rehearsal_attempts;
                    Some((
                        EndReason::RehearsalFailed,
                        format!("{n_attempts} malformed rehearsals, last {code}"),
                    ))
                }
                SlotState::DoesNotFit => {
                    Some((EndReason::RehearsalFailed, "the rehearsal prompt does not fit".to_owned()))
                }
                SlotState::BeyondCap => {
                    Some((EndReason::MaxGenerations, "no policy output is left for it".to_owned()))
                }
                SlotState::Rehearsing { .. } | SlotState::External => None,
            };
            if let (None, Some((reason, detail))) = (&end, failure) {
                end = Some((reason, format!("turn {turn}, call {index}: {detail}")));
            }
        }
        match end {
            Some((reason, detail)) => self.end(reason, Some(detail)),
            None => self.ask_actor(Continuation::AfterResponses),
        }
    }

    fn push_response(&mut self, turn: usize, call: Option<ToolCall>, response: Response) {
        let mut message = ChatMessage::text(Speaker::Tool, response.text);
        let mut notes = MessageNotes::new(response.author, self.user_turn, Some(turn));
        notes.generation = response.generation;
        notes.error_code = response.error_code;
        match call {
            Some(call) => {
                message.tool_call_id = Some(call.id);
                message.name = Some(call.name);
                notes.arguments = Some(call.arguments);
            }
            None if self.options.parsing == ParseMode::Reference => {
                message.name = Some(ERROR_TOOL.to_owned())
            }
            None => {}
        }
        self.push(message, notes);
    }

    fn ask_actor(&mut self, continuation: Continuation) {
        if self.options.max_generations > 0 && self.n_counted >= self.options.max_generations {
            self.end(EndReason::MaxGenerations, None);
            return;
        }
        self.continuation = continuation;
        self.phase = Phase::Actor;
    }

    fn end_user_turn(&mut self) {
        match self.options.gate {
            Gate::After => self.next_user_turn(),
            Gate::Inline => self.phase = Phase::Gate,
        }
    }

    fn next_user_turn(&mut self) {
        let next = self.task.later_user_turns.get(self.user_turn).filter(|text| !text.is_empty()).cloned();
        let Some(text) = next else {
            self.end(EndReason::Finished, None);
            return;
        };
        if self.n_turns >= self.options.max_turns {
            self.end(EndReason::MaxTurns, None);
        } else if self.user_turn + 1 >= self.options.max_user_turns {
            self.end(EndReason::MaxUserTurns, None);
        } else {
            self.user_turn += 1;
            self.has_reply = false;
            self.push_script(ChatMessage::text(Speaker::User, text));
            self.ask_actor(Continuation::NewUserTurn);
        }
    }
}
