//! What only the whole of envace can show, and the checks on the code base itself.
//!
//! This library holds what several test modules need; the tests are in `tests/main.rs`.

pub mod config_page;
pub mod judge_server;
pub mod judged_run;
pub mod repository;
pub mod tables_page;
