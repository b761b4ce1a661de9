//! Turns trajectories into verdicts and rewards.

pub mod gate;
mod graders;
mod spec;
mod spec_check;
pub mod stage;
mod tool_schemas;

pub use graders::{GradeOptions, Grader, PartialUserTurn, Unforeseen, grade, passes_gate};
pub use spec::{
    Argument, BranchCase, CallOrder, Condition, ExpectedCall, GraderKind, GraderSpec, ReplyCase,
    ResponseValue, ValueTest,
};
pub use spec_check::check_graders;
pub use tool_schemas::{CallFault, ToolSchemas, json_schema};
