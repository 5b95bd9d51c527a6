use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::timed::{Timed, deadline};
use crate::auth::{Side, authenticate};
use crate::{Error, Health, Result};

/// The longest that one attempt to connect may take; the kernel repeats its packets after 1 and 3 s.
const ATTEMPT: Duration = Duration::from_secs(4);

/// The pauses between attempts grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A server to connect to.
pub(crate) struct Endpoint {
    pub address: SocketAddr,
    pub secret: Arc<[u8]>,
    /// What connections to it are for, the same at both ends.
    pub purpose: &'static str,
    /// What it is called in messages, without its address: `the rendezvous store`.
    pub what: &'static str,
}

impl Endpoint {
    /// What it is called in messages.
    pub fn name(&self) -> String {
        format!("{} at {}", self.what, self.address)
    }

    /// Connects, and tries again while the server is not there yet.
    ///
    /// # Errors
    ///
    /// If it is not there at the deadline, or the two do not share the secret.
    pub fn connect_within(&self, timeout: Duration, health: Option<&Health>) -> Result<TcpStream> {
        let deadline = deadline(timeout);
        let mut pauses = pauses();
        loop {
            let error = match self.connect(deadline, health) {
                Err(error @ Error::Connect { .. }) => error,
                outcome => return outcome,
            };
            let wake = Instant::now() + pauses.next().unwrap_or_default();
            if wake >= deadline {
                return Err(self.not_reached(&error, timeout));
            }
            while let Some(left) = wake.checked_duration_since(Instant::now()) {
                health.map_or(Ok(()), Health::check)?;
                std::thread::sleep(left.min(Health::PERIOD));
            }
        }
    }

    /// Connects, if the server is there.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] if it is not; another error if the two do not fit.
    pub fn connect(&self, deadline: Instant, health: Option<&Health>) -> Result<TcpStream> {
        health.map_or(Ok(()), Health::check)?;
        let refused = |reason: String| Error::Connect {
            what: format!("{} cannot be reached", self.name()),
            reason,
        };
        let stream = dial(self.address, deadline).map_err(|error| refused(error.to_string()))?;
        let mut timed = Timed::new(&stream, deadline, health);
        authenticate(&mut timed, &self.secret, self.purpose, Side::Client, &self.name())?;
        Ok(stream)
    }

    fn not_reached(&self, last: &Error, timeout: Duration) -> Error {
        let last = match last {
            Error::Connect { reason, .. } => reason.clone(),
            other => other.to_string(),
        };
        Error::Connect {
            what: format!(
                "{} cannot be reached after {} s",
                self.name(),
                timeout.as_secs_f64()
            ),
            reason: format!(
                "{last}; look whether the process that serves it runs, the address is right, and no firewall is between"
            ),
        }
    }
}

/// Connects to an address.
pub(crate) fn dial(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let left = deadline.saturating_duration_since(Instant::now());
    let stream = TcpStream::connect_timeout(&address, left.clamp(Duration::from_millis(1), ATTEMPT))?;
    // A port of the ephemeral range may be given to the very socket that connects to it, which then talks to itself.
    if stream.local_addr()? == address {
        return Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nobody listens there",
        ));
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How long to wait after each attempt that failed.
pub(crate) fn pauses() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(PAUSES.0), |pause| Some((*pause * 3 / 2).min(PAUSES.1))).map(jittered)
}

/// Between half and all of a pause, so that many ranks do not come at the same moments.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0; 1];
    match getrandom::fill(&mut byte) {
        Ok(()) => pause / 2 + pause / 2 * u32::from(byte[0]) / 256,
        Err(_) => pause,
    }
}
