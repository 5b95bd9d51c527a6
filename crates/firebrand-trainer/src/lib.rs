//! Placeholder.

pub mod checkpoint;
