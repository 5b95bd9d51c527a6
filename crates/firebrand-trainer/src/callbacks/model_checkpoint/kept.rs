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
        let mut pending = Pending {
            name: entry.name.clone(),
            ..Pending::default()
        };
        let mut best = false;
        if let Some((top_k, mode)) = top {
            // Equal values: the earlier one stays ahead.
            let place = self
                .top
                .partition_point(|other| order(mode, other, &entry) != Ordering::Greater);
            self.top.insert(place, entry.clone());
            best = place == 0 && entry.value.is_some_and(|value| !value.is_nan());
            if let TopK::Best(k) = top_k {
                pending.displaced = self.top.split_off(k.min(self.top.len()));
            }
        }
        if last {
            pending.previous_last = self.last.replace(entry);
        }
        pending.leftovers = std::mem::take(&mut self.leftovers);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(step: u64, value: f64) -> Entry {
        Entry {
            name: format!("s{step}"),
            global_step: step,
            value: Some(value),
            written: false,
        }
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.name.as_str()).collect()
    }

    const TOP: Option<(TopK, Mode)> = Some((TopK::Best(2), Mode::Min));

    #[test]
    fn the_worst_makes_room() {
        let mut kept = Kept::default();
        assert_eq!(
            kept.add(entry(1, f64::NAN), TOP, true),
            Change {
                best: false,
                remove: vec![]
            }
        );
        assert_eq!(
            kept.add(entry(2, 3.0), TOP, true),
            Change {
                best: true,
                remove: vec![]
            }
        );
        assert!(!kept.admits(TopK::Best(2), Mode::Min, &entry(3, f64::NAN)));
        assert!(kept.admits(TopK::Best(2), Mode::Min, &entry(3, f64::INFINITY)));
        assert_eq!(
            kept.add(entry(3, 2.0), TOP, true),
            Change {
                best: true,
                remove: vec!["s1".into()]
            }
        );
        // Not among the best, but the last.
        assert_eq!(
            kept.add(entry(4, 9.0), None, true),
            Change {
                best: false,
                remove: vec![]
            }
        );
        assert_eq!(kept.add(entry(5, 9.0), None, true).remove, ["s4"]);
        assert_eq!(kept.add(entry(6, 2.5), TOP, true).remove, ["s2", "s5"]);
        assert_eq!(names(&kept.top), ["s3", "s6"]);
        assert!(!kept.admits(TopK::Best(2), Mode::Min, &entry(7, 2.5)));
        assert!(kept.admits(TopK::All, Mode::Min, &entry(7, 2.5)));
        assert!(!Kept::default().admits(TopK::Best(0), Mode::Min, &entry(7, 2.5)));
    }

    #[test]
    fn a_failure_keeps_what_would_have_been_removed() {
        let mut kept = Kept::default();
        kept.add(entry(1, 3.0), TOP, true);
        kept.add(entry(2, 2.0), TOP, true);
        kept.saved("s1");
        kept.saved("s2");
        let before = kept.clone();
        assert_eq!(kept.add(entry(3, 1.0), TOP, true).remove, ["s1"]);
        kept.failed(Mode::Min, "s3");
        assert_eq!(kept, before);
    }

    #[test]
    fn failures_of_several_that_are_on_their_way() {
        let top = Some((TopK::Best(1), Mode::Min));
        let mut kept = Kept::default();
        kept.add(entry(1, 3.0), top, true);
        kept.saved("s1");
        assert_eq!(kept.add(entry(2, 2.0), top, true).remove, ["s1"]);
        assert_eq!(kept.add(entry(3, 1.0), top, true).remove, ["s2"]);
        kept.failed(Mode::Min, "s2");
        assert_eq!(names(&kept.top), ["s3", "s1"]);
        kept.failed(Mode::Min, "s3");
        assert_eq!(
            (names(&kept.top), kept.last.as_ref().unwrap().name.as_str()),
            (vec!["s1"], "s1")
        );

        kept.add(entry(4, 2.0), top, true);
        kept.add(entry(5, 1.0), top, true);
        kept.failed(Mode::Min, "s4");
        kept.saved("s5");
        assert_eq!(kept.add(entry(6, 0.5), top, true).remove, ["s5", "s1"]);
    }

    #[test]
    fn rewriting_a_name_never_removes_it() {
        let mut kept = Kept::default();
        kept.add(entry(1, 1.0), None, true);
        kept.saved("s1");
        assert_eq!(
            kept.add(entry(1, 1.0), TOP, false),
            Change {
                best: true,
                remove: vec![]
            }
        );
        kept.failed(Mode::Min, "s1");
        assert_eq!(
            (kept.top.len(), kept.last.as_ref().unwrap().name.as_str()),
            (0, "s1")
        );
    }

    #[test]
    fn a_resumed_list_forgets_what_is_gone_and_removes_what_was_left() {
        let top = Some((TopK::Best(1), Mode::Min));
        let mut kept = Kept::default();
        kept.add(entry(1, 2.0), top, false);
        kept.saved("s1");
        kept.add(entry(2, 1.0), top, false);
        // The state inside s2, read after a crash between writing s2 and removing s1.
        let text = serde_json::to_string(&kept).unwrap();
        let mut read: Kept = serde_json::from_str(&text).unwrap();
        read.settle(|_| true);
        assert!(read.top[0].written);
        assert_eq!(read.add(entry(3, 0.5), top, false).remove, ["s2", "s1"]);

        let mut read: Kept = serde_json::from_str(&text).unwrap();
        read.settle(|name| name != "s1");
        assert_eq!(read.add(entry(3, 5.0), None, true).remove, Vec::<String>::new());
        read.settle(|_| false);
        assert_eq!(read, Kept::default());
    }
}
