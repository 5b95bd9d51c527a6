use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::protocol::MAX_FRAME;
use super::session::Session;
use crate::control::{Alarm, Connection, Gate, GateLimits, Waker, alarm, check_listener, listen, poll};
use crate::store::MemoryStore;
use crate::{Error, Result};

/// What connections are for.
pub(super) const PURPOSE: &str = "store";

/// What the server is called in messages.
pub(super) const WHAT: &str = "the rendezvous store";

/// How much a [`StoreServer`] gives to others.
///
/// A process may have 1024 files open unless `ulimit -n` says otherwise: raise it before more ranks than that connect.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// The most connections of clients that have proved that they know the secret. Default: 4096.
    pub max_connections: usize,
    /// The most connections of those that have not yet. When there are more, the oldest is closed. Default: 128.
    pub max_strangers: usize,
    /// How long the proof may take. Default: 5 s.
    pub handshake: Duration,
    /// The most keys. Default: 1 Mi.
    pub max_keys: usize,
    /// The most bytes of all keys and values together. Default: 256 MiB.
    pub max_bytes: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_strangers: 128,
            handshake: Duration::from_secs(5),
            max_keys: 1 << 20,
            max_bytes: 256 << 20,
        }
    }
}

/// Serves a store to other processes, until it is dropped.
///
/// One thread answers all clients, so that one that is slow, silent or gone holds up nobody.
///
/// ```
/// use std::time::Duration;
/// use firebrand_collective::{Secret, Store, StoreLimits, StoreServer, TcpStore};
///
/// let secret = Secret::random()?;
/// let server = StoreServer::bind(([127, 0, 0, 1], 0).into(), secret.as_bytes(), StoreLimits::default())?;
/// let client = TcpStore::connect(server.address(), secret.as_bytes(), Duration::from_secs(10))?;
/// client.set("address/1", b"10.0.0.2:4000")?;
/// assert_eq!(server.store().get("address/1", Duration::from_secs(1))?, b"10.0.0.2:4000");
/// # Ok::<(), firebrand_collective::Error>(())
/// ```
pub struct StoreServer {
    address: SocketAddr,
    store: Arc<MemoryStore>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Listens at an address; port 0 takes any free one.
    ///
    /// # Errors
    ///
    /// If the port is taken, the address is not of this machine, or it stands for all interfaces.
    pub fn bind(address: SocketAddr, secret: &[u8], limits: StoreLimits) -> Result<Self> {
        Self::serve(listen(address, WHAT)?, secret, limits)
    }

    /// Serves at a socket that listens already, since a port has to be taken before it is announced.
    ///
    /// # Errors
    ///
    /// If it listens on all interfaces, or there are no resources for a thread.
    pub fn serve(listener: TcpListener, secret: &[u8], limits: StoreLimits) -> Result<Self> {
        let address = check_listener(&listener, WHAT)?;
        let (waker, alarm) = alarm()?;
        let gate_limits = GateLimits {
            pending: limits.max_strangers.max(1),
            handshake: limits.handshake,
        };
        let store = Arc::new(MemoryStore::with_limits(limits.max_keys, limits.max_bytes));
        let changed = Arc::new(Mutex::new(HashSet::new()));
        store.on_change({
            let (changed, waker) = (Arc::clone(&changed), waker.clone());
            move |key| {
                let mut changed = changed.lock().unwrap_or_else(PoisonError::into_inner);
                changed.insert(key.to_owned());
                waker.wake();
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let mut service = Service {
            gate: Gate::new(listener, secret.into(), PURPOSE, gate_limits, waker.clone())?,
            alarm,
            store: Arc::clone(&store),
            changed,
            max_connections: limits.max_connections,
            sessions: HashMap::new(),
            next: 0,
            waiting: HashMap::new(),
        };
        let thread = std::thread::Builder::new()
            .name("firebrand-store".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    while !stop.load(Ordering::Acquire) {
                        service.turn();
                    }
                }
            })
            .map_err(|error| {
                Error::system("the thread of the rendezvous store could not be started", error)
            })?;
        Ok(Self {
            address,
            store,
            stop,
            waker,
            thread: Some(thread),
        })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The store that is served, for this process itself.
    pub fn store(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.store)
    }
}

/// Ends all connections; the port is free again when it returns.
impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed already.
            drop(thread.join());
        }
    }
}

/// What the thread of the server works on.
struct Service {
    gate: Gate,
    alarm: Alarm,
    store: Arc<MemoryStore>,
    /// The keys that were set since the last look.
    changed: Arc<Mutex<HashSet<String>>>,
    max_connections: usize,
    sessions: HashMap<u64, Session>,
    next: u64,
    /// Which sessions wait for a key.
    waiting: HashMap<String, HashSet<u64>>,
}

impl Service {
    /// Waits until there is something to do, and does it.
    fn turn(&mut self) {
        let ready = self.poll();
        self.alarm.reset();
        for stream in self.gate.admit() {
            // One too many is closed, which its client reports.
            if self.sessions.len() < self.max_connections
                && let Ok(connection) = Connection::new(stream, MAX_FRAME)
            {
                self.sessions.insert(self.next, Session::new(connection));
                self.next += 1;
            }
        }
        for (number, events) in ready {
            self.step(number, |session, store| {
                if events.contains(PollFlags::OUT) {
                    session.connection.flush()?;
                }
                match events.difference(PollFlags::OUT).is_empty() {
                    true => Ok(()),
                    false => session.receive(store),
                }
            });
        }
        let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        let woken = changed.iter().filter_map(|key| self.waiting.get(key));
        let mut look: HashSet<u64> = woken.flatten().copied().collect();
        let now = Instant::now();
        let waiting = self.waiting.values().flatten();
        look.extend(waiting.filter(|number| {
            let session = self.sessions.get(number);
            session.is_some_and(|session| {
                session
                    .waiting
                    .as_ref()
                    .is_some_and(|waiting| waiting.deadline <= now)
            })
        }));
        for number in look {
            self.step(number, Session::look);
        }
    }

    /// Which sessions have something to read or can be written to.
    fn poll(&self) -> Vec<(u64, PollFlags)> {
        let waiting = self.waiting.values().flatten();
        let deadlines =
            waiting.filter_map(|number| Some(self.sessions.get(number)?.waiting.as_ref()?.deadline));
        let until = deadlines.chain(self.gate.next_look()).min();
        let mut fds = vec![self.alarm.poll_fd()];
        fds.extend(self.gate.poll_fd());
        let first = fds.len();
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        fds.extend(self.sessions.values().map(|session| session.connection.poll_fd()));
        poll(&mut fds, until);
        let events = fds[first..].iter().map(rustix::event::PollFd::revents);
        numbers
            .into_iter()
            .zip(events)
            .filter(|(_, events)| !events.is_empty())
            .collect()
    }

    /// Does something with a session and keeps the list of who waits for what; ends the session if it fails.
    fn step(&mut self, number: u64, action: impl FnOnce(&mut Session, &MemoryStore) -> io::Result<()>) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let before = session.waiting.as_ref().map(|waiting| waiting.key().to_owned());
        let outcome = action(session, &self.store);
        let after = session.waiting.as_ref().map(|waiting| waiting.key().to_owned());
        let after = after.filter(|_| outcome.is_ok());
        if outcome.is_err() {
            self.sessions.remove(&number);
        }
        if before == after {
            return;
        }
        if let Some(key) = before
            && let Some(numbers) = self.waiting.get_mut(&key)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.waiting.remove(&key);
            }
        }
        if let Some(key) = after {
            self.waiting.entry(key).or_default().insert(number);
        }
    }
}
