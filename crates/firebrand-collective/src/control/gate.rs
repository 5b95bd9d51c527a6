use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::handshake::Handshake;
use super::poll::{Waker, poll};
use crate::{Error, Result};

/// How long nothing is accepted when the system has no more sockets or threads.
const REST: Duration = Duration::from_millis(50);

/// How long a stranger may keep a place that somebody else wants. A rank needs a few round trips.
const COURTESY: Duration = Duration::from_millis(100);

/// How many connections may wait to be accepted: all ranks of a large run come at the same moment.
const BACKLOG: i32 = 4096;

/// What strangers may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateLimits {
    /// How many may be in the handshake at a time.
    pub pending: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
}

/// Accepts connections and lets in who knows the secret of the job.
///
/// Each handshake has a thread, so that a stranger who is slow or silent holds up nobody. When all places are taken, who has
/// been there longest is sent away: a rank has proved itself long before.
pub(crate) struct Gate {
    listener: TcpListener,
    secret: Arc<[u8]>,
    purpose: &'static str,
    limits: GateLimits,
    waker: Waker,
    next: u64,
    /// By number, so that the first has been there longest.
    pending: BTreeMap<u64, Handshake>,
    results: (Sender<Outcome>, Receiver<Outcome>),
    resting_until: Option<Instant>,
}

/// The number of a handshake, and whether the other end proved that it knows the secret.
type Outcome = (u64, bool);

impl Gate {
    /// `waker` is for the thread that polls; it is called whenever a handshake is over.
    pub fn new(
        listener: TcpListener,
        secret: Arc<[u8]>,
        purpose: &'static str,
        limits: GateLimits,
        waker: Waker,
    ) -> Result<Self> {
        let set_up = || -> std::io::Result<()> {
            listener.set_nonblocking(true)?;
            // The standard library asks for 128, and who comes when that many wait tries again only after a second.
            Ok(rustix::net::listen(&listener, BACKLOG)?)
        };
        set_up().map_err(|error| Error::system("a listening socket could not be set up", error))?;
        Ok(Self {
            listener,
            secret,
            purpose,
            limits,
            waker,
            next: 0,
            pending: BTreeMap::new(),
            results: channel(),
            resting_until: None,
        })
    }

    /// What to poll, unless it would not be looked at now.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        let open = self.resting_until.is_none();
        open.then(|| PollFd::new(&self.listener, PollFlags::IN))
    }

    /// When to look again, if not before.
    pub fn next_look(&self) -> Option<Instant> {
        self.resting_until
    }

    /// Begins the handshakes of those who have come, and gives those who are through.
    pub fn admit(&mut self) -> Vec<TcpStream> {
        let mut admitted = self.finished();
        if self.resting_until.is_some_and(|until| Instant::now() < until) {
            return admitted;
        }
        self.resting_until = None;
        // As many as there are places, so that a flood does not keep the caller from its other work.
        for _ in 0..self.limits.pending {
            if self.pending.len() >= self.limits.pending {
                admitted.extend(self.finished());
            }
            if self.pending.len() >= self.limits.pending && !(self.is_wanted() && self.evict()) {
                break;
            }
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.begin(stream, address).is_err() {
                        self.rest();
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // These concern the one who came and has gone, or a signal.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(_) => {
                    self.rest();
                    break;
                }
            }
        }
        admitted
    }

    /// Whether somebody has come and not been accepted.
    fn is_wanted(&self) -> bool {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        poll(&mut fds, Some(Instant::now()));
        !fds[0].revents().is_empty()
    }

    /// Those who are through.
    fn finished(&mut self) -> Vec<TcpStream> {
        let mut admitted = Vec::new();
        while let Ok((number, proved)) = self.results.1.try_recv() {
            let stream = self.pending.remove(&number).and_then(Handshake::finish);
            admitted.extend(stream.filter(|_| proved));
        }
        admitted
    }

    fn rest(&mut self) {
        self.resting_until = Some(Instant::now() + REST);
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        let number = self.next;
        self.next += 1;
        let (results, waker) = (self.results.0.clone(), self.waker.clone());
        let handshake = Handshake::begin(
            stream,
            address,
            Arc::clone(&self.secret),
            self.purpose,
            self.limits.handshake,
            move |proved| {
                // Who is not waited for any more has been sent away.
                let _: std::result::Result<_, _> = results.send((number, proved));
                waker.wake();
            },
        )?;
        self.pending.insert(number, handshake);
        Ok(())
    }

    /// Sends away who has been waited for longest, if that is long enough; returns whether there is a place now.
    fn evict(&mut self) -> bool {
        let now = Instant::now();
        let mut old = self
            .pending
            .iter()
            .take_while(|(_, handshake)| now.duration_since(handshake.since) >= COURTESY);
        let number = old
            .find(|(_, handshake)| handshake.interrupt())
            .map(|(number, _)| *number);
        match number.and_then(|number| self.pending.remove(&number)) {
            Some(handshake) => {
                drop(handshake.finish());
                true
            }
            None => {
                // All are young, or about to be done.
                self.resting_until = Some(now + COURTESY / 10);
                false
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.pending.values().for_each(Handshake::abort);
        while let Some((_, handshake)) = self.pending.pop_first() {
            drop(handshake.finish());
        }
    }
}
