use std::sync::Arc;
use std::time::Duration;

use super::Store;
use crate::Result;

/// A part of another store: its keys are behind a prefix, `<prefix>/<key>`.
#[derive(Clone)]
pub struct PrefixStore {
    store: Arc<dyn Store>,
    prefix: String,
}

impl PrefixStore {
    /// The part of a store behind a prefix.
    pub fn new(store: Arc<dyn Store>, prefix: impl Into<String>) -> Self {
        Self {
            store,
            prefix: prefix.into(),
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn with_keys<T>(&self, keys: &[&str], function: impl FnOnce(&[&str]) -> T) -> T {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        function(&keys)
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(&self.key(key), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(&self.key(key), timeout)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.store.add(&self.key(key), amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(&self.key(key), expected, desired)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.with_keys(keys, |keys| self.store.wait(keys, timeout))
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.with_keys(keys, |keys| self.store.check(keys))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.store.delete(&self.key(key))
    }
}
