use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{MAX_KEY, MAX_VALUE, Store};
use crate::control::deadline;
use crate::{Error, Result};

/// A store for the threads of one process, and what a server keeps its values in.
pub struct MemoryStore {
    values: Mutex<Values>,
    changed: Condvar,
    max_keys: usize,
    max_bytes: usize,
    on_change: OnceLock<Listener>,
}

type Listener = Box<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct Values {
    map: HashMap<String, Vec<u8>>,
    /// Of all keys and values together.
    bytes: usize,
}

impl MemoryStore {
    /// Without values, and as large as memory allows.
    pub fn new() -> Self {
        Self::with_limits(usize::MAX, usize::MAX)
    }

    /// Without values. It takes so many keys, and so many bytes of keys and values together.
    pub fn with_limits(max_keys: usize, max_bytes: usize) -> Self {
        Self {
            values: Mutex::default(),
            changed: Condvar::new(),
            max_keys,
            max_bytes,
            on_change: OnceLock::new(),
        }
    }

    /// Calls a function with the name of each value that is set from now on, by whom it may be.
    pub(super) fn on_change(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        // There is one server per store, which calls it once.
        drop(self.on_change.set(Box::new(listener)));
    }

    /// The value of a key, if it is set.
    pub(super) fn peek(&self, key: &str) -> Option<Vec<u8>> {
        self.values().map.get(key).cloned()
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a value and tells those who wait.
    fn insert(&self, mut values: MutexGuard<'_, Values>, key: &str, value: &[u8]) -> Result<()> {
        let old = values.map.get(key).map(Vec::len);
        let keys = values.map.len() + usize::from(old.is_none());
        let freed = old.map_or(0, |old| key.len() + old);
        let bytes = values.bytes - freed + key.len() + value.len();
        if keys > self.max_keys || bytes > self.max_bytes {
            return Err(Error::argument(format!(
                "the rendezvous store is full: it takes {} keys and {} bytes; delete what is not needed any more",
                self.max_keys, self.max_bytes
            )));
        }
        values.map.insert(key.to_owned(), value.to_vec());
        values.bytes = bytes;
        drop(values);
        self.changed.notify_all();
        if let Some(listener) = self.on_change.get() {
            listener(key);
        }
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Refuses what is longer than a store takes.
pub(super) fn check_sizes(key: &str, value: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY {
        return Err(Error::argument(format!(
            "a key of {} bytes is longer than a store takes ({MAX_KEY})",
            key.len()
        )));
    }
    if value.len() > MAX_VALUE {
        return Err(Error::argument(format!(
            "the value of '{key}' has {} bytes, more than a store takes ({MAX_VALUE})",
            value.len()
        )));
    }
    Ok(())
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_sizes(key, value)?;
        self.insert(self.values(), key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let deadline = deadline(timeout);
        let mut values = self.values();
        loop {
            if let Some(value) = values.map.get(key) {
                return Ok(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Missing {
                    key: key.to_owned(),
                    after: timeout,
                });
            }
            let (guard, _) = self
                .changed
                .wait_timeout(values, left)
                .unwrap_or_else(PoisonError::into_inner);
            values = guard;
        }
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        check_sizes(key, &[])?;
        let values = self.values();
        let old = match values.map.get(key) {
            None => 0,
            Some(value) => std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or_else(|| Error::argument(format!("the value of '{key}' is no number to add to")))?,
        };
        let sum = old.wrapping_add(amount);
        self.insert(values, key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        check_sizes(key, desired)?;
        let values = self.values();
        let present = values.map.get(key).cloned();
        if present.as_deref().unwrap_or_default() != expected {
            return Ok(present.unwrap_or_default());
        }
        self.insert(values, key, desired)?;
        Ok(desired.to_vec())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let deadline = deadline(timeout);
        keys.iter().try_for_each(|key| {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.get(key, left) {
                Ok(_) => Ok(()),
                Err(Error::Missing { key, .. }) => Err(Error::Missing { key, after: timeout }),
                Err(error) => Err(error),
            }
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        let values = self.values();
        Ok(keys.iter().all(|key| values.map.contains_key(*key)))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let mut values = self.values();
        let Some(value) = values.map.remove(key) else {
            return Ok(false);
        };
        values.bytes -= key.len() + value.len();
        Ok(true)
    }
}
