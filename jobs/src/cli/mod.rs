//! The command line: one subcommand a stage, and what one needs around them.

mod args;
mod checkpoint;
mod config;
mod explain;
mod inspect;
mod put;
mod quickstart;
mod run;
mod stage;
mod tasks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use args::{RunArgs, StoreArgs};

/// Train a model that plays both the agent and its environment.
///
/// Every stage reads tables and writes tables, in a store: a folder, by default `envace-store`. Data goes to
/// stdout, messages to stderr. The exit code is 0 when all went well, 1 when something failed, 2 for a command
/// that makes no sense.
#[derive(Debug, Parser)]
#[command(name = "envace-jobs", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train the bundled policy on the bundled world and show what came of it
    Quickstart(quickstart::QuickstartArgs),
    /// Bring tasks into a store
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// Bring model folders into a store and out again
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    /// Drive rollout, score, advantage and update for a number of steps
    Run(run::DriveArgs),
    /// Train on recorded dialogues, for both roles
    Sft(stage::SftArgs),
    /// Sample trajectories
    Rollout(stage::StageArgs),
    /// Grade trajectories and reward them
    Score(stage::ScoreArgs),
    /// Compute advantages from rewards
    Advantage(stage::AdvantageArgs),
    /// Train on advantages and write the next checkpoint
    Update(stage::StageArgs),
    /// Measure a checkpoint on the splits of the configuration
    Evaluate(stage::StageArgs),
    /// Compute a stage again and compare
    Rerun(stage::RerunArgs),
    /// Store a table edited by hand, as a new attempt of its stage
    Put(put::PutArgs),
    /// Query the tables of a store
    Sql(inspect::SqlArgs),
    /// Print one trajectory with its rewards and advantages
    Show(inspect::ShowArgs),
    /// Print what a checkpoint or a stage was made from, back to the tasks
    Lineage(inspect::LineageArgs),
    /// Compare the verdicts, rewards and advantages of two runs, or of two attempts of one
    Diff(explain::DiffArgs),
    /// Hash everything of a run again and compare
    Verify(inspect::VerifyArgs),
    /// Print the effective configuration
    Config(config::ConfigArgs),
}

impl Cli {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Whatever failed, with its causes.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Quickstart(args) => args.run().await,
            Command::Tasks(command) => command.run().await,
            Command::Checkpoint(command) => command.run().await,
            Command::Run(args) => args.run().await,
            Command::Sft(args) => args.run().await,
            Command::Rollout(args) => args.run(stage::Which::Rollout).await,
            Command::Score(args) => args.run().await,
            Command::Advantage(args) => args.run().await,
            Command::Update(args) => args.run(stage::Which::Update).await,
            Command::Evaluate(args) => args.run(stage::Which::Evaluate).await,
            Command::Rerun(args) => args.run().await,
            Command::Put(args) => args.run().await,
            Command::Sql(args) => args.run().await,
            Command::Show(args) => args.run().await,
            Command::Lineage(args) => args.run().await,
            Command::Diff(args) => args.run().await,
            Command::Verify(args) => args.run().await,
            Command::Config(args) => args.run(),
        }
    }
}
