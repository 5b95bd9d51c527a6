use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::hello::Hello;
use super::pacing::do_not_pace_within_a_machine;
use crate::control::{Gate, GateLimits, Waker, check_listener, listen};
use crate::{GroupContext, Result};

/// How many strangers may be in the handshake at a time, and how long.
const LIMITS: GateLimits = GateLimits {
    pending: 64,
    handshake: Duration::from_secs(10),
};

/// How many that proved that they know the secret may be about to say who they are, and how long.
const PENDING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the other ranks of a group connect to this one.
pub(super) struct Reception {
    context: GroupContext,
    gate: Gate,
    pending: Vec<Pending>,
}

/// One that knows the secret, and has not said all of its hello.
struct Pending {
    stream: TcpStream,
    hello: [u8; Hello::ENCODED],
    received: usize,
    since: Instant,
}

impl Reception {
    /// Listens, and tells the others where. `waker` is for the thread that polls.
    pub fn open(context: &GroupContext, purpose: &'static str, waker: Waker) -> Result<Self> {
        let what = format!("rank {}", context.global_ranks[context.rank]);
        let listener = listen(SocketAddr::new(context.address, 0), &what)?;
        let address = check_listener(&listener, &what)?;
        let gate = Gate::new(listener, context.secret.clone(), purpose, LIMITS, waker)?;
        context
            .store
            .set(&key(purpose, context.rank), address.to_string().as_bytes())?;
        Ok(Self {
            context: context.clone(),
            gate,
            pending: Vec::new(),
        })
    }

    /// What to poll.
    pub fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.extend(self.gate.poll_fd());
        let pending = self.pending.iter();
        fds.extend(pending.map(|pending| PollFd::new(&pending.stream, PollFlags::IN)));
    }

    /// When to look again even if nothing happens.
    pub fn next_look(&self) -> Option<Instant> {
        let oldest = self.pending.first().map(|pending| pending.since + PATIENCE);
        [self.gate.next_look(), oldest].into_iter().flatten().min()
    }

    /// The ranks that have connected since the last call, with connections that do not block.
    pub fn admit(&mut self) -> Vec<(usize, TcpStream)> {
        for stream in self.gate.admit() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.pending.len() >= PENDING {
                self.pending.remove(0);
            }
            self.pending.push(Pending {
                stream,
                hello: [0; Hello::ENCODED],
                received: 0,
                since: Instant::now(),
            });
        }
        let mut admitted = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.receive() {
                Progress::Waiting if pending.since.elapsed() < PATIENCE => self.pending.push(pending),
                Progress::Waiting | Progress::Gone => {}
                Progress::Said(hello) => {
                    // Who means another group, which listened here before, learns it from the end of the connection.
                    if let Some(rank) = hello.sender(&self.context) {
                        do_not_pace_within_a_machine(&pending.stream);
                        admitted.push((rank, pending.stream));
                    }
                }
            }
        }
        admitted
    }
}

enum Progress {
    Waiting,
    Gone,
    Said(Hello),
}

impl Pending {
    fn receive(&mut self) -> Progress {
        while self.received < self.hello.len() {
            match self.stream.read(&mut self.hello[self.received..]) {
                Ok(0) => return Progress::Gone,
                Ok(read) => self.received += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Waiting,
                Err(_) => return Progress::Gone,
            }
        }
        Hello::decode(&self.hello).map_or(Progress::Gone, Progress::Said)
    }
}

/// Where the address of a rank is in the store.
pub(super) fn key(purpose: &str, rank: usize) -> String {
    format!("{purpose}/{rank}")
}
