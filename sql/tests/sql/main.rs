//! The queries and sessions of envace, from outside.

mod advantages;
mod common;
mod evaluations;
mod headers;
mod lake;
mod rewards;
mod session;
