//! Tensors in files: safetensors, in one file or in shards behind an index.

mod dtype;
mod index;
mod read;
mod write;

#[cfg(test)]
pub(super) use dtype::STORED;
pub(super) use dtype::allocate;
pub(super) use index::{ShardIndex, read_sharded};
pub(super) use read::TensorFile;
pub use read::TensorSummary;
pub use write::write_tensor_file;
