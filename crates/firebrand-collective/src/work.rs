use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Buffer, Error, Result};

/// An operation under way. It owns the buffer and gives it back from [`wait`](Self::wait).
///
/// Dropping it does not cancel the operation, which the other ranks take part in; its buffer is dropped when it is done.
#[must_use = "an operation is over only when `wait` returns, and its error is lost without it"]
pub struct Work<T = Buffer>(Arc<Shared<T>>);

/// The other end of a [`Work`]: who does the operation reports its result here.
pub struct Completion<T = Buffer>(Option<Arc<Shared<T>>>);

struct Shared<T> {
    result: Mutex<Slot<T>>,
    done: Condvar,
}

enum Slot<T> {
    Pending,
    Done(Result<T>),
    Taken,
}

impl<T> Shared<T> {
    fn slot(&self) -> MutexGuard<'_, Slot<T>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Work<T> {
    /// An operation that is not done, and where its result is to be reported.
    pub fn pending() -> (Self, Completion<T>) {
        let shared = Arc::new(Shared {
            result: Mutex::new(Slot::Pending),
            done: Condvar::new(),
        });
        (Self(Arc::clone(&shared)), Completion(Some(shared)))
    }

    /// An operation that is done already.
    pub fn ready(result: Result<T>) -> Self {
        let (work, completion) = Self::pending();
        completion.complete(result);
        work
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        !matches!(*self.0.slot(), Slot::Pending)
    }

    /// Waits until the operation is over, at most until the deadline of its group.
    ///
    /// # Errors
    ///
    /// Why it could not be done: a peer that failed, the deadline, or ranks that called different operations.
    pub fn wait(self) -> Result<T> {
        let mut slot = self.0.slot();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Pending => *slot = Slot::Pending,
                Slot::Done(result) => return result,
                Slot::Taken => return Err(Error::Aborted("its result was taken before".to_owned())),
            }
            slot = self.0.done.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Completion<T> {
    /// Reports the result.
    pub fn complete(mut self, result: Result<T>) {
        self.report(result);
    }

    fn report(&mut self, result: Result<T>) {
        if let Some(shared) = self.0.take() {
            *shared.slot() = Slot::Done(result);
            shared.done.notify_all();
        }
    }
}

/// Whoever gives up an operation without a word, such as a thread that panics, still ends the wait.
impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        self.report(Err(Error::Aborted(
            "the operation was given up before it was done".to_owned(),
        )));
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("is_done", &self.is_done()).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_what_is_reported_from_another_thread() {
        let (work, completion) = Work::<u32>::pending();
        assert!(!work.is_done());
        let reporter = std::thread::spawn(move || completion.complete(Ok(7)));
        assert_eq!(work.wait().unwrap(), 7);
        reporter.join().unwrap();
    }

    #[test]
    fn an_operation_that_is_given_up_ends_the_wait() {
        let (work, completion) = Work::<u32>::pending();
        drop(completion);
        assert!(matches!(work.wait(), Err(Error::Aborted(_))));
    }
}
