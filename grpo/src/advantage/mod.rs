//! Role-wise group-relative advantages: the plain reference of `advantage/advantages.sql`.
//!
//! A group is the trajectories of one task in one step. Each role has its own baseline in it, unless asked otherwise. Rewards are
//! exact integers (billionths), so sums do not depend on their order; each result is rounded once.

mod group;
mod rules;
mod whiten;

pub use group::{Advantage, AdvantageError, Generation, advantages};
pub use rules::{
    Baseline, Exclusion, Grouping, Malfunction, Role, Rules, Singleton, Weighting, ZeroVariance,
};
