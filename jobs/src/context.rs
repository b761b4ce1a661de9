//! One run in a store: its configuration, its tasks, its checkpoints.

mod adapters;
mod checkpoints;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envace_pipeline::{
    Execution, InputRef, Manifest, PipelineError, Plan, PlanRequest, RunConfig, StageId, StageOutput,
    StageSpec, Store, check_name,
};
use envace_schemas::Table;
use envace_schemas::tables::TaskRow;
use envace_sql::QuerySession;
use serde::Serialize;
use serde_json::Value;

use crate::config::Config;
use crate::error::JobError;
use crate::score::judge::Refresh;
use crate::task::Task;
use crate::task_set;

pub use adapters::{export_model, import_model, import_trained, import_unchanged, new_adapter};
pub use checkpoints::{IMPORT_SPEC, POLICY, PolicySource, REHEARSAL, WeightNames};

/// One run in a store.
#[derive(Debug, Clone)]
pub struct RunContext {
    /// Where artifacts live.
    pub store: Store,
    /// Name of the run.
    pub run: String,
    /// Effective configuration.
    pub config: Config,
    /// Whether a stage makes another attempt although it has an output.
    pub new_attempt: bool,
    /// Which questions a judge is asked again although they have an answer.
    pub refresh: Refresh,
    /// Queries given in place of declared ones, by the declared one's name.
    pub given_queries: BTreeMap<&'static str, GivenQuery>,
}

/// A query given in place of one of envace's own.
#[derive(Debug, Clone)]
pub struct GivenQuery {
    /// What to call it in messages: its file.
    pub name: String,
    /// Its SQL.
    pub text: String,
}

/// What a stage did.
#[derive(Debug, Clone)]
pub enum StageOutcome {
    /// It made an output.
    Made(Manifest),
    /// An output of the same key was there.
    Reused(Manifest),
}

impl StageOutcome {
    /// The output.
    pub fn manifest(&self) -> &Manifest {
        match self {
            Self::Made(manifest) | Self::Reused(manifest) => manifest,
        }
    }
}

impl RunContext {
    /// Opens a run. A given configuration is stored with a new run; once the run has an output it must be the same,
    /// apart from `[execution]`, unless `reconfigure`.
    ///
    /// # Errors
    /// [`JobError::Missing`] if the run has no configuration and none is given; [`JobError::Refused`] if the two
    /// differ, naming the first key.
    pub async fn open(
        store: Store,
        run: &str,
        given: Option<Config>,
        reconfigure: bool,
    ) -> Result<Self, JobError> {
        check_name("run", run)?;
        let stored = match store.run_config(run).await? {
            Some(text) => Some(Config::parse(&text, &format!("runs/{run}/config.toml"))?),
            None => None,
        };
        let config = match (stored, given) {
            (None, None) => {
                // Its name is a slip, or it is to begin.
                let what = unknown_run(&store, run).await?;
                return Err(JobError::missing(
                    what,
                    "give a new run a configuration with `--config FILE`; `envace-jobs config` prints one to begin with",
                ));
            }
            (Some(stored), None) => stored,
            (None, Some(given)) => given,
            (Some(stored), Some(given)) => {
                // A run without a table has not begun, whatever weights it has pinned: its configuration may still
                // be put right.
                let has_begun =
                    store.manifests(Some(run)).await?.iter().any(|manifest| !manifest.outputs.is_empty());
                let difference = first_difference(&stored, &given).filter(|_| has_begun && !reconfigure);
                if let Some(difference) = difference {
                    return Err(JobError::refused(
                        format!("run `{run}` began with another configuration: {difference}"),
                        "name another run; or pass `--reconfigure` and, to `run` or `sft`, `--from-step N` to go on with \
                         the new one from step N",
                    ));
                }
                given
            }
        };
        let text = config.to_toml()?;
        if let RunConfig::Other(_) = store.store_run_config(run, &text).await? {
            store.put(&envace_pipeline::Path::from_iter(["runs", run, "config.toml"]), text).await?;
        }
        Ok(Self {
            store,
            run: run.to_owned(),
            config,
            new_attempt: false,
            refresh: Refresh::Nothing,
            given_queries: BTreeMap::new(),
        })
    }

    /// What can change the last bits of what models compute here; opens the device.
    ///
    /// # Errors
    /// Those of [`open_device`](crate::config::ExecutionConfig::open_device).
    pub fn fingerprint(&self) -> Result<String, JobError> {
        Ok(envace_model::arithmetic_fingerprint(&self.config.execution.open_device()?))
    }

    /// The plan of a stage at a step. The stage is given `config` and nothing else.
    ///
    /// # Errors
    /// Those of [`Plan::make`].
    pub async fn plan(
        &self,
        spec: &StageSpec,
        step: u64,
        config: Value,
        inputs: Vec<InputRef>,
        fingerprint: Option<String>,
        n_parts: usize,
    ) -> Result<Plan, JobError> {
        let mut request = PlanRequest::new(spec, &self.run, step, config, inputs);
        request.fingerprint = fingerprint;
        request.n_parts = u32::try_from(n_parts).unwrap_or(u32::MAX);
        request.new_attempt = self.new_attempt;
        request.query_texts = self.query_texts(spec);
        Ok(Plan::make(&self.store, request).await?)
    }

    /// Follows a plan: reuses the output it found, or has `work` make the parts and commits them.
    ///
    /// # Errors
    /// Whatever `work` or the commit fails with.
    pub async fn follow(
        &self,
        plan: &Plan,
        work: impl AsyncFnOnce(&Execution) -> Result<(), JobError>,
    ) -> Result<StageOutcome, JobError> {
        if let Some(manifest) = plan.reused() {
            return Ok(StageOutcome::Reused(manifest.clone()));
        }
        let execution = Execution::new(&self.store, plan.clone());
        work(&execution).await?;
        Ok(StageOutcome::Made(execution.commit().await?))
    }

    /// What queries of a stage are run by.
    pub fn query_session(&self) -> QuerySession {
        QuerySession::default().with_memory_limit(self.config.execution.query_bytes())
    }

    /// Name for messages and text of a declared query, or of the one given in its place.
    pub fn query(&self, query: envace_schemas::Query) -> GivenQuery {
        let own = || GivenQuery { name: query.name.to_owned(), text: query.text.to_owned() };
        self.given_queries.get(query.name).cloned().unwrap_or_else(own)
    }

    /// The texts given in place of the queries that a stage declares, by their names.
    pub fn query_texts(&self, spec: &StageSpec) -> BTreeMap<String, String> {
        let given = spec.queries.iter().filter_map(|query| {
            let given = self.given_queries.get(query.name)?;
            Some((query.name.to_owned(), given.text.clone()))
        });
        given.collect()
    }

    /// The latest output of a stage of this run.
    ///
    /// # Errors
    /// [`JobError::Missing`] if there is none, with the command that makes it.
    pub async fn output(&self, stage: &str, step: u64) -> Result<StageOutput, JobError> {
        match StageOutput::latest(&self.store, &self.run, stage, step).await {
            Ok(output) => Ok(output),
            Err(PipelineError::NoOutput { id }) => Err(JobError::missing(
                format!("there is no output of {id}"),
                format!("run `envace-jobs {stage} --run {} --step {step}` first", self.run),
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses outputs that do not belong together: `output` must have been made from `source`, by the digest of its
    /// input of that name. After a new attempt at a stage, what was made from the old one is of another trajectory.
    ///
    /// # Errors
    /// [`JobError::Refused`] if it was made from something else, with the command that makes it anew.
    pub fn check_made_from(&self, output: &StageOutput, source: &InputRef) -> Result<(), JobError> {
        let manifest = output.manifest();
        if manifest.key_parts.inputs.get(&source.name) == Some(&source.digest) {
            return Ok(());
        }
        let StageId { stage, step, .. } = &manifest.id;
        Err(JobError::refused(
            format!("{} was made from other `{}` than there are now", manifest.id, source.name),
            format!("make it anew: envace-jobs {stage} --run {} --step {step} --new-attempt", self.run),
        ))
    }

    /// Refuses to mix supervised training and training on rollouts in one run: each has a chain of checkpoints, and a
    /// step would begin with one or the other.
    ///
    /// # Errors
    /// [`JobError::Refused`] if the run has an output of `stage`.
    pub async fn refuse_beside(&self, stage: &str) -> Result<(), JobError> {
        if self.store.latest(&self.run, stage, 0).await?.is_none() {
            return Ok(());
        }
        Err(JobError::refused(
            format!("run `{}` has outputs of `{stage}`, and a run has one chain of checkpoints", self.run),
            format!(
                "name another run, with `policy.checkpoint = \"run:{}\"` to go on from this one",
                self.run
            ),
        ))
    }

    /// The tasks of the configured set, in the order of their names, and the input they are.
    ///
    /// # Errors
    /// [`JobError::Missing`] if the set is not in the store; [`JobError::Task`] if a task breaks an invariant.
    pub async fn tasks(&self) -> Result<(InputRef, Vec<Arc<Task>>), JobError> {
        let output = task_set::output(&self.store, &self.config.tasks.set).await?;
        let rows: Vec<TaskRow> = output.read_all().await?;
        let tasks = rows.into_iter().map(|row| Task::parse(row).map(Arc::new)).collect::<Result<_, _>>()?;
        Ok((InputRef::table(output.manifest(), Table::Tasks)?, tasks))
    }

    /// The tasks of one split.
    ///
    /// # Errors
    /// As [`tasks`](Self::tasks); [`JobError::Missing`] if the split has no task.
    pub async fn tasks_of(&self, split: &str) -> Result<(InputRef, Vec<Arc<Task>>), JobError> {
        let (input, mut tasks) = self.tasks().await?;
        let mut splits: Vec<String> = tasks.iter().map(|task| task.row.split.clone()).collect();
        splits.sort_unstable();
        splits.dedup();
        tasks.retain(|task| task.row.split == split);
        if tasks.is_empty() {
            return Err(JobError::missing(
                format!("task set `{}` has no task in split: {split}", self.config.tasks.set),
                format!("it has the splits {}", splits.join(", ")),
            ));
        }
        Ok((input, tasks))
    }
}

/// Refuses to look for a run that is not in the store.
///
/// # Errors
/// [`JobError::Missing`] with the runs that are.
pub async fn refuse_unknown_run(store: &Store, run: &str) -> Result<(), JobError> {
    let is_known = store.run_config(run).await?.is_some() || !store.manifests(Some(run)).await?.is_empty();
    if is_known {
        return Ok(());
    }
    let what = unknown_run(store, run).await?;
    Err(JobError::missing(what, "name one that is there, or another store with `--store`"))
}

async fn unknown_run(store: &Store, run: &str) -> Result<String, JobError> {
    // A task set is an output too, but no run.
    let manifests = store.manifests(None).await?;
    let runs = manifests.iter().filter(|manifest| manifest.id.stage != task_set::SPEC.name);
    let runs: BTreeSet<&str> = runs.map(|manifest| manifest.id.run.as_str()).collect();
    let known = match runs.len() {
        0 => "it has none".to_owned(),
        _ => format!("it has {}", runs.into_iter().collect::<Vec<_>>().join(", ")),
    };
    Ok(format!("there is no run `{run}` in the store {}; {known}", store.uri()))
}

/// A config section as JSON, for a stage key.
///
/// # Errors
/// [`JobError::Json`] if a value has no JSON form.
pub fn section(name: &str, section: &impl Serialize) -> Result<Value, JobError> {
    serde_json::to_value(section)
        .map_err(|source| JobError::Json { what: format!("config section `{name}`"), source })
}

/// The first key in which two configurations differ, `[execution]` aside.
fn first_difference(stored: &Config, given: &Config) -> Option<String> {
    let value = |config: &Config| {
        let config = Config { execution: Config::default().execution, ..config.clone() };
        toml::Value::try_from(config).ok()
    };
    difference("", &value(stored)?, &value(given)?)
}

fn difference(key: &str, stored: &toml::Value, given: &toml::Value) -> Option<String> {
    let (toml::Value::Table(stored), toml::Value::Table(given)) = (stored, given) else {
        return (stored != given).then(|| format!("`{key}` was {stored}, is {given}"));
    };
    let inner = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    for (name, stored) in stored {
        match given.get(name) {
            None => return Some(format!("`{}` was {stored}, is left out", inner(name))),
            Some(given) => {
                if let Some(found) = difference(&inner(name), stored, given) {
                    return Some(found);
                }
            }
        }
    }
    let added = given.iter().find(|(name, _)| !stored.contains_key(*name));
    added.map(|(name, value)| format!("`{}` was left out, is {value}", inner(name)))
}
