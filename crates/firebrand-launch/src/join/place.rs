use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firebrand_collective::{Error as Collective, Health, Store, Topology};

use crate::ChildEnd;

/// What a rank keeps for all of its sessions: who it is, and by what it finds the others.
#[derive(Clone)]
pub(super) struct Place {
    pub topology: Topology,
    pub store: Arc<dyn Store>,
    pub secret: Arc<[u8]>,
    /// The address by which the others reach this rank.
    pub address: IpAddr,
    pub watched: Arc<Watched>,
}

/// Whom the end of a child concerns: the session that is under way.
#[derive(Default)]
pub(super) struct Watched(Mutex<WatchedState>);

#[derive(Default)]
struct WatchedState {
    health: Option<Arc<Health>>,
    /// The first child that failed, also before there was a session that it concerned.
    failure: Option<Collective>,
}

/// How long the last words of a rank that has ended may take.
const LAST_WORDS: Duration = Duration::from_millis(100);

impl Watched {
    /// A child that fails while a session is under way is a rank that failed.
    pub fn failed(&self, end: ChildEnd) {
        // Its last words may still be on their way: an error of its own, or what it was doing.
        std::thread::sleep(LAST_WORDS);
        let failure = Collective::RankFailed {
            rank: end.rank,
            cause: end.to_string(),
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(health) = &state.health {
            health.fail(failure.clone());
        }
        state.failure.get_or_insert(failure);
    }

    /// From now on what happens to children concerns a session; one that failed before it began does too.
    pub fn concerns(&self, health: &Arc<Health>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = &state.failure {
            health.fail(failure.clone());
        }
        state.health = Some(Arc::clone(health));
    }
}
