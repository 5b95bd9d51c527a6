//! Placeholder.

pub mod checkpoint;
pub mod metrics;
