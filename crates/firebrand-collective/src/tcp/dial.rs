use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::hello::Hello;
use super::pacing::do_not_pace_within_a_machine;
use super::reception::key;
use crate::control::{Endpoint, Timed, deadline};
use crate::{Error, GroupContext, Health, Result, Store};

/// How long one question to the store may take, so that one that is not needed any more ends soon.
const SLICE: Duration = Duration::from_millis(100);

/// The stack of a dialling thread.
const STACK: usize = 256 << 10;

/// Ends what dials when it is dropped.
#[derive(Default)]
pub(super) struct Cancel(pub Arc<Health>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0
            .fail(Error::Aborted("the connection is not needed any more".to_owned()));
    }
}

/// A connection to another rank of a group that is being made, by a thread of its own.
pub(super) struct Dial {
    store: Arc<dyn Store>,
    secret: Arc<[u8]>,
    purpose: &'static str,
    /// Ends it early.
    health: Arc<Health>,
    hello: Hello,
    timeout: Duration,
}

impl Dial {
    /// To one rank. `health` ends it early, which is for who may give up.
    pub fn new(context: &GroupContext, purpose: &'static str, to: usize, health: Arc<Health>) -> Self {
        Self {
            store: Arc::clone(&context.store),
            secret: Arc::clone(&context.secret),
            purpose,
            health,
            hello: Hello::between(context, context.rank, to),
            timeout: context.timeout,
        }
    }

    /// Begins, and hands over the connection, which does not block, or why there is none.
    pub fn start(self, done: impl FnOnce(Result<TcpStream>) + Send + 'static) -> Result<()> {
        std::thread::Builder::new()
            .name("firebrand-dial".to_owned())
            .stack_size(STACK)
            .spawn(move || done(self.connect()))
            .map_err(|error| {
                Error::system("a thread to connect to another rank could not be started", error)
            })?;
        Ok(())
    }

    fn connect(&self) -> Result<TcpStream> {
        let deadline = deadline(self.timeout);
        let address = self.address(deadline)?;
        let endpoint = Endpoint {
            address,
            secret: Arc::clone(&self.secret),
            purpose: self.purpose,
            what: "another rank of the group",
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let stream = endpoint
            .connect_within(left, Some(&self.health))
            .map_err(|error| self.named(error, address))?;
        Timed::new(&stream, deadline, Some(&self.health))
            .write_all(&self.hello.encode())
            .and_then(|()| stream.set_nonblocking(true))
            .map_err(|error| self.refused(address, error.to_string()))?;
        do_not_pace_within_a_machine(&stream);
        Ok(stream)
    }

    /// Where the rank listens, once it has come.
    fn address(&self, deadline: Instant) -> Result<SocketAddr> {
        let key = key(self.purpose, self.hello.to.0 as usize);
        let value = loop {
            self.health.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.store.get(&key, left.min(SLICE)) {
                Ok(value) => break value,
                Err(Error::Missing { .. }) if left.is_zero() => {
                    return Err(Error::Timeout {
                        operation: format!("connecting to rank {}", self.global()),
                        waiting_for: vec![self.global()],
                        after: self.timeout,
                    });
                }
                Err(Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        };
        let text = std::str::from_utf8(&value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| Error::Protocol {
                peer: format!("rank {}", self.global()),
                reason: format!("its address in the store, '{key}', is none"),
            })
    }

    fn global(&self) -> usize {
        self.hello.to.1 as usize
    }

    fn refused(&self, address: SocketAddr, reason: String) -> Error {
        Error::Connect {
            what: format!("rank {} at {address} cannot be reached", self.global()),
            reason,
        }
    }

    /// The error with the number of the rank.
    fn named(&self, error: Error, address: SocketAddr) -> Error {
        match error {
            Error::Connect { reason, .. } => self.refused(address, reason),
            Error::Secret { hint, .. } => Error::Secret {
                what: format!("rank {} at {address}", self.global()),
                hint,
            },
            other => other,
        }
    }
}
