//! The tables, each declared once.
//!
//! A row's `task_id` and `sample` name its trajectory within one stage output. The columns `run`, `stage`,
//! `step` and `attempt` are not stored in the files: they are the folders the files lie in, and every reader
//! of Hive partitions shows them.

mod declare;
mod outcome;
mod rollout;
mod task;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Column;

pub use outcome::{
    AdvantageRow, EvaluationRow, JudgeCallRow, PassRateRow, RewardRow, SftLossRow, TimingRow, UpdateRow,
    VerdictRow,
};
pub use rollout::{GenerationRow, MessageRow, SequenceRow, TrajectoryRow};
pub use task::TaskRow;

/// A Rust struct that is one row of a table.
pub trait Row: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The table it is a row of.
    const TABLE: Table;
}

macro_rules! table_enum {
    ($($(#[doc = $doc:literal])* $variant:ident = $row:ident;)*) => {
        /// A table of envace.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Table {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Table {
            /// Every table, in the order of the pipeline.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, a plural noun: folder, SQL name and file name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $row::NAME,)* }
            }

            /// What the table holds, in one paragraph.
            pub fn doc(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)*),)* }
            }

            /// The columns that identify a row, in sort order.
            pub fn grain(self) -> &'static [&'static str] {
                match self { $(Self::$variant => $row::GRAIN,)* }
            }

            /// The columns, in order.
            pub fn columns(self) -> Vec<Column> {
                match self { $(Self::$variant => $row::columns(),)* }
            }

            /// Bumped when columns change; stored in each file and part of the content hash.
            pub fn version(self) -> u32 {
                match self { $(Self::$variant => $row::VERSION,)* }
            }
        }

        $(impl Row for $row {
            const TABLE: Table = Table::$variant;
        })*
    };
}

table_enum! {
    /// Problems: opening messages, tools, scripted user turns, recorded calls, graders.
    Tasks = TaskRow;
    /// One sampled attempt at a task: how it ended and why, and its counts.
    Trajectories = TrajectoryRow;
    /// The transcript of each trajectory, and who wrote every message.
    Messages = MessageRow;
    /// One output of the policy, of either role.
    Generations = GenerationRow;
    /// Tokens exactly as sampled: what an update needs.
    Sequences = SequenceRow;
    /// The outcome of each grader item.
    Verdicts = VerdictRow;
    /// Every question put to a judge model and its answer; a re-score replays it.
    JudgeCalls = JudgeCallRow;
    /// The reward of each trajectory, for each role.
    Rewards = RewardRow;
    /// The advantage of each generation: its reward less the baseline of its group and role.
    Advantages = AdvantageRow;
    /// What each optimizer application of an update did, for each role.
    Updates = UpdateRow;
    /// What each optimizer application of supervised training did.
    SftLosses = SftLossRow;
    /// Scores of a checkpoint on a split.
    Evaluations = EvaluationRow;
    /// How likely some trials of a task are to pass, once or always.
    PassRates = PassRateRow;
    /// What depends on the machine or the schedule. In no key and no content hash.
    Timings = TimingRow;
}

impl Table {
    /// The Arrow schema, with each column's meaning in the field metadata.
    pub fn schema(self) -> SchemaRef {
        let fields: Vec<_> = self.columns().iter().map(Column::field).collect();
        let metadata = [
            ("envace.table".to_owned(), self.name().to_owned()),
            ("envace.version".to_owned(), self.version().to_string()),
        ];
        Arc::new(Schema::new_with_metadata(fields, metadata.into()))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no table has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such table: {0}")]
pub struct UnknownTable(String);

impl FromStr for Table {
    type Err = UnknownTable;

    fn from_str(name: &str) -> Result<Self, UnknownTable> {
        Self::ALL
            .iter()
            .copied()
            .find(|table| table.name() == name)
            .ok_or_else(|| UnknownTable(name.to_owned()))
    }
}
