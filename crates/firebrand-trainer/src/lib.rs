//! Placeholder.

pub mod data;
pub mod metrics;
