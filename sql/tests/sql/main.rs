//! The queries and sessions of envace, from outside.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod advantages;
mod common;
mod conform;
mod evaluations;
mod headers;
mod lake;
mod pass_rates;
mod rewards;
mod session;
