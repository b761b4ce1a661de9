//! A judge model that reads checklists: asked over HTTP, once for each question, with every call kept.
//!
//! The user turns of all trajectories are judged in order: what lies beyond a required item that did not pass counts
//! for nothing, so nothing is asked about it.

mod answer;
mod client;
mod completion;
mod estimate;
mod prompt;
mod question;
mod recorded;
mod rehearsal;
mod trajectory;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use envace_pipeline::Execution;
use envace_schemas::tables::{JudgeCallRow, MessageRow, TrajectoryRow, VerdictRow};
use futures::StreamExt;
use serde_json::Value;

use self::client::{CallErrorKind, Client};
use self::prompt::Prompts;
use self::question::{Question, QuestionKey};
use self::recorded::{Recorded, Tries, keep};
use self::trajectory::{Asking, JudgedTrajectory, Point};
use super::GradeOptions;
use super::stage::{self, messages_of};
use crate::config::{JudgeConfig, JudgeEndpoints};
use crate::context::RunContext;
use crate::error::JobError;
use crate::progress::Progress;
use crate::task::Task;

pub use estimate::{JudgeEstimate, estimate};
pub use prompt::CHECKLIST_PROMPT;
pub use recorded::Refresh;
pub use trajectory::{CHECKLIST, REHEARSAL_CHECKLIST};

/// Answers that are kept together at most.
const KEPT_TOGETHER: usize = 64;
/// Longest time an answer waits for others to be kept with.
const KEPT_AFTER: Duration = Duration::from_secs(2);

/// The judge of a stage.
#[derive(Debug)]
pub struct Judge<'c> {
    config: &'c JudgeConfig,
    limits: &'c JudgeEndpoints,
    options: GradeOptions,
    prompts: Arc<Prompts>,
    recorded: Recorded,
    /// Made when the first call is.
    client: Option<Client>,
    begun: Instant,
}

impl<'c> Judge<'c> {
    /// The judge of the configuration, with what is recorded for `execution`; `None` if there is none.
    ///
    /// # Errors
    /// [`JobError`] if its prompt or the recorded calls cannot be read.
    pub async fn open(ctx: &'c RunContext, execution: &Execution) -> Result<Option<Self>, JobError> {
        let Some(config) = &ctx.config.score.judge else { return Ok(None) };
        Ok(Some(Self {
            config,
            limits: &ctx.config.execution.judge,
            options: ctx.config.score.grade,
            prompts: Arc::new(Prompts::load(&config.prompt)?),
            recorded: Recorded::load(ctx, execution).await?,
            client: None,
            begun: Instant::now(),
        }))
    }

    /// Judges trajectories, whose `verdicts` by other graders are there, and adds its own at
    /// the end. Returns the calls they rest on.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the endpoints are down or refuse everything, or time is up: what is answered by then is
    /// kept, and the next run of the stage goes on from it.
    pub async fn judge(
        &mut self,
        execution: &Execution,
        tasks: &BTreeMap<&str, &Arc<Task>>,
        trajectories: &[TrajectoryRow],
        messages: &[MessageRow],
        verdicts: &mut Vec<VerdictRow>,
    ) -> Result<Vec<JudgeCallRow>, JobError> {
        let prompts = Arc::clone(&self.prompts);
        let asking = &Asking::new(self.config, &prompts, self.options)?;
        let mut judged = judged_trajectories(asking, tasks, trajectories, messages, verdicts)?;
        let n_user_turns = judged.iter().map(JudgedTrajectory::n_user_turns).max().unwrap_or(0);
        let mut calls = Vec::new();
        for user_turn in 0..n_user_turns {
            let points = judged.iter().map(|judged| judged.points(asking, user_turn));
            let points = points.collect::<Result<Vec<_>, _>>()?;
            let questions: Vec<&Question> = points.iter().flatten().flat_map(Point::questions).collect();
            let answers = self.answers(execution, &questions).await?;
            for (judged, points) in judged.iter_mut().zip(points) {
                verdicts.extend(judged.verdicts(asking, user_turn, points, &answers));
            }
            calls.extend(answers.into_values().flatten());
        }
        calls.sort_by(|a, b| call_key(a).cmp(&call_key(b)));
        Ok(calls)
    }

    /// The tries of every question, the recorded ones first; each different question is asked once.
    async fn answers(
        &mut self,
        execution: &Execution,
        questions: &[&Question],
    ) -> Result<BTreeMap<QuestionKey, Vec<JudgeCallRow>>, JobError> {
        let mut seen = BTreeSet::new();
        let open: Vec<&Question> = questions
            .iter()
            .copied()
            .filter(|question| self.recorded.get(&question.hash).is_none() && seen.insert(&question.hash))
            .collect();
        if !open.is_empty() {
            self.ask(execution, &open).await?;
        }
        let tries = |question: &&Question| {
            let tries = self.recorded.get(&question.hash).into_iter().flat_map(Tries::values);
            (question.key.clone(), tries.map(|tried| question.row(tried)).collect())
        };
        Ok(questions.iter().map(tries).collect())
    }

    async fn ask(&mut self, execution: &Execution, open: &[&Question]) -> Result<(), JobError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::new(self.limits, self.config.structured_output)?,
        };
        let progress = Progress::begin("judge", open.len() as u64, "questions");
        let schema = answer::schema();
        let (mut answered, mut held) = (Vec::new(), Vec::new());
        let stopped = {
            let recorded = &self.recorded;
            let (config, client, schema) = (self.config, &client, &schema);
            let asked = open.iter().map(|question| {
                let first = recorded.next_index(&question.hash);
                ask_until_readable(client, config, schema, question, first)
            });
            let mut asked = futures::stream::iter(asked).buffer_unordered(self.limits.concurrency);
            let deadline = self.deadline();
            let (mut waiting, mut since) = (Vec::new(), Instant::now());
            let stopped = loop {
                let next = match deadline {
                    Some(deadline) => tokio::time::timeout_at(deadline, asked.next()).await,
                    None => Ok(asked.next().await),
                };
                match next {
                    Err(_) => break Some(Stopped::OutOfTime),
                    Ok(None) => break None,
                    Ok(Some(Err(reason))) => break Some(Stopped::Endpoint(reason)),
                    // What may pass is a failure only if all is well with the servers in the end.
                    Ok(Some(Ok(Asked { tries, is_passing: true }))) => {
                        progress.advance(1, 0);
                        held.push(tries);
                    }
                    Ok(Some(Ok(Asked { tries, is_passing: false }))) => {
                        let n_tokens = tries.iter().filter_map(|tried| tried.n_response_tokens).sum::<i64>();
                        progress.advance(1, n_tokens.unsigned_abs());
                        waiting.extend(tries.iter().cloned());
                        answered.push(tries);
                    }
                }
                if waiting.len() >= KEPT_TOGETHER || since.elapsed() >= KEPT_AFTER {
                    keep(execution, &std::mem::take(&mut waiting)).await?;
                    since = Instant::now();
                }
            };
            if stopped.is_none() {
                waiting.extend(held.iter().flatten().cloned());
            }
            if !waiting.is_empty() {
                keep(execution, &waiting).await?;
            }
            stopped
        };
        self.client = Some(client);
        let n_answered = answered.len();
        if let Some(stopped) = stopped {
            return Err(stopped.error(n_answered, open.len(), self.limits));
        }
        for tries in answered.into_iter().chain(held) {
            self.recorded.insert(tries);
        }
        Ok(())
    }

    fn deadline(&self) -> Option<tokio::time::Instant> {
        let limit = Duration::from_secs_f64(self.limits.total_timeout_s);
        (!limit.is_zero()).then(|| tokio::time::Instant::from_std(self.begun + limit))
    }
}

/// Digest of the prompts for a stage's key.
///
/// # Errors
/// [`JobError`] if the prompt's file cannot be read, or is no template.
pub(super) fn prompt_digest(config: &JudgeConfig) -> Result<String, JobError> {
    Ok(Prompts::load(&config.prompt)?.digest(config.rehearsal))
}

/// The trajectories that raise questions.
fn judged_trajectories<'a>(
    asking: &Asking<'_>,
    tasks: &BTreeMap<&str, &'a Arc<Task>>,
    trajectories: &'a [TrajectoryRow],
    messages: &'a [MessageRow],
    verdicts: &[VerdictRow],
) -> Result<Vec<JudgedTrajectory<'a>>, JobError> {
    let mut all = Vec::new();
    for trajectory in trajectories {
        let Some(task) = tasks.get(trajectory.task_id.as_str()) else { continue };
        let key = (trajectory.task_id.as_str(), trajectory.sample);
        let start = verdicts.partition_point(|verdict| (verdict.task_id.as_str(), verdict.sample) < key);
        let own = verdicts.iter().skip(start);
        let own = own.take_while(|verdict| (verdict.task_id.as_str(), verdict.sample) == key);
        let messages = messages_of(messages, trajectory);
        let judged = JudgedTrajectory::new(task, asking.config, trajectory, messages, own)?;
        if judged.is_judged(asking) {
            all.push(judged);
        }
    }
    Ok(all)
}

/// Why asking stopped early.
enum Stopped {
    Endpoint(String),
    OutOfTime,
}

impl Stopped {
    fn error(self, n_answered: usize, n_asked: usize, limits: &JudgeEndpoints) -> JobError {
        let kept = format!("{n_answered} of {n_asked} open questions were answered and are kept");
        match self {
            Self::Endpoint(reason) => JobError::refused(
                format!("the judge cannot be asked: {reason}; {kept}"),
                format!(
                    "see whether the server runs, `execution.judge.urls`, `score.judge.model`, and the key in {}; then run \
                     the same command again",
                    limits.api_key_env
                ),
            ),
            Self::OutOfTime => JobError::refused(
                format!("the judge took longer than {} s in all; {kept}", limits.total_timeout_s),
                "run the same command again to go on, or raise `execution.judge.total_timeout_s`",
            ),
        }
    }
}

/// What came of asking a question.
struct Asked {
    /// The tries, the last of them with the answer if there is one.
    tries: Vec<JudgeCallRow>,
    /// Whether the last one failed for a reason that may pass.
    is_passing: bool,
}

/// Asks a question until its answer can be read.
///
/// # Errors
/// Why no question can be asked any more.
async fn ask_until_readable(
    client: &Client,
    config: &JudgeConfig,
    schema: &Value,
    question: &Question,
    first_index: i32,
) -> Result<Asked, String> {
    let mut tries: Vec<JudgeCallRow> = Vec::new();
    for try_index in (first_index..).take(config.readable_tries as usize) {
        let (request, outcome) = client.complete(&question.request, schema).await;
        let mut row = JudgeCallRow {
            task_id: String::new(),
            sample: 0,
            user_turn: 0,
            grader: String::new(),
            item: String::new(),
            turn: 0,
            vote: 0,
            try_index,
            request_hash: question.hash.clone(),
            model: config.model.clone(),
            request: Value::Object(request).to_string(),
            response: None,
            is_passed: None,
            n_request_tokens: None,
            n_response_tokens: None,
            error: None,
        };
        match outcome {
            Ok(completion) => {
                match completion.content.and_then(|text| answer::read_answer(&text)) {
                    Ok(answer) => row.is_passed = Some(answer),
                    Err(reason) => row.error = Some(reason),
                }
                row.response = Some(completion.raw);
                row.n_request_tokens = completion.n_request_tokens;
                row.n_response_tokens = completion.n_response_tokens;
            }
            Err(error) if error.kind == CallErrorKind::Stop => return Err(error.reason),
            Err(error) => {
                row.error = Some(error.reason);
                row.response = error.body;
                tries.push(row);
                let is_passing = matches!(error.kind, CallErrorKind::Passing(_));
                return Ok(Asked { tries, is_passing });
            }
        }
        let is_answered = row.is_passed.is_some();
        tries.push(row);
        if is_answered {
            break;
        }
    }
    Ok(Asked { tries, is_passing: false })
}

fn call_key(row: &JudgeCallRow) -> (&str, i32, i32, &str, &str, i32, i32, i32) {
    let JudgeCallRow { task_id, sample, user_turn, grader, item, turn, vote, try_index, .. } = row;
    (task_id, *sample, *user_turn, grader, item, *turn, *vote, *try_index)
}
