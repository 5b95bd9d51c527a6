//! The Trainer of Firebrand: loops, callbacks, checkpoints, loggers, progress and data loading.

pub mod data;
