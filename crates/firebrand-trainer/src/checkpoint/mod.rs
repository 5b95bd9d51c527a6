//! Checkpoints on disk: writing, finding, verifying, reading and removing them, and weights in PyTorch's layout.
//!
//! A checkpoint is a directory that appears whole or not at all:
//!
//! ```text
//! checkpoints/
//! ├── epoch=003-step=001200/
//! │   ├── model.safetensors       parameters and buffers by path
//! │   ├── optimizer.safetensors   optimizer state by name
//! │   ├── ema.safetensors         further tensors, one file each
//! │   ├── state.json              counters, schedulers, callbacks
//! │   └── manifest.json           versions, sizes and SHA-256 of the others; written last
//! ├── last                        the name of a checkpoint, as text
//! └── best
//! ```
//!
//! Hidden entries are work in progress: `.tmp-*` is being written, `.replaced-*` waits until its successor has its
//! name, `.removed-*` is being deleted, and `.lock` keeps writers apart.
//!
//! Nothing here knows modules or trainers: a [`Snapshot`] goes in and comes back.

mod background;
mod dir;
mod discover;
mod durable;
mod error;
mod inspect;
mod json;
mod manifest;
mod names;
mod pointer;
pub mod pytorch;
mod read;
mod remove;
mod snapshot;
mod tensor_file;
#[cfg(test)]
mod tests;
mod write;

pub use background::{BackgroundWriter, SaveOutcome, SaveRequest};
pub use dir::CheckpointDir;
pub use discover::{Candidate, Resume};
pub use durable::FileEntry;
pub use error::CheckpointError;
pub use inspect::{Summary, inspect};
pub use json::{f64_from_json, f64_to_json};
pub use manifest::Manifest;
pub use names::shard_file;
pub use pointer::Pointer;
pub use read::{Checkpoint, open_weights};
pub use remove::Protection;
pub use snapshot::Snapshot;
pub use tensor_file::{TensorSummary, write_tensor_file};
pub use write::{Draft, Written};
