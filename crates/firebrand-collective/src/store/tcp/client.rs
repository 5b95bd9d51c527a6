use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::{MAX_FRAME, MAX_KEYS, Request, Response};
use crate::control::{Endpoint, LENGTH, Timed, deadline};
use crate::store::Store;
use crate::store::memory::check_sizes;
use crate::{Error, Health, Result};

/// The longest that one request waits at the server; a longer wait asks again, and so finds out that the server is gone.
const SLICE: Duration = Duration::from_secs(5);

/// How much longer than it was asked to wait the server may take to say so.
const GRACE: Duration = Duration::from_secs(5);

/// How long a server that was there before is tried again: a flood of strangers may keep it busy.
const RECONNECT: Duration = Duration::from_millis(400);

/// What a server that is gone means.
const LOST: &str = "rank 0, which serves it, may have ended: look at its output";

/// How many connections are kept when nobody uses them.
const MAX_IDLE: usize = 4;

/// A store that another process serves with [`StoreServer`](crate::StoreServer).
///
/// Each thread that uses it at the same time has a connection of its own, so that one that waits does not hold up the others.
pub struct TcpStore {
    endpoint: Endpoint,
    timeout: Duration,
    health: Option<Arc<Health>>,
    idle: Mutex<Vec<TcpStream>>,
}

impl TcpStore {
    /// Connects to a server, and tries again until the deadline while it is not there yet. The deadline also holds for every
    /// later operation that has none of its own.
    ///
    /// # Errors
    ///
    /// If the server is not there in time, or does not know the same secret.
    pub fn connect(address: SocketAddr, secret: &[u8], timeout: Duration) -> Result<Self> {
        let endpoint = Endpoint {
            address,
            secret: secret.into(),
            purpose: super::server::PURPOSE,
            what: super::server::WHAT,
        };
        let stream = endpoint.connect_within(timeout, None)?;
        Ok(Self {
            endpoint,
            timeout,
            health: None,
            idle: Mutex::new(vec![stream]),
        })
    }

    /// Ends every wait when a rank fails, besides at its deadline.
    #[must_use]
    pub fn with_health(mut self, health: Arc<Health>) -> Self {
        self.health = Some(health);
        self
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and hands its response to a function. A request that only reads is repeated once on a new connection.
    fn call<T>(
        &self,
        request: &Request<'_>,
        wait: Duration,
        read: impl FnOnce(Response<'_>) -> Option<T>,
    ) -> Result<T> {
        let deadline = deadline(wait.saturating_add(GRACE.min(self.timeout)));
        let frame = request.encode();
        let repeat = matches!(
            request,
            Request::Get { .. } | Request::Wait { .. } | Request::Check { .. }
        );
        let kept = self.idle().pop();
        let fresh = kept.is_none();
        let stream = match kept {
            Some(stream) => stream,
            None => self.reconnect()?,
        };
        let (stream, answer) = match self.exchange(stream, &frame, deadline) {
            Err(Error::Connect { .. }) if repeat && !fresh && Instant::now() < deadline => {
                self.idle().clear();
                let stream = self.reconnect()?;
                self.exchange(stream, &frame, deadline)?
            }
            outcome => outcome?,
        };
        let response = Response::decode(&answer).map_err(|why| self.nonsense(why.0))?;
        let result = match response {
            Response::Refused(message) => Err(Error::argument(message)),
            response => match read(response) {
                Some(value) => Ok(value),
                // The connection is out of step, and is dropped.
                None => return Err(self.nonsense("it answers another question")),
            },
        };
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(stream);
        }
        result
    }

    /// Another connection to a server that was there before.
    fn reconnect(&self) -> Result<TcpStream> {
        self.endpoint
            .connect_within(self.timeout.min(RECONNECT), self.health.as_deref())
            .map_err(|error| match error {
                Error::Connect { what, reason } => Error::Connect {
                    what,
                    reason: format!("{LOST}: {reason}"),
                },
                other => other,
            })
    }

    fn exchange(&self, stream: TcpStream, frame: &[u8], deadline: Instant) -> Result<(TcpStream, Vec<u8>)> {
        let mut timed = Timed::new(&stream, deadline, self.health.as_deref());
        let mut message = Vec::with_capacity(LENGTH + frame.len());
        message.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        message.extend_from_slice(frame);
        timed.write_all(&message).map_err(|error| self.broken(&error))?;
        let mut length = [0; LENGTH];
        timed
            .read_exact(&mut length)
            .map_err(|error| self.broken(&error))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_FRAME {
            return Err(self.nonsense("a frame is too long"));
        }
        let mut answer = vec![0; length];
        timed
            .read_exact(&mut answer)
            .map_err(|error| self.broken(&error))?;
        Ok((stream, answer))
    }

    fn broken(&self, error: &std::io::Error) -> Error {
        // A failure of a rank, which ended the wait.
        if let Some(failure) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return failure.clone();
        }
        if error.kind() == std::io::ErrorKind::TimedOut {
            return Error::Connect {
                what: format!("{} does not answer", self.endpoint.name()),
                reason: "the process that serves it (rank 0) may be stopped, or its machine out of reach"
                    .to_owned(),
            };
        }
        Error::Connect {
            what: format!("{} ended the connection", self.endpoint.name()),
            reason: format!("{LOST} ({error})"),
        }
    }

    fn nonsense(&self, reason: &str) -> Error {
        Error::Protocol {
            peer: self.endpoint.name(),
            reason: reason.to_owned(),
        }
    }
}

/// What a request that waits has found: a value, or the key that is missing.
type Found<T> = std::result::Result<T, String>;

/// Waits in slices until nothing is missing.
fn wait_for<T>(timeout: Duration, mut ask: impl FnMut(Duration) -> Result<Found<T>>) -> Result<T> {
    let deadline = deadline(timeout);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match ask(left.min(SLICE))? {
            Ok(value) => return Ok(value),
            Err(key) if Instant::now() >= deadline => return Err(Error::Missing { key, after: timeout }),
            Err(_) => {}
        }
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_sizes(key, value)?;
        self.call(&Request::Set { key, value }, self.timeout, |response| {
            matches!(response, Response::Done).then_some(())
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        check_sizes(key, &[])?;
        wait_for(timeout, |timeout| {
            self.call(
                &Request::Get { key, timeout },
                timeout,
                |response| match response {
                    Response::Value(value) => Some(Ok(value.to_vec())),
                    Response::Missing(key) => Some(Err(key.to_owned())),
                    _ => None,
                },
            )
        })
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        check_sizes(key, &[])?;
        self.call(
            &Request::Add { key, amount },
            self.timeout,
            |response| match response {
                Response::Number(number) => Some(number),
                _ => None,
            },
        )
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        check_sizes(key, expected)?;
        check_sizes(key, desired)?;
        let request = Request::CompareSet {
            key,
            expected,
            desired,
        };
        self.call(&request, self.timeout, |response| match response {
            Response::Value(value) => Some(value.to_vec()),
            _ => None,
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        keys.iter().try_for_each(|key| check_sizes(key, &[]))?;
        let deadline = deadline(timeout);
        for keys in keys.chunks(MAX_KEYS) {
            let left = deadline.saturating_duration_since(Instant::now());
            wait_for(left, |timeout| {
                let keys = keys.to_vec();
                self.call(
                    &Request::Wait { keys, timeout },
                    timeout,
                    |response| match response {
                        Response::Done => Some(Ok(())),
                        Response::Missing(key) => Some(Err(key.to_owned())),
                        _ => None,
                    },
                )
            })
            .map_err(|error| match error {
                Error::Missing { key, .. } => Error::Missing { key, after: timeout },
                other => other,
            })?;
        }
        Ok(())
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        keys.iter().try_for_each(|key| check_sizes(key, &[]))?;
        for keys in keys.chunks(MAX_KEYS) {
            let request = Request::Check { keys: keys.to_vec() };
            let all = self.call(&request, self.timeout, |response| match response {
                Response::Flag(flag) => Some(flag),
                _ => None,
            })?;
            if !all {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_sizes(key, &[])?;
        self.call(
            &Request::Delete { key },
            self.timeout,
            |response| match response {
                Response::Flag(flag) => Some(flag),
                _ => None,
            },
        )
    }
}
