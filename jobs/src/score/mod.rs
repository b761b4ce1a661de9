//! Turns trajectories into verdicts and rewards.

mod spec;

pub use spec::{Argument, CallOrder, ExpectedCall, GraderKind, GraderSpec};
