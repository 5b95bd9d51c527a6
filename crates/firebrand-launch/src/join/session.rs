use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firebrand_collective::{
    Error as Collective, GroupContext, Health, Monitor, MonitorContext, PrefixStore, ProcessGroup, Store,
    Topology, connect,
};

use super::JoinOptions;
use super::family::{Family, family};
use super::notice::{Notice, in_words};
use super::place::Place;
use crate::{Launch, Result};

/// How long a wait goes on between two looks at whether the ranks are well.
const LOOK: Duration = Duration::from_millis(100);

/// How long the monitor may take to say what became of a rank that no longer answers.
const KNOWN: Duration = Duration::from_secs(1);

/// This process, or one thread of it, as one rank of a run: its group with the others, and whoever watches that they are well.
///
/// Dropping it after success says goodbye to the others; after an error or a panic, it counts as a failure of this rank.
pub struct Session {
    group: Arc<dyn ProcessGroup>,
    topology: Topology,
    /// `None` if all ranks are of this process, and so share one health.
    monitor: Option<Monitor>,
    health: Arc<Health>,
    store: Arc<dyn Store>,
    options: JoinOptions,
    /// Counted on every rank, so that all have the same names for their meetings.
    meetings: AtomicU64,
}

/// Counted on every rank, so that all have the same names for their sessions.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

impl Session {
    /// Comes together with the other ranks. The first time, a process that is to start the others does so; it blocks until all
    /// ranks are there. While it does, one rank of each node says every [`notice`](JoinOptions::notice) who is missing.
    ///
    /// # Errors
    ///
    /// If a rank does not come in time, cannot be started or reached, or does not know the secret.
    pub fn join(launch: &Launch, options: JoinOptions) -> Result<Option<Self>> {
        let mut family = family();
        let here = match (&mut *family, launch) {
            (_, Launch::Single) => return Ok(None),
            (Some(family), _) => family,
            (none, Launch::Spawn(plan)) => none.insert(Family::start(plan, options)?),
            (none, Launch::External(cluster)) => none.insert(Family::meet(cluster, options)?),
        };
        let number = SESSIONS.fetch_add(1, Ordering::SeqCst);
        Self::begin(&here.place, number, options, None)
            .map(Some)
            .map_err(|error| here.explained(error))
    }

    /// Comes together with the ranks of a session that has a number. `shared` is the health of all ranks, if they are of this
    /// process.
    pub(super) fn begin(
        place: &Place,
        number: u64,
        options: JoinOptions,
        shared: Option<&Arc<Health>>,
    ) -> Result<Self> {
        let health = shared.cloned().unwrap_or_default();
        place.watched.concerns(&health);
        health.check()?;
        let Topology {
            global_rank,
            world_size,
            ..
        } = place.topology;
        let store: Arc<dyn Store> = Arc::new(PrefixStore::new(
            Arc::clone(&place.store),
            format!("session{number}"),
        ));
        store.set(&came("start", global_rank), &[])?;
        let _notice = missing(
            &store,
            &place.topology,
            "start".to_owned(),
            options.notice,
            "the start of the run; look whether the program runs there: it may not have been started, may have ended (its output says \
             why), or still do something before it builds its trainer",
        );
        let watch = || {
            Monitor::start(MonitorContext {
                store: Arc::clone(&store),
                global_rank,
                world_size,
                address: place.address,
                secret: Arc::clone(&place.secret),
                health: Arc::clone(&health),
                heartbeat: MonitorContext::DEFAULT_HEARTBEAT.min(options.silence / 3),
                silence: options.silence,
                timeout: options.timeout,
            })
        };
        let monitor = match shared {
            Some(_) => None,
            None => Some(watch()?),
        };
        let context = GroupContext {
            store: Arc::new(PrefixStore::new(Arc::clone(&store), "world")),
            rank: global_rank,
            global_ranks: (0..world_size).collect(),
            health: Arc::clone(&health),
            address: place.address,
            secret: Arc::clone(&place.secret),
            timeout: options.timeout,
        };
        Ok(Self {
            group: connect(context, options.backend)?,
            topology: place.topology.clone(),
            monitor,
            health,
            store,
            options,
            meetings: AtomicU64::new(0),
        })
    }

    /// The group of all ranks.
    pub fn group(&self) -> &Arc<dyn ProcessGroup> {
        &self.group
    }

    /// Who this process is.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Tells the other ranks that this one failed; returns when they know, or after a second.
    pub fn fail(&self, cause: &str) {
        match &self.monitor {
            Some(monitor) => monitor.fail(cause),
            None => {
                self.health.fail(Collective::RankFailed {
                    rank: self.topology.global_rank,
                    cause: cause.to_owned(),
                });
            }
        }
    }

    /// Is over when every rank has called it, and has no deadline: it waits for as long as all ranks are alive. It is for what
    /// may take any time on some rank, such as a download. `what` says in a few words what is waited for; one rank of each
    /// node says every [`notice`](JoinOptions::notice) who is still at it.
    ///
    /// # Errors
    ///
    /// If a rank fails or dies, or the store is out of reach.
    pub fn meet(&self, what: &str) -> firebrand_collective::Result<()> {
        let key = format!("meeting{}", self.meetings.fetch_add(1, Ordering::SeqCst));
        let all = format!("{key}/all");
        let arrive = || -> firebrand_collective::Result<()> {
            self.store.set(&came(&key, self.topology.global_rank), &[])?;
            let count = self.store.add(&format!("{key}/count"), 1)?;
            if usize::try_from(count).is_ok_and(|count| count == self.topology.world_size) {
                self.store.set(&all, &[])?;
            }
            Ok(())
        };
        arrive().map_err(|error| self.cause(error))?;
        let _notice = missing(
            &self.store,
            &self.topology,
            key.clone(),
            self.options.notice,
            &format!("{what}; they are alive, and waited for without a deadline"),
        );
        let mut unanswered: Option<Instant> = None;
        loop {
            self.health.check()?;
            match self.store.get(&all, LOOK) {
                Ok(_) => return Ok(()),
                Err(Collective::Missing { .. }) => unanswered = None,
                // A store whose machine is busy is not gone; whether it is, the monitor finds out.
                Err(Collective::Connect { .. })
                    if unanswered.get_or_insert_with(Instant::now).elapsed() < self.options.silence =>
                {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(self.cause(error)),
            }
        }
    }

    /// What is behind an error of the store: if its rank has died, the monitor is about to say so.
    fn cause(&self, error: Collective) -> Collective {
        let begun = Instant::now();
        while begun.elapsed() < KNOWN {
            if let Err(failure) = self.health.check() {
                return failure;
            }
            std::thread::sleep(Health::PERIOD);
        }
        error
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail("it panicked; its own output says more");
        } else if self.health.check().is_ok()
            && let Some(monitor) = &self.monitor
        {
            // If it cannot be said, the others notice.
            let _ = monitor.leave();
        }
    }
}

/// Where a rank says that it has come to a meeting.
fn came(meeting: &str, rank: usize) -> String {
    format!("{meeting}/came{rank}")
}

/// Says who has not come to a meeting, on one rank of each node.
fn missing(
    store: &Arc<dyn Store>,
    topology: &Topology,
    meeting: String,
    interval: Duration,
    what: &str,
) -> Option<Notice> {
    let (store, topology, what) = (Arc::clone(store), topology.clone(), what.to_owned());
    (topology.local_rank == 0).then(|| {
        Notice::every(interval, move |waited| {
            let has_come = |rank: &usize| store.check(&[&came(&meeting, *rank)]);
            let mut absent = Vec::new();
            for rank in 0..topology.world_size {
                // A store that does not answer is what the wait itself ends with.
                if !has_come(&rank).ok()? {
                    absent.push(rank);
                }
            }
            (!absent.is_empty()).then(|| {
                format!(
                    "rank {} has waited {} s for {} at {what}",
                    topology.global_rank,
                    waited.as_secs(),
                    in_words(&absent, &topology),
                )
            })
        })
    })
}
