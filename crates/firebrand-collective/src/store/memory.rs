use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{MAX_KEY, MAX_VALUE, Store};
use crate::{Error, Result};

/// A store for the threads of one process, and what a server keeps its values in.
#[derive(Default)]
pub struct MemoryStore {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl MemoryStore {
    /// Without values.
    pub fn new() -> Self {
        Self::default()
    }

    fn values(&self) -> MutexGuard<'_, HashMap<String, Vec<u8>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.values().insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        let mut values = self.values();
        loop {
            if let Some(value) = values.get(key) {
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
        let mut values = self.values();
        let old = match values.get(key) {
            None => 0,
            Some(value) => std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or_else(|| Error::argument(format!("the value of '{key}' is no number to add to")))?,
        };
        let sum = old.wrapping_add(amount);
        values.insert(key.to_owned(), sum.to_string().into_bytes());
        self.changed.notify_all();
        Ok(sum)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        check_sizes(key, desired)?;
        let mut values = self.values();
        let present = values.get(key).cloned();
        if present.as_deref().unwrap_or_default() != expected {
            return Ok(present.unwrap_or_default());
        }
        values.insert(key.to_owned(), desired.to_vec());
        self.changed.notify_all();
        Ok(desired.to_vec())
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
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
        Ok(keys.iter().all(|key| values.contains_key(*key)))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.values().remove(key).is_some())
    }
}
