//! Batch norm with statistics in float32, over all ranks if asked for.

mod layer;
mod normalize;
mod ranks;
mod statistics;

pub use layer::{BatchNorm, BatchNormConfig};
