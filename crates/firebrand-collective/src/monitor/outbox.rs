use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::Failure;
use crate::control::Waker;
use crate::{Health, Result};

/// What the handle of a monitor and its thread tell each other.
pub(super) struct Outbox {
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

#[derive(Default)]
struct State {
    /// A failure that this rank knows of, until the thread takes it.
    report: Option<Failure>,
    /// What this rank does from now on, until the thread takes it.
    phase: Option<String>,
    /// Whether a failure is still to be told to others.
    telling: bool,
    /// The ranks that have not come yet.
    absent: Vec<usize>,
    closing: Option<Closing>,
    ended: bool,
}

/// How the thread is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// With a goodbye.
    Leave,
    /// Without: the run has failed.
    Abandon,
}

impl Outbox {
    pub fn new(waker: Waker, absent: Vec<usize>) -> Self {
        Self {
            state: Mutex::new(State {
                absent,
                ..State::default()
            }),
            changed: Condvar::new(),
            waker,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state for the thread to see.
    fn post(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.waker.wake();
    }

    /// Changes the state for the handle to see.
    fn answer(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Asks the thread to tell of a failure. Does not wait, since whoever reports a failure must not.
    pub fn report(&self, failure: Failure) {
        self.post(|state| {
            state.report = Some(failure);
            state.telling = true;
        });
    }

    /// Asks the thread to tell what this rank does from now on.
    pub fn phase(&self, phase: &str) {
        self.post(|state| state.phase = Some(phase.to_owned()));
    }

    /// Asks the thread to end.
    pub fn close(&self, closing: Closing) {
        self.post(|state| {
            state.closing.get_or_insert(closing);
        });
    }

    /// For the thread: the failure that was reported.
    pub fn take_report(&self) -> Option<Failure> {
        self.state().report.take()
    }

    /// For the thread: what this rank does from now on, if that is to be told.
    pub fn take_phase(&self) -> Option<String> {
        self.state().phase.take()
    }

    /// For the thread: how to end, if it is to.
    pub fn closing(&self) -> Option<Closing> {
        self.state().closing
    }

    /// For the thread: what was to be told is told, or the others know already.
    pub fn told(&self) {
        self.answer(|state| state.telling = state.report.is_some());
    }

    /// For the thread: a rank has come.
    pub fn arrived(&self, rank: usize) {
        self.answer(|state| state.absent.retain(|absent| *absent != rank));
    }

    /// For the thread: there is nobody to tell anything any more.
    pub fn ended(&self) {
        self.answer(|state| state.ended = true);
    }

    /// Waits until every failure is told, if there is time.
    pub fn wait_told(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut state = self.state();
        while state.telling && !state.ended {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            state = self.wait(state, left);
        }
    }

    /// Waits until all ranks have come; returns those that have not.
    pub fn wait_arrived(&self, until: Instant, health: &Health) -> Result<Vec<usize>> {
        let mut state = self.state();
        while !state.absent.is_empty() {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                break;
            };
            health.check()?;
            state = self.wait(state, left.min(Health::PERIOD));
        }
        Ok(state.absent.clone())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
