//! Turns trajectories into verdicts and rewards.

mod bfcl;
mod checklist;
pub mod gate;
mod graders;
pub mod judge;
mod part;
mod programs;
mod queries;
mod spec;
mod spec_check;
pub mod stage;
mod tool_schemas;

pub use bfcl::{BfclAnswer, Language, MadeCall, Matching, Mismatch};
pub use checklist::{Checklist, ChecklistItem, Focus, check_checklist};
use graders::{Fate, Outcome};
pub use graders::{GradeOptions, Grader, PartialUserTurn, Unforeseen, grade, passes_gate};
pub use part::{ExternalGraders, PartRows, key_section};
pub use spec::{
    Argument, BranchCase, CallOrder, Condition, ExpectedCall, GraderKind, GraderSpec, ReplyCase,
    ResponseValue, ValueTest,
};
pub use spec_check::check_graders;
pub use tool_schemas::{CallFault, ToolSchemas, json_schema};
