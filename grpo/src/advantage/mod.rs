//! Role-wise group-relative advantages: the plain reference of `advantage/advantages.sql`.
//!
//! A group is the trajectories of one task in one step. Each role has its own baseline in it. Rewards are
//! exact integers (billionths), so sums do not depend on their order; each result is rounded once.

mod group;
mod rules;

pub use group::{Advantage, AdvantageError, Generation, advantages};
pub use rules::{Baseline, Exclusion, Malfunction, Role, Rules, Singleton, Weighting, ZeroVariance};
