//! What came of a group, and what two runs made differently: questions to the tables, printed one below the other.

use std::collections::BTreeSet;
use std::process::ExitCode;

use envace_pipeline::Store;
use envace_sql::{Format, Lake};

use super::StoreArgs;
use super::inspect::{lake, print_bytes};
use crate::context::refuse_unknown_run;
use crate::error::JobError;

/// Questions about a group; `$rows` says which run, step and task.
const GROUP: [(&str, &str); 4] = [
    (
        "Trajectories",
        "SELECT t.sample, t.end_reason, t.n_turns AS turns, t.n_calls AS calls, r.role, r.reward, r.n_graded AS graded, \
         r.n_items AS items, r.ungraded_reason \
         FROM (SELECT * FROM trajectories WHERE stage = 'rollout' AND $rows) AS t \
         LEFT JOIN (SELECT * FROM rewards WHERE stage = 'score' AND $rows) AS r ON r.sample = t.sample \
         ORDER BY t.sample, r.role",
    ),
    (
        "Items",
        "SELECT user_turn, grader, item, weight, is_required AS required, \
         count(*) FILTER (WHERE is_passed) AS passed, count(*) FILTER (WHERE NOT is_passed) AS failed, \
         count(*) FILTER (WHERE is_passed IS NULL) AS ungraded \
         FROM verdicts WHERE stage = 'score' AND $rows \
         GROUP BY user_turn, grader, item, weight, is_required ORDER BY user_turn, grader, item",
    ),
    (
        "Baselines",
        "SELECT role, baseline, deviation, group_size AS members, count(*) AS generations, min(advantage) AS least, \
         max(advantage) AS most \
         FROM advantages WHERE is_included AND $rows \
         GROUP BY role, baseline, deviation, group_size ORDER BY role, baseline",
    ),
    (
        "Generations",
        "SELECT a.sample, a.generation_index AS generation, a.role, g.user_turn, g.turn, g.n_tokens AS tokens, a.reward, \
         a.advantage, a.exclusion_reason, g.error_code \
         FROM (SELECT * FROM advantages WHERE $rows) AS a \
         LEFT JOIN (SELECT * FROM generations WHERE stage = 'rollout' AND $rows) AS g \
         ON g.sample = a.sample AND g.generation_index = a.generation_index \
         ORDER BY a.sample, a.generation_index",
    ),
];

/// Prints the group of a task at a step: its trajectories with their rewards, its items, the baseline of each role, and the
/// advantage of each generation.
pub async fn explain(store: &Store, run: &str, step: u64, task: &str) -> anyhow::Result<()> {
    refuse_unknown_run(store, run).await?;
    let lake = lake(store).await?;
    let rows = format!("run = {} AND step = {step} AND task_id = {}", literal(run), literal(task));
    let known = lake.query(&format!("SELECT 1 FROM advantages WHERE {rows} LIMIT 1")).await?;
    if known.n_rows() == 0 {
        return Err(JobError::missing(
            format!("step {step} of run `{run}` has no advantages of task: {task}"),
            format!("`envace-jobs show --run {run} --step {step}` lists the tasks of a step that is there"),
        )
        .into());
    }
    for (title, query) in GROUP {
        print_answer(&lake, title, &query.replace("$rows", &rows)).await?;
    }
    Ok(())
}

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// A run, or NAME@N for its attempts number N
    #[arg(value_name = "RUN_A")]
    a: String,

    /// Another, or the same with other attempts
    #[arg(value_name = "RUN_B")]
    b: String,

    /// Step to compare; left out, all that both have
    #[arg(long, value_name = "N")]
    step: Option<u64>,

    /// Rows of each table to list, of those that differ
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
}

/// A table that is compared: its name and stage, what a row is of, what is compared, and what says why.
struct Compared {
    table: &'static str,
    stage: &'static str,
    key: &'static [&'static str],
    value: &'static str,
    reason: &'static str,
}

const COMPARED: [Compared; 3] = [
    Compared {
        table: "verdicts",
        stage: "score",
        key: &["step", "task_id", "sample", "user_turn", "grader", "item"],
        value: "is_passed",
        reason: "reason",
    },
    Compared {
        table: "rewards",
        stage: "score",
        key: &["step", "task_id", "sample", "role"],
        value: "reward",
        reason: "ungraded_reason",
    },
    Compared {
        table: "advantages",
        stage: "advantage",
        key: &["step", "task_id", "sample", "generation_index", "role"],
        value: "advantage",
        reason: "exclusion_reason",
    },
];

impl DiffArgs {
    /// Exits with 0 if nothing differs, 1 if something does.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let store = Store::open_existing(&self.store.store)?;
        let sides = [side(&self.a)?, side(&self.b)?];
        for (run, _) in &sides {
            refuse_unknown_run(&store, run).await?;
        }
        let lake = lake(&store).await?;
        let mut n_different = 0;
        let mut is_compared = false;
        for compared in &COMPARED {
            let there = [
                steps(&store, sides[0], compared.stage, self.step).await?,
                steps(&store, sides[1], compared.stage, self.step).await?,
            ];
            let common: Vec<String> = there[0].intersection(&there[1]).map(ToString::to_string).collect();
            if common.is_empty() {
                let of = |index: usize, name: &str| match there[index].len() {
                    0 => format!("{name} has none"),
                    n => format!("{name} has them of {n} steps"),
                };
                eprintln!(
                    "{}: not compared, as there is no step of which both have them: {}, {}",
                    compared.table,
                    of(0, &self.a),
                    of(1, &self.b)
                );
                continue;
            }
            is_compared = true;
            let joined = joined(compared, &sides, &format!(" AND step IN ({})", common.join(", ")));
            let counts = format!(
                "SELECT step, count(*) FILTER (WHERE kind = 'same') AS same, \
                 count(*) FILTER (WHERE kind = 'changed') AS changed, count(*) FILTER (WHERE kind = 'only a') AS only_a, \
                 count(*) FILTER (WHERE kind = 'only b') AS only_b FROM ({joined}) GROUP BY step ORDER BY step"
            );
            print_answer(&lake, compared.table, &counts).await?;
            let key = compared.key.join(", ");
            let rows = format!(
                "SELECT {key}, kind, a, b, reason_a, reason_b FROM ({joined}) WHERE kind <> 'same' ORDER BY {key} LIMIT {}",
                self.limit.max(1)
            );
            let answer = lake.query(&rows).await?;
            n_different += answer.n_rows();
            if answer.n_rows() > 0 && self.limit > 0 {
                print_bytes(&answer.write(Format::Table)?)?;
            }
        }
        if !is_compared {
            anyhow::bail!("nothing was compared: {} and {} have no scores of the same step", self.a, self.b);
        }
        Ok(if n_different == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

/// The steps of which a side has an output of a stage.
async fn steps(
    store: &Store,
    (run, attempt): (&str, Option<u32>),
    stage: &str,
    step: Option<u64>,
) -> anyhow::Result<BTreeSet<u64>> {
    let manifests = store.manifests(Some(run)).await?;
    let ids = manifests.iter().map(|manifest| &manifest.id).filter(|id| id.stage == stage);
    let ids = ids.filter(|id| attempt.is_none_or(|attempt| id.attempt == attempt));
    Ok(ids.map(|id| id.step).filter(|of| step.is_none_or(|step| step == *of)).collect())
}

/// The run, and its attempts if they are named.
fn side(name: &str) -> anyhow::Result<(&str, Option<u32>)> {
    match name.rsplit_once('@') {
        None => Ok((name, None)),
        Some((run, attempt)) => match attempt.parse() {
            Ok(attempt) => Ok((run, Some(attempt))),
            Err(_) => anyhow::bail!("after `@` comes the number of an attempt: {name}"),
        },
    }
}

/// The rows of a table of both sides, side by side, each with how they compare.
fn joined(compared: &Compared, sides: &[(&str, Option<u32>); 2], step: &str) -> String {
    let Compared { table, stage, key, value, reason } = compared;
    let key_list = key.join(", ");
    let from = |(run, attempt): &(&str, Option<u32>)| {
        let (schema, of_attempt) = match attempt {
            Some(attempt) => ("history.", format!(" AND attempt = {attempt}")),
            None => ("", String::new()),
        };
        format!("FROM {schema}{table} WHERE run = {} AND stage = '{stage}'{of_attempt}{step}", literal(run))
    };
    let of_side = |side| {
        format!("SELECT {key_list}, {value} AS value, {reason} AS reason, true AS is_there {}", from(side))
    };
    let both: Vec<String> =
        key.iter().map(|column| format!("coalesce(a.{column}, b.{column}) AS {column}")).collect();
    let on: Vec<String> = key.iter().map(|column| format!("a.{column} = b.{column}")).collect();
    format!(
        "SELECT {}, a.value AS a, b.value AS b, a.reason AS reason_a, b.reason AS reason_b, \
         CASE WHEN b.is_there IS NULL THEN 'only a' WHEN a.is_there IS NULL THEN 'only b' \
              WHEN (a.value IS DISTINCT FROM b.value) OR (a.reason IS DISTINCT FROM b.reason) THEN 'changed' \
              ELSE 'same' END AS kind \
         FROM ({}) AS a FULL JOIN ({}) AS b ON {}",
        both.join(", "),
        of_side(&sides[0]),
        of_side(&sides[1]),
        on.join(" AND ")
    )
}

async fn print_answer(lake: &Lake, title: &str, query: &str) -> anyhow::Result<()> {
    let answer = lake.query(query).await?;
    print_bytes(format!("{title}\n").as_bytes())?;
    print_bytes(&answer.write(Format::Table)?)
}

/// A text in SQL.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
