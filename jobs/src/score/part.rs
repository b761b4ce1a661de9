//! All graders on the trajectories of a part, in turn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envace_pipeline::Execution;
use envace_schemas::tables::{GenerationRow, JudgeCallRow, MessageRow, TrajectoryRow, VerdictRow};
use envace_sql::QuerySession;
use serde_json::Value;

use super::judge::{Judge, prompt_digest};
use super::programs::run_programs;
use super::queries::{GraderQuery, PartTables};
use crate::config::ScoreConfig;
use crate::context::{RunContext, section};
use crate::error::JobError;
use crate::task::Task;

/// `[score]` as it stands in a stage's key: files by the digests of their texts, wherever they lie.
///
/// # Errors
/// [`JobError`] if a file cannot be read, or is not what it must be.
pub fn key_section(config: &ScoreConfig) -> Result<Value, JobError> {
    let mut config = config.clone();
    if let Some(judge) = &mut config.judge {
        judge.prompt = prompt_digest(judge)?;
    }
    config.queries = GraderQuery::load(&config.queries)?.iter().map(GraderQuery::digest).collect();
    section("score", &config)
}

/// What grades beside the declared graders: programs, queries and the judge.
#[derive(Debug)]
pub struct ExternalGraders<'c> {
    config: &'c ScoreConfig,
    session: QuerySession,
    queries: Vec<GraderQuery>,
    judge: Option<Judge<'c>>,
}

/// The trajectories of a part.
#[derive(Debug, Clone, Copy)]
pub struct PartRows<'a> {
    /// The tasks of the set, by name.
    pub tasks: &'a BTreeMap<&'a str, &'a Arc<Task>>,
    /// The trajectories.
    pub trajectories: &'a [TrajectoryRow],
    /// Their messages.
    pub messages: &'a [MessageRow],
    /// Their generations.
    pub generations: &'a [GenerationRow],
}

impl<'c> ExternalGraders<'c> {
    /// Those of the configuration, with what a judge has answered already for `execution`.
    ///
    /// # Errors
    /// [`JobError`] if a file of theirs, or the store, cannot be read, or a query does not make verdicts.
    pub async fn open(ctx: &'c RunContext, execution: &Execution) -> Result<Self, JobError> {
        let config = &ctx.config.score;
        let queries = GraderQuery::load(&config.queries)?;
        for query in &queries {
            query.check().await?;
        }
        Ok(Self { config, session: ctx.query_session(), queries, judge: Judge::open(ctx, execution).await? })
    }

    /// Grades a part: `verdicts` are those of the declared graders, and in the end those of all, in the order of the
    /// table. The judge is asked last, as it is not asked what nothing hangs on. Returns its calls.
    ///
    /// # Errors
    /// As [`Judge::judge`]; [`JobError`] if a program cannot be started or a query fails.
    pub async fn grade(
        &mut self,
        execution: &Execution,
        part: PartRows<'_>,
        verdicts: &mut Vec<VerdictRow>,
    ) -> Result<Vec<JudgeCallRow>, JobError> {
        let PartRows { tasks, trajectories, messages, generations } = part;
        run_programs(&self.config.programs, self.config.grade, tasks, trajectories, messages, verdicts)
            .await?;
        if !self.queries.is_empty() {
            let names: BTreeSet<&str> = trajectories.iter().map(|row| row.task_id.as_str()).collect();
            let of_part = names.iter().filter_map(|name| tasks.get(name));
            let tasks = of_part.map(|task| task.row.clone()).collect();
            let tables = PartTables { tasks, trajectories, messages, generations };
            for query in &self.queries {
                verdicts.extend(query.verdicts(self.session, &tables).await?);
            }
            verdicts.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        }
        match &mut self.judge {
            Some(judge) => {
                let calls = judge.judge(execution, tasks, trajectories, messages, verdicts).await?;
                verdicts.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
                Ok(calls)
            }
            None => Ok(Vec::new()),
        }
    }
}

fn sort_key(row: &VerdictRow) -> (&str, i32, i32, &str, &str) {
    (&row.task_id, row.sample, row.user_turn, &row.grader, &row.item)
}
