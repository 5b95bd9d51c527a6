use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::MonitorContext;
use super::handle::{ADDRESS, PURPOSE, WHAT};
use super::message::{MAX_FRAME, Message};
use crate::control::{Endpoint, LENGTH, Timed};
use crate::{Error, Result};

/// Connects to the hub and says who this is.
pub(super) fn join(context: &MonitorContext, until: Instant) -> Result<TcpStream> {
    let left = || until.saturating_duration_since(Instant::now());
    let endpoint = Endpoint {
        address: find(context, until)?,
        secret: Arc::clone(&context.secret),
        purpose: PURPOSE,
        what: WHAT,
    };
    let stream = endpoint.connect_within(left(), Some(&context.health))?;
    let lost = |error: std::io::Error| Error::Connect {
        what: format!("{} did not answer", endpoint.name()),
        reason: format!("rank 0 may have ended: look at its output ({error})"),
    };
    let nonsense = || Error::Protocol {
        peer: endpoint.name(),
        reason: "it does not answer like a monitor".to_owned(),
    };
    let mut timed = Timed::new(&stream, until, Some(&context.health));
    let hello = Message::Hello {
        rank: context.global_rank,
    }
    .encode();
    let mut frame = (hello.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&hello);
    timed.write_all(&frame).map_err(lost)?;
    let mut length = [0; LENGTH];
    timed.read_exact(&mut length).map_err(lost)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(nonsense());
    }
    let mut answer = vec![0; length];
    timed.read_exact(&mut answer).map_err(lost)?;
    match Message::decode(&answer) {
        Ok(Message::Welcome) => Ok(stream),
        Ok(Message::Failed(failure)) => {
            context.health.fail(failure.error());
            Err(failure.error())
        }
        Ok(Message::Refused(reason)) => Err(Error::argument(format!("{} says: {reason}", endpoint.name()))),
        _ => Err(nonsense()),
    }
}

/// The address of the hub.
fn find(context: &MonitorContext, until: Instant) -> Result<SocketAddr> {
    /// How long the store waits at a time, between two looks at the health.
    const SLICE: Duration = Duration::from_millis(500);
    loop {
        context.health.check()?;
        let left = until.saturating_duration_since(Instant::now());
        match context.store.get(ADDRESS, left.min(SLICE)) {
            Ok(value) => {
                let address = String::from_utf8_lossy(&value).parse();
                return address.map_err(|_| Error::Protocol {
                    peer: "rank 0".to_owned(),
                    reason: format!("'{}' is no address", String::from_utf8_lossy(&value)),
                });
            }
            Err(Error::Missing { .. }) if left > SLICE => {}
            Err(Error::Missing { key, .. }) => {
                return Err(Error::Missing {
                    key,
                    after: context.timeout,
                });
            }
            Err(error) => return Err(error),
        }
    }
}
