use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::child::RankProcess;
use super::end::ChildEnd;
use super::lifeline::Lifeline;

/// How often the ranks are looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// What the supervisor is asked to do.
pub(super) enum Order {
    Signal(Signal),
    /// Ask all to end, and kill those that have not after so long.
    End(Duration),
}

/// Called at the first failure.
pub(super) type OnFailure = Box<dyn FnOnce(ChildEnd) + Send>;

/// What is known of the ranks.
#[derive(Default)]
pub(super) struct Ends {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    pub running: Vec<usize>,
    pub ended: Vec<ChildEnd>,
    pub first_failure: Option<ChildEnd>,
}

impl Ends {
    pub fn new(running: Vec<usize>) -> Self {
        Self {
            state: Mutex::new(State {
                running,
                ..State::default()
            }),
            changed: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all have ended, or the deadline; returns what is known then.
    pub fn wait(&self, timeout: Duration) -> MutexGuard<'_, State> {
        let state = self.state();
        self.changed
            .wait_timeout_while(state, timeout, |state| !state.running.is_empty())
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn report(&self, end: ChildEnd) -> bool {
        let mut state = self.state();
        state.running.retain(|rank| *rank != end.rank);
        state.ended.push(end);
        let first = end.is_failure() && state.first_failure.is_none();
        if first {
            state.first_failure = Some(end);
        }
        self.changed.notify_all();
        first
    }
}

/// Looks after the processes until all have ended. It runs on the thread that started them and lives as long as they do, since
/// the kernel takes the end of that thread for the death of their parent.
pub(super) fn supervise(
    mut processes: Vec<RankProcess>,
    lifeline: Lifeline,
    ends: &Arc<Ends>,
    orders: &Receiver<Order>,
    on_failure: OnFailure,
) {
    let mut on_failure = Some(on_failure);
    let mut kill_at: Option<Instant> = None;
    let mut may_order = true;
    while !processes.is_empty() {
        match wait(orders, may_order) {
            Ok(Order::Signal(signal)) => processes.iter().for_each(|process| process.signal(signal)),
            Ok(Order::End(grace)) => {
                let until = Instant::now() + grace;
                if kill_at.is_none_or(|at| until < at) {
                    kill_at = Some(until);
                }
                processes.iter().for_each(|process| process.signal(Signal::TERM));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => may_order = false,
        }
        if kill_at.is_some_and(|at| at <= Instant::now()) {
            processes.iter().for_each(RankProcess::kill);
        }
        processes.retain_mut(|process| {
            let Some(end) = process.look() else {
                return true;
            };
            if ends.report(end)
                && let Some(on_failure) = on_failure.take()
            {
                tell(on_failure, end);
            }
            false
        });
    }
    drop(lifeline);
}

fn wait(orders: &Receiver<Order>, may_order: bool) -> Result<Order, RecvTimeoutError> {
    if may_order {
        return orders.recv_timeout(PERIOD);
    }
    std::thread::sleep(PERIOD);
    Err(RecvTimeoutError::Timeout)
}

/// On a thread of its own, so that whatever it does holds up nobody here.
fn tell(on_failure: OnFailure, end: ChildEnd) {
    let spawned = std::thread::Builder::new()
        .name("firebrand-failure".to_owned())
        .spawn(move || on_failure(end));
    // Without a thread nobody is told; `Children::first_failure` still is.
    drop(spawned);
}
