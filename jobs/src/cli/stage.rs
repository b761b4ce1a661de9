use std::path::PathBuf;
use std::process::ExitCode;

use envace_pipeline::{Manifest, PlanState, Store};
use envace_schemas::Table;

use super::RunArgs;
use super::explain::explain;
use super::inspect::{print_bytes, print_line};
use crate::advantage;
use crate::context::{GivenQuery, RunContext, StageOutcome};
use crate::drive::Stage;
use crate::memory::stage_memory;
use crate::rerun::rerun;
use crate::score::judge::{self, CHECKLIST_PROMPT, Refresh};
use crate::trainable::{refuse_another_kind, refuse_untrainable};

pub use crate::drive::Stage as Which;

/// Arguments of every stage.
#[derive(Debug, clap::Args)]
pub struct StageArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Step of the run
    #[arg(long, value_name = "N")]
    step: u64,

    /// Print what would be read, made and reused, and write no table
    #[arg(long)]
    dry_run: bool,

    /// Make another attempt although there is an output
    #[arg(long)]
    new_attempt: bool,
}

impl StageArgs {
    /// Runs the stage, or prints its plan.
    pub async fn run(self, stage: Which) -> anyhow::Result<ExitCode> {
        let mut ctx = self.run.open().await?;
        ctx.new_attempt = self.new_attempt;
        run_stage(&ctx, stage, self.step, self.dry_run).await
    }
}

/// Arguments of `score`.
#[derive(Debug, clap::Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    stage: StageArgs,

    /// Print how many calls of the judge, tokens and, with prices in the configuration, money it would take; ask nothing
    #[arg(long, conflicts_with = "dry_run")]
    estimate: bool,

    /// Ask the judge again, as a new attempt: `failed` questions only, or `all`
    #[arg(long, value_enum, value_name = "WHICH", default_value = "nothing")]
    refresh: Refresh,

    /// Print the built-in prompt of the judge and stop: a start for one of your own
    #[arg(long)]
    print_prompt: bool,
}

impl ScoreArgs {
    /// Runs the stage, or prints its plan, an estimate or a prompt.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        if self.print_prompt {
            print_bytes(CHECKLIST_PROMPT.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut ctx = self.stage.run.open().await?;
        ctx.refresh = self.refresh;
        // What was asked before stands as it is.
        ctx.new_attempt = self.stage.new_attempt || self.refresh != Refresh::Nothing;
        if self.estimate {
            match judge::estimate(&ctx, self.stage.step).await? {
                Some(estimate) => print_line(&estimate)?,
                None => print_line(&"  judge  none: the configuration has no `[score.judge]`")?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        run_stage(&ctx, Which::Score, self.stage.step, self.stage.dry_run).await
    }
}

/// A query of one's own.
#[derive(Debug, clap::Args)]
pub struct QueryArgs {
    /// File with a query that computes advantages in place of the built-in one
    #[arg(long, value_name = "FILE")]
    sql: Option<PathBuf>,
}

impl QueryArgs {
    /// Has `ctx` run the query of the file, if one is given and can be run.
    pub async fn apply(&self, ctx: &mut RunContext) -> anyhow::Result<()> {
        if let Some(path) = &self.sql {
            let given = GivenQuery { name: path.display().to_string(), text: fs_err::read_to_string(path)? };
            ctx.given_queries.insert(envace_sql::queries::ADVANTAGES.name, given);
            advantage::check_query(ctx).await?;
        }
        Ok(())
    }
}

/// Arguments of `advantage`.
#[derive(Debug, clap::Args)]
pub struct AdvantageArgs {
    #[command(flatten)]
    stage: StageArgs,

    #[command(flatten)]
    query: QueryArgs,

    /// Print the built-in query and stop: a start for one of your own
    #[arg(long)]
    print_sql: bool,

    /// Print the group of a task as it is stored, and why each generation has the advantage it has; makes nothing
    #[arg(long, value_name = "TASK_ID", conflicts_with_all = ["print_sql", "sql", "dry_run", "new_attempt"])]
    explain: Option<String>,
}

impl AdvantageArgs {
    /// Runs the stage, or prints its plan or its query.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let query = envace_sql::queries::ADVANTAGES;
        if self.print_sql {
            print_bytes(query.text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(task) = &self.explain {
            let store = Store::open_existing(&self.stage.run.store.store)?;
            explain(&store, &self.stage.run.run, self.stage.step, task).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut ctx = self.stage.run.open().await?;
        ctx.new_attempt = self.stage.new_attempt;
        self.query.apply(&mut ctx).await?;
        run_stage(&ctx, Which::Advantage, self.stage.step, self.stage.dry_run).await
    }
}

/// Arguments of `sft`.
#[derive(Debug, clap::Args)]
pub struct SftArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Steps to make, each of `sft.optimizer_steps` optimizer applications; those that are there are reused
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps: u64,

    /// Take the steps before this one as they are, for example after `--reconfigure`
    #[arg(long, value_name = "STEP", default_value_t = 0)]
    from_step: u64,

    /// Make another attempt although there is an output
    #[arg(long)]
    new_attempt: bool,

    /// Print what would be read, made and reused, and write no table
    #[arg(long)]
    dry_run: bool,
}

impl SftArgs {
    /// Makes the steps.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut ctx = self.run.open().await?;
        ctx.new_attempt = self.new_attempt;
        if self.from_step >= self.steps {
            anyhow::bail!(
                "step {} is beyond the steps that the run shall have: {}",
                self.from_step,
                self.steps
            );
        }
        for step in self.from_step..self.steps {
            run_stage(&ctx, Which::Sft, step, self.dry_run).await?;
            if self.dry_run {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of `rerun`.
#[derive(Debug, clap::Args)]
pub struct RerunArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Stage to compute again
    #[arg(long, value_enum)]
    stage: Which,

    /// Step of the run
    #[arg(long, value_name = "N")]
    step: u64,

    /// Compare with what is stored, and store nothing; without it, this is a dry run
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    query: QueryArgs,
}

impl RerunArgs {
    /// Exits with 0 if the stage came out the same, 1 if it did not.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let mut ctx = self.run.open().await?;
        self.query.apply(&mut ctx).await?;
        if !self.check {
            return run_stage(&ctx, self.stage, self.step, true).await;
        }
        let comparison = rerun(&ctx, self.stage, self.step).await?;
        print_line(&comparison)?;
        Ok(if comparison.is_identical() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

async fn run_stage(ctx: &RunContext, stage: Which, step: u64, dry_run: bool) -> anyhow::Result<ExitCode> {
    if dry_run {
        let plan = stage.plan(ctx, step).await?;
        print_line(&plan)?;
        if let PlanState::Make { .. } = plan.state {
            print_line(&crate::estimate::estimate(ctx, stage, step).await?)?;
            refuse_untrainable(ctx, stage, step).await?;
            refuse_another_kind(ctx, step).await?;
            if let Some(memory) = stage_memory(ctx, stage, step).await? {
                print_line(&memory)?;
                memory.check()?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = stage.run(ctx, step).await?;
    report(stage, step, &outcome);
    Ok(ExitCode::SUCCESS)
}

/// Says on stderr what a stage did.
pub fn report(stage: Stage, step: u64, outcome: &StageOutcome) {
    let rows = |manifest: &Manifest| {
        let tables = manifest.outputs.keys().filter(|table| **table != Table::Timings);
        let counts: Vec<String> =
            tables.map(|table| format!("{table} {}", manifest.n_rows(*table))).collect();
        counts.join(", ")
    };
    match outcome {
        StageOutcome::Made(manifest) => eprintln!("{stage} {step}: made {}", rows(manifest)),
        StageOutcome::Reused(manifest) => eprintln!("{stage} {step}: reused {}", rows(manifest)),
    }
}
