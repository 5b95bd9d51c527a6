use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::{CheckpointDir, CheckpointError, Pointer, Protection, Snapshot, Written};

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
pub type SaveOutcome = Result<Written, CheckpointError>;

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
    num_pending: usize,
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
                let outcome = catch_unwind(AssertUnwindSafe(|| request.run(&dir))).unwrap_or_else(|panic| {
                    Err(CheckpointError::WriterFailed {
                        name,
                        reason: panic_message(&*panic),
                    })
                });
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
            num_pending: 0,
        })
    }

    /// Hands a checkpoint over and returns the outcomes of earlier ones that became known.
    #[must_use = "outcomes may be errors"]
    pub fn submit(&mut self, request: SaveRequest) -> Vec<SaveOutcome> {
        let refused = match &self.requests {
            Some(requests) => requests.send(request).err().map(|error| error.into_inner().name),
            None => Some(request.name),
        };
        let mut outcomes = self.poll();
        match refused {
            None => self.num_pending += 1,
            Some(name) => {
                outcomes.push(Err(CheckpointError::WriterFailed {
                    name,
                    reason: "the thread is gone".into(),
                }));
            }
        }
        outcomes
    }

    /// The outcomes that became known since the last call, without waiting.
    #[must_use = "outcomes may be errors"]
    pub fn poll(&mut self) -> Vec<SaveOutcome> {
        let outcomes: Vec<_> = self.outcomes.try_iter().collect();
        self.num_pending = self.num_pending.saturating_sub(outcomes.len());
        outcomes
    }

    /// Waits until everything that was submitted is written or has failed.
    #[must_use = "outcomes may be errors"]
    pub fn flush(&mut self) -> Vec<SaveOutcome> {
        let mut outcomes = Vec::new();
        while self.num_pending > 0 {
            match self.outcomes.recv() {
                Ok(outcome) => outcomes.push(outcome),
                Err(_) => {
                    let reason = "the thread is gone".into();
                    outcomes.push(Err(CheckpointError::WriterFailed {
                        name: "any".into(),
                        reason,
                    }));
                    self.num_pending = 0;
                    break;
                }
            }
            self.num_pending -= 1;
        }
        outcomes
    }

    /// Whether the thread has taken everything that was submitted out of the channel.
    #[cfg(test)]
    pub(super) fn requests_taken(&self) -> bool {
        self.requests.as_ref().is_none_or(Sender::is_empty)
    }

    /// The number of submitted checkpoints whose outcome is not known yet.
    pub fn num_pending(&self) -> usize {
        self.num_pending
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        for error in self.flush().into_iter().filter_map(Result::err) {
            tracing::error!(%error, "a checkpoint was not written");
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
