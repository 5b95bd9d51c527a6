//! Data loading: from a dataset and a collate function, or a stream, to the batches of an epoch in a reproducible order.
//!
//! Everything that depends on the user's types is one function from sample indices to a batch; order, shards, positions,
//! workers and errors are compiled once, behind [`ErasedLoader`] and [`ErasedDataModule`].

mod collate;
mod erased;
mod erased_module;
mod error;
mod indexed;
mod loader;
mod loaders;
mod module;
mod plan;
mod random;
mod request;
mod samples;
mod stream;
mod workers;

pub use collate::Collate;
pub use erased::{AnyLoader, ErasedLoader, LoadedBatch, LoadedBatches};
pub use erased_module::{AnyDataModule, ErasedDataModule};
pub use error::DataError;
pub use loader::{Batches, DataLoader};
pub use loaders::Data;
pub use module::DataModule;
pub use random::SampleRng;
pub use request::{EpochMode, EpochRequest, Shard, ShardTail};
pub use samples::{IntoSamples, OfDataset, OfSamples, OfVec, Samples};
