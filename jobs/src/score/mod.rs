//! Turns trajectories into verdicts and rewards.

mod spec;

pub use spec::{
    Argument, BranchCase, CallOrder, Condition, ExpectedCall, GraderKind, GraderSpec, ReplyCase, ResponseValue,
    ValueTest,
};
