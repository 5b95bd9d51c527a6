//! Placeholder.

pub mod metrics;
