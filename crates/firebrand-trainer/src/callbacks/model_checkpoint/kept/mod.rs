//! Which checkpoints are kept, and what becomes superfluous once another is written.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::TopK;
use crate::callbacks::Mode;
use crate::callbacks::state::exact_f64;

/// A checkpoint that is kept, or will be when it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    pub global_step: u64,
    /// The monitored value; `None` without a monitor.
    #[serde(with = "exact_f64")]
    pub value: Option<f64>,
    /// Whether it is on the disk. What a checkpoint says of itself is read only if it is.
    #[serde(skip, default = "on_disk")]
    pub written: bool,
}

fn on_disk() -> bool {
    true
}

/// What a checkpoint that is not written yet will make superfluous.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Pending {
    name: String,
    displaced: Vec<Entry>,
    previous_last: Option<Entry>,
    leftovers: Vec<String>,
}

/// What the caller is to ask for.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    pub best: bool,
    pub remove: Vec<String>,
}

/// The checkpoints that are kept, and those that are on their way to the disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// From the best to the worst, or from the newest to the oldest without a monitor.
    pub top: Vec<Entry>,
    pub last: Option<Entry>,
    pending: Vec<Pending>,
    /// Superfluous ones that could not be removed yet.
    leftovers: Vec<String>,
}

fn order(mode: Mode, a: &Entry, b: &Entry) -> Ordering {
    match (a.value, b.value) {
        (Some(a), Some(b)) => mode.compare(a, b),
        (None, None) => b.global_step.cmp(&a.global_step),
        // A monitor was added or removed since: what it knows nothing of comes last.
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

impl Kept {
    /// Whether a checkpoint with this value is among the best.
    pub fn admits(&self, top_k: TopK, mode: Mode, entry: &Entry) -> bool {
        match top_k {
            TopK::All => true,
            TopK::Best(0) => false,
            TopK::Best(k) => self
                .top
                .get(k - 1)
                .is_none_or(|worst| order(mode, entry, worst) == Ordering::Less),
        }
    }

    pub fn has_step(&self, global_step: u64) -> bool {
        self.top.iter().any(|entry| entry.global_step == global_step)
    }

    /// Takes a new checkpoint in, as one of the best, as the last, or both.
    pub fn add(&mut self, entry: Entry, top: Option<(TopK, Mode)>, last: bool) -> Change {
        // Several requests of one step are written as one.
        let mut pending = self.take_pending(&entry.name).unwrap_or_default();
        pending.name.clone_from(&entry.name);
        let mut best = false;
        if let Some((top_k, mode)) = top {
            // Equal values: the earlier one stays ahead.
            let place = self
                .top
                .partition_point(|other| order(mode, other, &entry) != Ordering::Greater);
            self.top.insert(place, entry.clone());
            best = place == 0 && entry.value.is_some_and(|value| !value.is_nan());
            if let TopK::Best(k) = top_k {
                pending
                    .displaced
                    .extend(self.top.split_off(k.min(self.top.len())));
            }
        }
        if last {
            let previous = self
                .last
                .replace(entry)
                .filter(|previous| previous.name != pending.name);
            pending.previous_last = pending.previous_last.or(previous);
        }
        pending.leftovers.append(&mut self.leftovers);
        let remove = self.superfluous(&pending);
        self.pending.push(pending);
        Change { best, remove }
    }

    fn superfluous(&self, pending: &Pending) -> Vec<String> {
        let entries = pending
            .displaced
            .iter()
            .chain(&pending.previous_last)
            .map(|entry| &entry.name);
        let mut names: Vec<String> = Vec::new();
        for name in entries.chain(&pending.leftovers) {
            if !self.needs(name) && *name != pending.name && !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    fn needs(&self, name: &str) -> bool {
        self.top.iter().chain(&self.last).any(|entry| entry.name == name)
    }

    /// The names of the checkpoints that must not be removed, each once.
    pub fn names(&self) -> Vec<String> {
        let last = self
            .last
            .iter()
            .filter(|last| self.top.iter().all(|entry| entry.name != last.name));
        self.top
            .iter()
            .chain(last)
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// A checkpoint is on the disk, and what it made superfluous is gone.
    pub fn saved(&mut self, name: &str) {
        self.take_pending(name);
        for entry in self.top.iter_mut().chain(&mut self.last) {
            entry.written |= entry.name == name;
        }
        for pending in &mut self.pending {
            for entry in pending.displaced.iter_mut().chain(&mut pending.previous_last) {
                entry.written |= entry.name == name;
            }
        }
    }

    /// A checkpoint could not be written: it is forgotten, and what it would have made superfluous is kept.
    pub fn failed(&mut self, mode: Mode, name: &str) {
        let Some(lost) = self.take_pending(name) else {
            return;
        };
        // One that replaces an earlier one of its name leaves that in place when it fails.
        let is_lost = |entry: &Entry| entry.name == name && !entry.written;
        self.top.retain(|entry| !is_lost(entry));
        for pending in &mut self.pending {
            pending.displaced.retain(|entry| !is_lost(entry));
            if pending.previous_last.as_ref().is_some_and(is_lost) {
                pending.previous_last.clone_from(&lost.previous_last);
            }
        }
        if self.last.as_ref().is_some_and(is_lost) {
            self.last = lost.previous_last;
        }
        // The list may be too long now; the next checkpoint cuts it.
        self.top.extend(lost.displaced);
        self.top.sort_by(|a, b| order(mode, a, b));
        self.leftovers.extend(lost.leftovers);
    }

    fn take_pending(&mut self, name: &str) -> Option<Pending> {
        let place = self.pending.iter().position(|pending| pending.name == name)?;
        Some(self.pending.remove(place))
    }

    /// Puts a list that was read from a checkpoint in order: what is not on the disk is forgotten.
    pub fn settle(&mut self, exists: impl Fn(&str) -> bool) {
        self.top.retain(|entry| exists(&entry.name));
        self.last = self.last.take().filter(|entry| exists(&entry.name));
        for pending in std::mem::take(&mut self.pending) {
            let entries = pending
                .displaced
                .into_iter()
                .chain(pending.previous_last)
                .map(|entry| entry.name);
            self.leftovers.extend(entries.chain(pending.leftovers));
        }
        let leftovers = std::mem::take(&mut self.leftovers);
        self.leftovers = leftovers
            .into_iter()
            .filter(|name| !self.needs(name) && exists(name))
            .collect();
    }
}
