use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::poll::Waker;
use super::timed::Timed;
use crate::auth::{Side, authenticate};
use crate::{Error, Result};

/// How long nothing is accepted when the system has no more sockets or threads.
const REST: Duration = Duration::from_millis(50);

/// How long a stranger may keep a place that somebody else wants. A rank needs a few round trips.
const COURTESY: Duration = Duration::from_millis(100);

/// The stack of a handshake's thread.
const STACK: usize = 128 << 10;

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

struct Handshake {
    stream: Arc<TcpStream>,
    since: Instant,
    thread: JoinHandle<()>,
}

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

    /// What to poll, if there is a place.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        let open = self.resting_until.is_none() && self.has_place(Instant::now());
        open.then(|| PollFd::new(&self.listener, PollFlags::IN))
    }

    /// When to look again, if there is no place.
    pub fn next_look(&self) -> Option<Instant> {
        self.resting_until.or_else(|| {
            let full = self.pending.len() >= self.limits.pending;
            let oldest = self.pending.first_key_value().filter(|_| full)?;
            Some(oldest.1.since + COURTESY)
        })
    }

    /// Begins the handshakes of those who have come, and gives those who are through.
    pub fn admit(&mut self) -> Vec<TcpStream> {
        self.accept();
        let mut admitted = Vec::new();
        while let Ok((number, proved)) = self.results.1.try_recv() {
            if let Some(stream) = self.finish(number).filter(|_| proved) {
                admitted.push(stream);
            }
        }
        admitted
    }

    fn has_place(&self, now: Instant) -> bool {
        self.pending.len() < self.limits.pending
            || self
                .pending
                .first_key_value()
                .is_some_and(|(_, oldest)| now.duration_since(oldest.since) >= COURTESY)
    }

    fn accept(&mut self) {
        if self.resting_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.resting_until = None;
        // As many as there are places, so that a flood does not keep the caller from its other work.
        for _ in 0..self.limits.pending {
            if !self.has_place(Instant::now()) {
                return;
            }
            match self.listener.accept() {
                Ok((stream, address)) => {
                    if self.pending.len() >= self.limits.pending {
                        self.evict();
                    }
                    if self.begin(stream, address).is_err() {
                        self.resting_until = Some(Instant::now() + REST);
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // These concern the one who came and has gone, or a signal.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                Err(_) => {
                    self.resting_until = Some(Instant::now() + REST);
                    return;
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let number = self.next;
        self.next += 1;
        let stream = Arc::new(stream);
        let since = Instant::now();
        let thread = std::thread::Builder::new()
            .name("firebrand-gate".to_owned())
            .stack_size(STACK)
            .spawn({
                let (stream, secret) = (Arc::clone(&stream), Arc::clone(&self.secret));
                let (purpose, deadline) = (self.purpose, since + self.limits.handshake);
                let (results, waker) = (self.results.0.clone(), self.waker.clone());
                move || {
                    let mut timed = Timed::new(&stream, deadline, None);
                    let peer = address.to_string();
                    let proved = authenticate(&mut timed, &secret, purpose, Side::Server, &peer).is_ok();
                    drop(stream);
                    // Who is not waited for any more has been sent away.
                    let _: std::result::Result<_, _> = results.send((number, proved));
                    waker.wake();
                }
            })?;
        self.pending.insert(
            number,
            Handshake {
                stream,
                since,
                thread,
            },
        );
        Ok(())
    }

    /// Sends away who has been there longest.
    fn evict(&mut self) {
        if let Some(&number) = self.pending.keys().next() {
            if let Some(oldest) = self.pending.get(&number) {
                drop(oldest.stream.shutdown(Shutdown::Both));
            }
            self.finish(number);
        }
    }

    /// Takes back the connection of a handshake that is over or about to be.
    fn finish(&mut self, number: u64) -> Option<TcpStream> {
        let handshake = self.pending.remove(&number)?;
        drop(handshake.thread.join());
        Arc::into_inner(handshake.stream)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        for handshake in self.pending.values() {
            drop(handshake.stream.shutdown(Shutdown::Both));
        }
        while let Some((_, handshake)) = self.pending.pop_first() {
            drop(handshake.thread.join());
        }
    }
}
