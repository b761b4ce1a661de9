//! The queries of the stages. Each makes the table it is named after.
//!
//! A file is one `SELECT` without a semicolon, with typed parameters such as `$scale`. The comment at its head
//! says what a row is, which tables it reads, what the parameters mean and where the method comes from. Anyone
//! can copy a file, change it and have a stage run it instead: its result is held to the same table.

use envace_schemas::{Query, Table};

/// Verdicts become rewards, with [`RewardParams`](crate::RewardParams).
pub const REWARDS: Query =
    Query { name: "score/rewards.sql", text: include_str!("../queries/score/rewards.sql") };

/// Rewards become advantages, with [`AdvantageParams`](crate::AdvantageParams).
pub const ADVANTAGES: Query =
    Query { name: "advantage/advantages.sql", text: include_str!("../queries/advantage/advantages.sql") };

/// The advantages of a step are whitened, with [`AdvantageParams`](crate::AdvantageParams).
pub const WHITENED: Query =
    Query { name: "whiten/advantages.sql", text: include_str!("../queries/whiten/advantages.sql") };

/// Rewards become scores, with [`EvaluationParams`](crate::EvaluationParams).
pub const EVALUATIONS: Query =
    Query { name: "evaluate/evaluations.sql", text: include_str!("../queries/evaluate/evaluations.sql") };

/// Rewards become the chances of several trials, with [`EvaluationParams`](crate::EvaluationParams).
pub const PASS_RATES: Query =
    Query { name: "evaluate/pass_rates.sql", text: include_str!("../queries/evaluate/pass_rates.sql") };

/// A query, the table it makes, and the tables it reads.
#[derive(Debug, Clone, Copy)]
pub struct QuerySpec {
    /// Its name and text.
    pub query: Query,
    /// The table it makes.
    pub output: Table,
    /// The tables it reads.
    pub inputs: &'static [Table],
}

/// Every query.
pub const ALL: &[QuerySpec] = &[
    QuerySpec { query: REWARDS, output: Table::Rewards, inputs: &[Table::Trajectories, Table::Verdicts] },
    QuerySpec { query: ADVANTAGES, output: Table::Advantages, inputs: &[Table::Generations, Table::Rewards] },
    QuerySpec { query: WHITENED, output: Table::Advantages, inputs: &[Table::Advantages] },
    QuerySpec {
        query: EVALUATIONS,
        output: Table::Evaluations,
        inputs: &[Table::Trajectories, Table::Generations, Table::Rewards],
    },
    QuerySpec { query: PASS_RATES, output: Table::PassRates, inputs: &[Table::Trajectories, Table::Rewards] },
];
