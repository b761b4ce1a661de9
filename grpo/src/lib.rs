//! The mathematics of EnvACE on plain numbers: random draws, advantages, objectives and their gradients.
//!
//! Nothing here reads a file, knows Arrow or holds a tensor. [`loss`] returns the gradient with respect to
//! each policy logprob; a model backpropagates `sum(gradient * logprob)`, which has the same gradient, so
//! every objective is tested without a tensor library. [`advantage`] is the reference that the SQL of a run
//! is held to, bit for bit.

pub mod advantage;
pub mod loss;
pub mod schedule;
pub mod seeds;
