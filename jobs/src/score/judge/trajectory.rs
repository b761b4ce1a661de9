//! Which questions a trajectory raises, and what their answers make of its items.

use std::collections::BTreeMap;

use envace_schemas::Decimal;
use envace_schemas::tables::{JudgeCallRow, MessageRow, TrajectoryRow, VerdictRow};
use serde_json::{Map, Value};

use super::prompt::{Material, Prompts, transcript};
use super::question::{Question, QuestionKey};
use super::rehearsal;
use crate::config::{Ask, JudgeConfig, ToolErrors};
use crate::error::JobError;
use crate::score::{Checklist, ChecklistItem, Fate, GradeOptions, Outcome};
use crate::task::Task;

/// The grader of a task's own checklist.
pub const CHECKLIST: &str = "checklist";
/// The grader of the rehearsal role's checklist.
pub const REHEARSAL_CHECKLIST: &str = "rehearsal_checklist";

/// What the questions of all trajectories have in common.
#[derive(Debug)]
pub(super) struct Asking<'j> {
    pub config: &'j JudgeConfig,
    pub prompts: &'j Prompts,
    pub extra: Map<String, Value>,
    pub options: GradeOptions,
    /// Items about the rehearsal role; empty if it is not judged.
    pub rehearsal: Vec<ChecklistItem>,
}

impl<'j> Asking<'j> {
    pub fn new(
        config: &'j JudgeConfig,
        prompts: &'j Prompts,
        options: GradeOptions,
    ) -> Result<Self, JobError> {
        let rehearsal = if config.rehearsal { rehearsal::items()? } else { Vec::new() };
        Ok(Self { config, prompts, extra: config.extra_fields()?, options, rehearsal })
    }
}

/// One trajectory under judgement.
#[derive(Debug)]
pub(super) struct JudgedTrajectory<'a> {
    task: &'a Task,
    checklist: Checklist,
    trajectory: &'a TrajectoryRow,
    messages: &'a [MessageRow],
    /// First user turn with a required item that did not pass.
    gate: Option<i32>,
}

/// An item of a user turn, and what is known of it before anything is asked.
#[derive(Debug)]
pub(super) struct Point {
    grader: &'static str,
    name: String,
    weight: Decimal,
    is_required: bool,
    /// What is asked, or the verdict itself.
    asked: Result<Vec<State>, Outcome>,
}

impl Point {
    /// The questions it raises.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        let states = self.asked.iter().flatten();
        states.filter_map(|state| match state {
            State::Ask(question) => Some(&**question),
            State::Failed => None,
        })
    }
}

/// A state of the transcript that is asked about.
#[derive(Debug)]
enum State {
    Ask(Box<Question>),
    /// It has failed without a question.
    Failed,
}

/// What a judge is shown of a user turn.
#[derive(Debug, Default)]
struct View {
    /// The user turns before it.
    earlier: String,
    /// Its states that are asked about, in order.
    states: Vec<ViewedState>,
}

#[derive(Debug)]
struct ViewedState {
    turn: i32,
    /// The user turn up to here.
    current: String,
    /// Whether a call of this turn was answered by an error report of the loop.
    has_loop_error: bool,
}

impl<'a> JudgedTrajectory<'a> {
    /// Prepares one trajectory; `verdicts` are those of its other graders.
    ///
    /// # Errors
    /// [`JobError::Task`] if its task's checklist cannot be read.
    pub fn new<'v>(
        task: &'a Task,
        config: &JudgeConfig,
        trajectory: &'a TrajectoryRow,
        messages: &'a [MessageRow],
        verdicts: impl Iterator<Item = &'v VerdictRow>,
    ) -> Result<Self, JobError> {
        let mut checklist = task.checklist()?;
        if config.variants > 0 {
            checklist.truncate(config.variants);
        }
        let closed = verdicts.filter(|verdict| verdict.is_required && verdict.is_passed != Some(true));
        let gate = closed.map(|verdict| verdict.user_turn).min();
        Ok(Self { task, checklist, trajectory, messages, gate })
    }

    /// User turns of its script.
    pub fn n_user_turns(&self) -> usize {
        self.task.n_user_turns()
    }

    /// Whether it raises any question.
    pub fn is_judged(&self, asking: &Asking<'_>) -> bool {
        !self.checklist.is_empty() || (!asking.rehearsal.is_empty() && self.trajectory.n_rehearsals > 0)
    }

    /// The items of a user turn, none if its script has ended.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the prompt cannot be filled in.
    pub fn points(&self, asking: &Asking<'_>, user_turn: usize) -> Result<Vec<Point>, JobError> {
        let mut points = Vec::new();
        if user_turn >= self.n_user_turns() {
            return Ok(points);
        }
        let known = self.known(asking, user_turn);
        let is_open = self.gate.is_none_or(|gate| index(user_turn) <= gate);
        let has_imagined = self.of(user_turn).any(|message| message.written_by == "rehearsal");
        let rehearsal = if is_open && has_imagined { asking.rehearsal.as_slice() } else { &[] };
        let view = match known.is_some() && rehearsal.is_empty() {
            true => View::default(),
            false => self.view(asking, user_turn),
        };
        for (variant, items) in self.checklist.iter().enumerate() {
            for item in items.get(user_turn).into_iter().flatten() {
                let name = match self.checklist.len() {
                    1 => item.id.clone(),
                    _ => format!("{variant}/{}", item.id),
                };
                let asked = match &known {
                    Some(outcome) => Err(outcome.clone()),
                    None => Ok(self.states(asking, user_turn, &view, CHECKLIST, &name, item)?),
                };
                let (weight, is_required) = (self.weight(item)?, item.is_required);
                points.push(Point { grader: CHECKLIST, name, weight, is_required, asked });
            }
        }
        for item in rehearsal {
            let (name, weight) = (item.id.clone(), self.weight(item)?);
            let asked = Ok(self.states(asking, user_turn, &view, REHEARSAL_CHECKLIST, &name, item)?);
            points.push(Point { grader: REHEARSAL_CHECKLIST, name, weight, is_required: false, asked });
        }
        Ok(points)
    }

    /// The verdicts on the items of a user turn, by the answers to their questions; closes the gate if a required item
    /// did not pass.
    pub fn verdicts(
        &mut self,
        asking: &Asking<'_>,
        user_turn: usize,
        points: Vec<Point>,
        answers: &BTreeMap<QuestionKey, Vec<JudgeCallRow>>,
    ) -> Vec<VerdictRow> {
        let mut verdicts = Vec::new();
        for point in points {
            let request_hash = point.questions().next().map(|question| question.hash.clone());
            let outcome = match point.asked {
                Err(outcome) => outcome,
                Ok(states) => combine(asking, &states, answers),
            };
            verdicts.push(VerdictRow {
                task_id: self.trajectory.task_id.clone(),
                sample: self.trajectory.sample,
                user_turn: index(user_turn),
                grader: point.grader.to_owned(),
                item: point.name,
                is_passed: outcome.is_passed,
                reason: outcome.reason,
                weight: point.weight,
                is_required: point.is_required,
                request_hash,
            });
        }
        let is_closed = verdicts.iter().any(|verdict| verdict.is_required && verdict.is_passed != Some(true));
        if is_closed {
            self.gate = Some(self.gate.unwrap_or(i32::MAX).min(index(user_turn)));
        }
        verdicts
    }

    fn weight(&self, item: &ChecklistItem) -> Result<Decimal, JobError> {
        item.decimal_weight().map_err(|reason| {
            JobError::refused(format!("task `{}`: {reason}", self.task.id()), "mend the task set")
        })
    }

    /// The verdict on every item of the user turn, where no judge is needed for it.
    fn known(&self, asking: &Asking<'_>, user_turn: usize) -> Option<Outcome> {
        if self.gate.is_some_and(|gate| gate < index(user_turn)) {
            return Some(Outcome::ungraded("not asked: beyond the gate, where nothing counts"));
        }
        let outcome = Fate::of(self.trajectory, user_turn).outcome(self.trajectory, asking.options);
        let is_silent = || !self.of(user_turn).any(|message| message.speaker == "assistant");
        outcome.or_else(|| is_silent().then(|| Outcome::failed("the actor said nothing")))
    }

    fn of(&self, user_turn: usize) -> impl Iterator<Item = &'a MessageRow> {
        self.messages.iter().filter(move |message| message.user_turn == index(user_turn))
    }

    fn view(&self, asking: &Asking<'_>, user_turn: usize) -> View {
        let mut turns: Vec<i32> = self.of(user_turn).filter_map(|message| message.turn).collect();
        turns.sort_unstable();
        turns.dedup();
        if asking.config.ask == Ask::FinalState {
            turns.drain(..turns.len().saturating_sub(1));
        }
        let is_error = |message: &MessageRow| {
            message.speaker == "tool" && message.written_by == "envace" && message.error_code.is_some()
        };
        let state = |turn: i32| {
            let until = |message: &&MessageRow| message.turn.is_none_or(|of| of <= turn);
            let mut of_turn = self.of(user_turn).filter(|message| message.turn == Some(turn));
            let has_loop_error = of_turn.any(is_error);
            ViewedState { turn, current: transcript(self.of(user_turn).filter(until)), has_loop_error }
        };
        View {
            earlier: transcript(self.messages.iter().filter(|message| message.user_turn < index(user_turn))),
            states: turns.into_iter().map(state).collect(),
        }
    }

    fn states(
        &self,
        asking: &Asking<'_>,
        user_turn: usize,
        view: &View,
        grader: &'static str,
        name: &str,
        item: &ChecklistItem,
    ) -> Result<Vec<State>, JobError> {
        let n_before = match grader {
            CHECKLIST => 0,
            // What was imagined is asked about at the end alone.
            _ => view.states.len().saturating_sub(1),
        };
        // The reference looks at the responses that follow the step it asks about.
        let is_strict = asking.config.tool_errors == ToolErrors::Failed && item.focus_on.is_of_tools();
        let mut states = Vec::new();
        for ViewedState { turn, current, has_loop_error } in view.states.iter().skip(n_before) {
            if is_strict && *has_loop_error {
                states.push(State::Failed);
                continue;
            }
            let material = Material { item, task: self.task, earlier: &view.earlier, current };
            let prompt = match grader {
                CHECKLIST => asking.prompts.checklist(material)?,
                _ => asking.prompts.rehearsal(material)?,
            };
            for vote in 0..asking.config.votes {
                let key = QuestionKey {
                    task_id: self.trajectory.task_id.clone(),
                    sample: self.trajectory.sample,
                    user_turn: index(user_turn),
                    grader,
                    item: name.to_owned(),
                    turn: *turn,
                    vote,
                };
                states.push(State::Ask(Box::new(Question::new(key, &prompt, asking.config, &asking.extra))));
            }
        }
        Ok(states)
    }
}

fn index(user_turn: usize) -> i32 {
    i32::try_from(user_turn).unwrap_or(i32::MAX)
}

/// What the answers say: the majority of votes on each state, and whether any state passes.
fn combine(
    asking: &Asking<'_>,
    states: &[State],
    answers: &BTreeMap<QuestionKey, Vec<JudgeCallRow>>,
) -> Outcome {
    let n_votes = asking.config.votes;
    // Votes for and against, by state, and why others are missing; a state without votes is decided.
    let mut passed = Some(false);
    let mut missing: Option<String> = None;
    let mut by_turn: BTreeMap<i32, (u32, u32)> = BTreeMap::new();
    for state in states {
        let State::Ask(question) = state else { continue };
        let last = answers.get(&question.key).and_then(|tries| tries.last());
        let (yes, no) = by_turn.entry(question.key.turn).or_default();
        match last.and_then(|call| call.is_passed) {
            Some(true) => *yes += 1,
            Some(false) => *no += 1,
            None => {
                let reason = last.and_then(|call| call.error.clone());
                missing.get_or_insert_with(|| reason.unwrap_or_else(|| "no answer is recorded".to_owned()));
            }
        }
    }
    for (yes, no) in by_turn.into_values() {
        match (2 * yes > n_votes, 2 * no > n_votes) {
            (true, _) => return Outcome::passed(),
            (_, true) => {}
            _ => passed = None,
        }
    }
    match passed {
        Some(_) if states.iter().all(|state| matches!(state, State::Failed)) => {
            Outcome::failed("a call was answered by an error report of the loop")
        }
        Some(_) => Outcome::failed("the judge says no"),
        None => {
            Outcome::ungraded(format!("judge: {}", missing.unwrap_or_else(|| "votes are even".to_owned())))
        }
    }
}
