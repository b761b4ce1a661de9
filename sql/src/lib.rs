//! Every query of envace, and the DataFusion sessions that run them.
//!
//! - [`queries`]: the SQL files under `queries/`, one file a table it makes, and their typed parameters;
//! - [`QuerySession`]: one query over tables in memory or in files, its result checked against the table it must make;
//! - [`Lake`]: any question to all tables of a store, read-only, and its [`Answer`] in several formats.

mod answer;
mod cause;
mod conform;
mod covered;
mod error;
mod files;
mod lake;
mod params;
pub mod queries;
mod session;
mod statement;

pub use answer::{Answer, Format, UnknownFormat};
pub use cause::Cause;
pub use conform::conform_rows;
pub use covered::check_covered;
pub use datafusion::scalar::ScalarValue;
pub use error::SqlError;
pub use lake::{Lake, StoredOutput, is_origin};
pub use params::{
    AdvantageParams, Baseline, EvaluationParams, Grouping, MalfunctionRule, OnOverlong, OnRehearsalFailed,
    OnUngraded, Param, RewardParams, SingletonRule, Weighting, ZeroVarianceRule,
};
pub use session::QuerySession;
