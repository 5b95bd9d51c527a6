//! Placeholder.

pub mod loggers;
pub mod metrics;
pub mod progress;
