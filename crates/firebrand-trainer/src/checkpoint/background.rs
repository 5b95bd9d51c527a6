use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::{CheckpointDir, CheckpointError, Pointer, Protection, Snapshot, Written};

/// Why nothing more can be written: the thread ended, which it only does when the writer is dropped.
const GONE: &str = "the thread is gone";

/// One checkpoint to write, and what depends on it: pointers are moved and older ones removed only after it is
/// safely there.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct SaveRequest {
    name: String,
    snapshot: Snapshot,
    pointers: Vec<Pointer>,
    removals: Vec<String>,
}

impl SaveRequest {
    /// A checkpoint of this name.
    pub fn new(name: impl Into<String>, snapshot: Snapshot) -> Self {
        Self {
            name: name.into(),
            snapshot,
            pointers: Vec::new(),
            removals: Vec::new(),
        }
    }

    /// Lets a pointer stand for the checkpoint once it is written.
    pub fn point(mut self, pointer: Pointer) -> Self {
        self.pointers.push(pointer);
        self
    }

    /// Removes the checkpoint of this name after that, unless a pointer stands for it then.
    pub fn remove(mut self, name: impl Into<String>) -> Self {
        self.removals.push(name.into());
        self
    }

    /// Carries the request out on this thread.
    ///
    /// # Errors
    /// The first one; what follows it is left undone, so nothing is removed for a checkpoint that is not there.
    pub fn run(self, dir: &CheckpointDir) -> Result<Written, CheckpointError> {
        let written = dir.write(&self.name, &self.snapshot)?;
        for pointer in self.pointers {
            dir.point(pointer, &self.name)?;
        }
        for name in self.removals.iter().filter(|name| **name != self.name) {
            match dir.remove(name, Protection::KeepPointedAt) {
                // The pointers decide; a checkpoint that somebody deleted already is no failure of this one.
                Err(CheckpointError::Protected { .. } | CheckpointError::NotACheckpoint { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

/// Whether a submitted checkpoint is safely on the device.
#[derive(Debug)]
#[non_exhaustive]
pub struct SaveOutcome {
    /// The name of the checkpoint.
    pub name: String,
    /// What was written, or why it was not.
    pub result: Result<Written, CheckpointError>,
}

impl SaveOutcome {
    /// The outcome of a request that the thread cannot carry out.
    fn failed(name: String, reason: impl Into<String>) -> Self {
        let result = Err(CheckpointError::WriterFailed {
            name: name.clone(),
            reason: reason.into(),
        });
        Self { name, result }
    }
}

/// Writes checkpoints on a thread of its own, one at a time and in the order in which they are submitted.
///
/// Submitting takes no longer than handing over the snapshot, unless one is being written and another waits already:
/// then it takes until the waiting one's turn. So at most three snapshots are alive.
///
/// A failed write stops nothing. Its error is an outcome of the next call of `submit`, `poll` or `flush`, and the
/// caller decides. Dropping the writer waits for what was submitted and logs errors that nobody asked for.
#[derive(Debug)]
pub struct BackgroundWriter {
    requests: Option<Sender<SaveRequest>>,
    outcomes: Receiver<SaveOutcome>,
    thread: Option<JoinHandle<()>>,
    /// The names of the requests whose outcomes are not known, oldest first.
    pending: VecDeque<String>,
}

impl BackgroundWriter {
    /// A writer into this directory.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn new(dir: CheckpointDir) -> Result<Self, CheckpointError> {
        let (requests, incoming) = bounded::<SaveRequest>(1);
        // Unbounded, so that the writing thread never waits for a loop that does not ask.
        let (results, outcomes) = unbounded();
        let work = move || {
            for request in incoming {
                let name = request.name.clone();
                let outcome = match catch_unwind(AssertUnwindSafe(|| request.run(&dir))) {
                    Ok(result) => SaveOutcome { name, result },
                    Err(panic) => SaveOutcome::failed(name, panic_message(&*panic)),
                };
                if results.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("checkpoints".into())
            .spawn(work)
            .map_err(|error| CheckpointError::WriterFailed {
                name: "any".into(),
                reason: error.to_string(),
            })?;
        Ok(Self {
            requests: Some(requests),
            outcomes,
            thread: Some(thread),
            pending: VecDeque::new(),
        })
    }

    /// Hands a checkpoint over and returns the outcomes of earlier ones that became known.
    #[must_use = "outcomes may be errors"]
    pub fn submit(&mut self, request: SaveRequest) -> Vec<SaveOutcome> {
        let name = request.name.clone();
        let accepted = self
            .requests
            .as_ref()
            .is_some_and(|requests| requests.send(request).is_ok());
        if !accepted {
            let mut outcomes = self.poll();
            outcomes.push(SaveOutcome::failed(name, GONE));
            return outcomes;
        }
        // Before `poll`, which may find the outcome of this very request.
        self.pending.push_back(name);
        self.poll()
    }

    /// The outcomes that became known since the last call, without waiting.
    #[must_use = "outcomes may be errors"]
    pub fn poll(&mut self) -> Vec<SaveOutcome> {
        let outcomes: Vec<_> = self.outcomes.try_iter().collect();
        self.pending.drain(..outcomes.len().min(self.pending.len()));
        outcomes
    }

    /// Waits until everything that was submitted is written or has failed.
    #[must_use = "outcomes may be errors"]
    pub fn flush(&mut self) -> Vec<SaveOutcome> {
        let pending = std::mem::take(&mut self.pending);
        // Outcomes come in the order of the requests; without the thread the rest of them never will.
        let outcome = |name| {
            self.outcomes
                .recv()
                .unwrap_or_else(|_| SaveOutcome::failed(name, GONE))
        };
        pending.into_iter().map(outcome).collect()
    }

    /// Whether the thread has taken everything that was submitted out of the channel.
    #[cfg(test)]
    pub(super) fn requests_taken(&self) -> bool {
        self.requests.as_ref().is_none_or(Sender::is_empty)
    }

    /// The number of submitted checkpoints whose outcome is not known yet.
    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        for SaveOutcome { name, result } in self.flush() {
            if let Err(error) = result {
                tracing::error!(checkpoint = name, %error, "a checkpoint was not written");
            }
        }
        self.requests = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes checkpoints panicked");
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic".into())
}
