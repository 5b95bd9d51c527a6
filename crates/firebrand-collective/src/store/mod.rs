//! The rendezvous store: a few small values by which ranks find each other.

mod memory;
mod prefix;
mod tcp;
#[cfg(test)]
mod test_contract;
mod torch;

use std::time::Duration;

pub use memory::MemoryStore;
pub use prefix::PrefixStore;
pub use tcp::{StoreLimits, StoreServer, TcpStore};
pub use torch::TorchStore;

use crate::Result;

/// A map from names to small values that all ranks share.
///
/// Keys and values are small: a key has at most [`MAX_KEY`] bytes, a value at most [`MAX_VALUE`].
pub trait Store: Send + Sync {
    /// Sets a value.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the key or value is too long.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of a key, waited for until the deadline.
    ///
    /// # Errors
    ///
    /// If nobody sets it in time, or the store cannot be reached.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Adds to a counter, which starts at 0, and returns the sum. Its value is the number in decimal digits.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the value is no number.
    fn add(&self, key: &str, amount: i64) -> Result<i64>;

    /// Sets a value if the present one is as expected; a missing key counts as an empty value. Returns the value afterwards.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>>;

    /// Waits until all keys are set.
    ///
    /// # Errors
    ///
    /// If one is not set in time, or the store cannot be reached.
    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()>;

    /// Whether all keys are set.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached.
    fn check(&self, keys: &[&str]) -> Result<bool>;

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached.
    fn delete(&self, key: &str) -> Result<bool>;
}

/// The longest key in bytes.
pub const MAX_KEY: usize = 1024;

/// The longest value in bytes.
pub const MAX_VALUE: usize = 1 << 20;
