use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// What stands between the cause of a failure and the phase of the rank.
const WAS: &str = "; it was ";

/// Whether the ranks of a run are well, as this rank knows it. All groups of a process share one.
///
/// Whoever waits looks at it at least every [`Health::PERIOD`], so that a failure anywhere ends every wait.
#[derive(Default)]
pub struct Health {
    failure: OnceLock<Error>,
    listeners: Mutex<Vec<Listener>>,
    phases: Mutex<Phases>,
}

type Listener = Box<dyn Fn(&Error) + Send + Sync>;
type PhaseListener = Box<dyn Fn(&str) + Send + Sync>;

/// What ranks are doing, as far as this one knows.
#[derive(Default)]
struct Phases {
    others: BTreeMap<usize, String>,
    listeners: Vec<PhaseListener>,
}

impl Health {
    /// The longest that a wait goes on without a look.
    pub const PERIOD: Duration = Duration::from_millis(20);

    /// How long the monitor lets a rank speak for itself before its death, or what another says of it, counts.
    pub(crate) const SUSPICION: Duration = Duration::from_millis(250);

    /// How long the word of the monitor may take before whoever sees a connection end blames the other end: longer than the
    /// monitor suspects, so that all ranks end with the same cause, the first.
    pub(crate) const HEARSAY: Duration = Self::SUSPICION.saturating_mul(2);

    /// How long a rank may hear of the failure that ended the monitor's own process, before that counts as the first.
    pub(crate) const MOURNING: Duration = Self::SUSPICION.saturating_mul(3);

    /// Everyone is well.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first failure, if there was one.
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn check(&self) -> Result<()> {
        match self.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// The failure that the others know of, if the word of it comes soon.
    pub(crate) fn hearsay(&self) -> Option<Error> {
        let until = Instant::now() + Self::HEARSAY;
        loop {
            match self.check() {
                Err(failure) => return Some(failure),
                Ok(()) if Instant::now() >= until => return None,
                Ok(()) => std::thread::sleep(Self::PERIOD / 2),
            }
        }
    }

    /// Says what this rank is doing from now on, such as `validating`, for the others to know where it was if it fails.
    pub fn set_phase(&self, phase: &str) {
        for listener in &self.phases().listeners {
            listener(phase);
        }
    }

    /// Calls a function whenever this rank says what it is doing.
    pub(crate) fn on_phase(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        self.phases().listeners.push(Box::new(listener));
    }

    /// Takes down what another rank is doing.
    pub(crate) fn note_phase(&self, rank: usize, phase: String) {
        self.phases().others.insert(rank, phase);
    }

    /// The failure of a rank with what that was doing, if it is known and not said yet.
    pub(crate) fn with_phase(&self, failure: Error) -> Error {
        let Error::RankFailed { rank, mut cause } = failure else {
            return failure;
        };
        let phases = self.phases();
        if let Some(phase) = phases.others.get(&rank)
            && !cause.contains(WAS)
        {
            cause = format!("{cause}{WAS}{phase}");
        }
        Error::RankFailed { rank, cause }
    }

    fn phases(&self) -> MutexGuard<'_, Phases> {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a failure. Only the first counts, since others follow from it; returns whether this was it.
    pub fn fail(&self, failure: Error) -> bool {
        let failure = self.with_phase(failure);
        let first = self.failure.set(failure).is_ok();
        if let (true, Some(failure)) = (first, self.failure.get()) {
            for listener in &*self.listeners.lock().unwrap_or_else(PoisonError::into_inner) {
                listener(failure);
            }
        }
        first
    }

    /// Calls a function at the first failure, from the thread that reports it, or at once if there was one.
    pub fn on_failure(&self, listener: impl Fn(&Error) + Send + Sync + 'static) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure.get() {
            Some(failure) => listener(failure),
            None => listeners.push(Box::new(listener)),
        }
    }
}
