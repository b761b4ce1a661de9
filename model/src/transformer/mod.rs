//! The decoder: one code path for every family, for sampling and for training.

mod cache;
mod cpu_cache;
mod device_cache;
mod layer;
mod model;
mod projection;
mod rope_table;
mod weights;

pub use cache::{KvCache, Piece};
pub(crate) use layer::{LayerContext, layer_forward};
pub use model::Model;
pub(crate) use model::{embed, layout};
pub(crate) use projection::Projection;
pub(crate) use rope_table::RopeTable;
pub(crate) use weights::{LayerWeights, Weights};
