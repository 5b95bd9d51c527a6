use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::stream::{Exchange, Message, Query, invalid};
use crate::control::{deadline, pauses};
use crate::store::memory::check_sizes;
use crate::store::{MAX_VALUE, Store};
use crate::{Error, Health, Result};

/// What stands before every key: PyTorch's own clients put "/", and the rest keeps ours apart from theirs.
const PREFIX: &str = "/firebrand/";

/// How often a missing key is looked for, from the first time to the later ones.
const PERIODS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// How much longer than a key is waited for the server may take to say whether it is there.
const GRACE: Duration = Duration::from_secs(5);

/// How many connections are kept when nobody uses them.
const MAX_IDLE: usize = 4;

/// A client of the `TCPStore` that the agent of torchrun serves at `MASTER_ADDR:MASTER_PORT`.
///
/// Keys are `/firebrand/<key>` there. Waiting asks again and again, up to every 20 ms, instead of letting the server wait: so a
/// deadline never leaves a half-read answer behind. Threads that use it at the same time do not hold up each other.
///
/// PyTorch's protocol knows no secret: whoever reaches the port takes part. Values that must be trusted need more.
pub struct TorchStore {
    address: SocketAddr,
    timeout: Duration,
    health: Option<Arc<Health>>,
    /// Connections that nobody uses at the moment.
    idle: Mutex<Vec<TcpStream>>,
}

impl TorchStore {
    /// Connects to a server, and tries again until the deadline while it is not there yet. The deadline also holds for every
    /// later operation that has none of its own.
    ///
    /// # Errors
    ///
    /// If no `TCPStore` is there in time.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let store = Self {
            address,
            timeout,
            health: None,
            idle: Mutex::default(),
        };
        let deadline = deadline(timeout);
        let mut pauses = pauses();
        loop {
            let error = match store.dial(deadline) {
                Ok(stream) => {
                    store.idle().push(stream);
                    return Ok(store);
                }
                Err(error) => error,
            };
            let pause = pauses.next().unwrap_or_default();
            if error.kind() == ErrorKind::InvalidData || Instant::now() + pause >= deadline {
                return Err(Error::Connect {
                    what: format!(
                        "torchrun's store at {address} cannot be reached after {} s",
                        timeout.as_secs_f64()
                    ),
                    reason: format!(
                        "{error}; look whether MASTER_ADDR and MASTER_PORT are those of torchrun's agent"
                    ),
                });
            }
            std::thread::sleep(pause);
        }
    }

    /// Ends every wait when a rank fails, besides at its deadline.
    #[must_use]
    pub fn with_health(mut self, health: Arc<Health>) -> Self {
        self.health = Some(health);
        self
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dial(&self, deadline: Instant) -> io::Result<TcpStream> {
        let stream = crate::control::dial(self.address, deadline)?;
        Exchange::new(&stream, deadline, self.health.as_deref()).begin()?;
        Ok(stream)
    }

    /// Makes one request, which the server answers at once.
    fn call<T>(
        &self,
        deadline: Instant,
        request: impl FnOnce(&mut Exchange<'_>) -> io::Result<T>,
    ) -> Result<T> {
        let attempt = || {
            let kept = self.idle().pop();
            let stream = match kept {
                Some(stream) => stream,
                None => self.dial(deadline)?,
            };
            let answer = request(&mut Exchange::new(&stream, deadline, self.health.as_deref()))?;
            let mut idle = self.idle();
            if idle.len() < MAX_IDLE {
                idle.push(stream);
            }
            Ok(answer)
        };
        attempt().map_err(|error: io::Error| self.broken(&error))
    }

    fn broken(&self, error: &io::Error) -> Error {
        // A failure of a rank, which ended the wait.
        if let Some(failure) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            return failure.clone();
        }
        let name = format!("torchrun's store at {}", self.address);
        match error.kind() {
            ErrorKind::InvalidData => Error::Protocol {
                peer: name,
                reason: error.to_string(),
            },
            ErrorKind::TimedOut => Error::Connect {
                what: format!("{name} does not answer"),
                reason: "torchrun's agent on the first node may be stopped, or its machine out of reach"
                    .to_owned(),
            },
            _ => Error::Connect {
                what: format!("{name} ended the connection"),
                reason: format!(
                    "torchrun's agent on the first node may have ended: look at its output ({error})"
                ),
            },
        }
    }

    fn soon(&self) -> Instant {
        deadline(self.timeout)
    }

    fn grace(&self) -> Duration {
        GRACE.min(self.timeout)
    }

    fn is_set(&self, keys: &[String], deadline: Instant) -> Result<bool> {
        self.call(deadline, |exchange| {
            exchange.send(&Message::new(Query::Check).list(keys))?;
            match exchange.u8()? {
                0 => Ok(true),
                1 => Ok(false),
                _ => Err(invalid("it answers a check with neither 0 nor 1")),
            }
        })
    }

    /// Asks until a key is set.
    fn wait_for(&self, key: &str, until: Instant) -> Result<bool> {
        let keys = [full(key)];
        let mut period = PERIODS.0;
        loop {
            // A server that answers late is not taken for a missing key, so that it has a little longer to answer.
            if self.is_set(&keys, until + self.grace())? {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            if let Some(health) = &self.health {
                health.check()?;
            }
            std::thread::sleep(period.min(left));
            period = (period * 2).min(PERIODS.1);
        }
    }
}

impl Store for TorchStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_sizes(key, value)?;
        let key = full(key);
        self.call(self.soon(), |exchange| {
            exchange.send(&Message::new(Query::Set).bytes(key.as_bytes()).bytes(value))?;
            // A set has no answer; one that is asked for behind it tells that the server has got so far.
            exchange.send(&Message::new(Query::Check).list(std::slice::from_ref(&key)))?;
            exchange.u8().map(drop)
        })
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        check_sizes(key, &[])?;
        if !self.wait_for(key, deadline(timeout))? {
            return Err(missing(key, timeout));
        }
        let key = full(key);
        self.call(self.soon(), |exchange| {
            exchange.send(&Message::new(Query::Get).bytes(key.as_bytes()))?;
            exchange.bytes(MAX_VALUE)
        })
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        check_sizes(key, &[])?;
        let key = full(key);
        self.call(self.soon(), |exchange| {
            exchange.send(&Message::new(Query::Add).bytes(key.as_bytes()).i64(amount))?;
            exchange.i64()
        })
    }

    /// PyTorch answers with the expected value also if the key is missing, which [`Store`] calls an empty value.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        check_sizes(key, expected)?;
        check_sizes(key, desired)?;
        let full = full(key);
        let message = Message::new(Query::CompareSet)
            .bytes(full.as_bytes())
            .bytes(expected)
            .bytes(desired);
        let value = self.call(self.soon(), |exchange| {
            exchange.send(&message)?;
            exchange.bytes(MAX_VALUE)
        })?;
        let is_answer_for_missing = value == expected && !expected.is_empty();
        if is_answer_for_missing && (expected != desired || !self.check(&[key])?) {
            return Ok(Vec::new());
        }
        Ok(value)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let until = deadline(timeout);
        for key in keys {
            check_sizes(key, &[])?;
            if !self.wait_for(key, until)? {
                return Err(missing(key, timeout));
            }
        }
        Ok(())
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        keys.iter().try_for_each(|key| check_sizes(key, &[]))?;
        let keys: Vec<String> = keys.iter().map(|key| full(key)).collect();
        self.is_set(&keys, self.soon())
    }

    fn delete(&self, key: &str) -> Result<bool> {
        check_sizes(key, &[])?;
        let key = full(key);
        self.call(self.soon(), |exchange| {
            exchange.send(&Message::new(Query::Delete).bytes(key.as_bytes()))?;
            exchange.i64().map(|deleted| deleted != 0)
        })
    }
}

/// What a key is called there.
fn full(key: &str) -> String {
    format!("{PREFIX}{key}")
}

fn missing(key: &str, after: Duration) -> Error {
    Error::Missing {
        key: key.to_owned(),
        after,
    }
}
