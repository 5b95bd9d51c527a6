use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::hub::Hub;
use super::join::join;
use super::member::Member;
use super::message::Failure;
use super::outbox::{Closing, Outbox};
use crate::control::{alarm, deadline, listen};
use crate::{Error, Health, Result, Store};

/// How long a goodbye or a failure may take to reach the others.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What connections to the hub are for.
pub(super) const PURPOSE: &str = "monitor";

/// What the hub is called in messages.
pub(super) const WHAT: &str = "the monitor of rank 0";

/// Where the hub tells the others its address.
pub(super) const ADDRESS: &str = "monitor/address";

/// What a [`Monitor`] is made from.
#[derive(Clone)]
pub struct MonitorContext {
    /// Where rank 0 tells the others its address.
    pub store: Arc<dyn Store>,
    /// This rank's number among all.
    pub global_rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The address at which the other ranks reach this one; rank 0 listens on it alone.
    pub address: IpAddr,
    /// The secret of the job.
    pub secret: Arc<[u8]>,
    /// What becomes of the ranks: the monitor reports failures of others to it, and tells the others of those of this rank.
    pub health: Arc<Health>,
    /// How often each side says that it is alive; [`DEFAULT_HEARTBEAT`](Self::DEFAULT_HEARTBEAT).
    pub heartbeat: Duration,
    /// How long a rank may be silent until it counts as failed; [`DEFAULT_SILENCE`](Self::DEFAULT_SILENCE).
    pub silence: Duration,
    /// How long all ranks together may take to start.
    pub timeout: Duration,
}

impl MonitorContext {
    /// One second.
    pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(1);

    /// Half a minute.
    pub const DEFAULT_SILENCE: Duration = Duration::from_secs(30);

    fn check(&self) -> Result<()> {
        if self.global_rank >= self.world_size {
            return Err(Error::argument(format!(
                "there is no rank {} among {}",
                self.global_rank, self.world_size
            )));
        }
        if self.heartbeat.is_zero() || self.silence.is_zero() {
            return Err(Error::argument(format!(
                "the monitor needs a heartbeat and a silence above zero, not {:?} and {:?}",
                self.heartbeat, self.silence
            )));
        }
        Ok(())
    }
}

/// Watches over the ranks from a thread of its own, so that a rank that computes for long is alive all the same.
///
/// A failure that any rank reports, and the death or silence of any process, ends up in the [`Health`] of every rank as
/// [`Error::RankFailed`] with the rank where it began.
///
/// A rank that is done calls [`leave`](Self::leave). Dropping a monitor without that, after an error or a panic, counts as a
/// failure of this rank, so that the others do not wait for it.
pub struct Monitor {
    rank: usize,
    health: Arc<Health>,
    outbox: Option<Arc<Outbox>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Monitor {
    /// Connects this rank to rank 0. Rank 0 returns when all ranks have come. Every rank of a run calls it once.
    ///
    /// # Errors
    ///
    /// If ranks do not come in time, do not share the secret, or there are no resources for a connection and a thread.
    pub fn start(context: MonitorContext) -> Result<Self> {
        context.check()?;
        context.health.check()?;
        let (rank, health) = (context.global_rank, Arc::clone(&context.health));
        if context.world_size == 1 {
            return Ok(Self {
                rank,
                health,
                outbox: None,
                thread: Mutex::new(None),
            });
        }
        let until = deadline(context.timeout);
        let (waker, alarm) = alarm()?;
        let absent = match rank {
            0 => (1..context.world_size).collect(),
            _ => Vec::new(),
        };
        let outbox = Arc::new(Outbox::new(waker.clone(), absent));
        let run: Box<dyn FnOnce() + Send> = if rank == 0 {
            let listener = listen(SocketAddr::new(context.address, 0), WHAT)?;
            let address = listener
                .local_addr()
                .map_err(|error| Error::system("the address of the monitor is not known", error))?;
            let hub = Hub::new(listener, waker, alarm, Arc::clone(&outbox), &context)?;
            context.store.set(ADDRESS, address.to_string().as_bytes())?;
            Box::new(move || hub.run())
        } else {
            let stream = join(&context, until)?;
            let member = Member::new(stream, alarm, Arc::clone(&outbox), &context)?;
            Box::new(move || member.run())
        };
        let thread = std::thread::Builder::new()
            .name("firebrand-monitor".to_owned())
            .spawn(run)
            .map_err(|error| Error::system("the thread of the monitor could not be started", error))?;
        let monitor = Self {
            rank,
            health,
            outbox: Some(Arc::clone(&outbox)),
            thread: Mutex::new(Some(thread)),
        };
        // The health outlives the monitor, which must not live on through it.
        let told = Arc::downgrade(&outbox);
        context.health.on_failure(move |error| {
            if let Some(outbox) = told.upgrade() {
                outbox.report(Failure::of(error, rank));
            }
        });
        let told = Arc::downgrade(&outbox);
        context.health.on_phase(move |phase| {
            if let Some(outbox) = told.upgrade() {
                outbox.phase(phase);
            }
        });
        let absent = outbox.wait_arrived(until, &context.health)?;
        if absent.is_empty() {
            return Ok(monitor);
        }
        let error = Error::Timeout {
            operation: "the start of the monitor".to_owned(),
            waiting_for: absent,
            after: context.timeout,
        };
        context.health.fail(error.clone());
        Err(error)
    }

    /// Reports that this rank failed, unless another failure came first. Returns when the others are told, or after a second.
    pub fn fail(&self, cause: &str) {
        self.health.fail(Error::RankFailed {
            rank: self.rank,
            cause: cause.to_owned(),
        });
        if let Some(outbox) = &self.outbox {
            outbox.wait_told(LINGER);
        }
    }

    /// The first failure of any rank that this one knows of.
    pub fn global_failure(&self) -> Option<Error> {
        self.health.check().err()
    }

    /// Leaves as planned: this rank is done, and its end is no failure. The others go on; after rank 0 has left they no longer
    /// hear of each other through the monitor. Takes at most a few seconds.
    ///
    /// # Errors
    ///
    /// The failure of the run, if there was one: then this rank does not say goodbye.
    pub fn leave(&self) -> Result<()> {
        let outcome = self.health.check();
        self.end(match outcome {
            Ok(()) => Closing::Leave,
            Err(_) => Closing::Abandon,
        });
        outcome
    }

    fn end(&self, closing: Closing) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(outbox), Some(thread)) = (&self.outbox, thread) {
            outbox.wait_told(LINGER);
            outbox.close(closing);
            // A panic of it has been printed already.
            drop(thread.join());
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let has_left = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_none();
        if has_left {
            return;
        }
        self.health.fail(Error::RankFailed {
            rank: self.rank,
            cause: match std::thread::panicking() {
                true => "it panicked; its output tells more".to_owned(),
                false => "it ended without leaving the run, after an error; its output tells more".to_owned(),
            },
        });
        self.end(Closing::Abandon);
    }
}
