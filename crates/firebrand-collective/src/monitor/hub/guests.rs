use std::io;
use std::time::{Duration, Instant};

use super::{Hub, Rank};
use crate::control::{Connection, GateLimits};
use crate::monitor::message::{MAX_FRAME, Message};

/// What those may take who are not known to be ranks yet.
pub(super) const STRANGERS: GateLimits = GateLimits {
    pending: 128,
    handshake: Duration::from_secs(5),
};

/// Who knows the secret and has not said yet which rank it is.
pub(super) struct Guest {
    pub connection: Connection,
    since: Instant,
}

impl Hub {
    /// Takes in those who have proved that they know the secret.
    pub(super) fn admit_guests(&mut self) {
        let admitted = self.gate.admit().into_iter();
        self.guests.extend(admitted.filter_map(|stream| {
            Some(Guest {
                connection: Connection::new(stream, MAX_FRAME).ok()?,
                since: Instant::now(),
            })
        }));
    }

    /// Lets in the guests that say which rank they are.
    pub(super) fn hear_guests(&mut self, ready: &[usize]) {
        let guests = std::mem::take(&mut self.guests);
        for (place, mut guest) in guests.into_iter().enumerate() {
            let mut read = || -> io::Result<Option<Vec<u8>>> {
                if ready.contains(&place) {
                    guest.connection.receive()?;
                }
                guest.connection.frame()
            };
            match read() {
                Ok(Some(frame)) => self.greet(guest.connection, &frame),
                Ok(None) if guest.since.elapsed() < STRANGERS.handshake => self.guests.push(guest),
                // Not a rank, or not any more.
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn greet(&mut self, mut connection: Connection, frame: &[u8]) {
        let Ok(Message::Hello { rank }) = Message::decode(frame) else {
            return;
        };
        let answer = match (self.ranks.get(&rank), &self.failure) {
            (_, Some(failure)) => Message::Failed(failure.clone()),
            (Some(Rank::Absent), None) => Message::Welcome,
            (Some(_), None) => Message::Refused(format!(
                "rank {rank} has come already; two processes have the same rank, or one was started again"
            )),
            (None, None) => Message::Refused(format!(
                "there is no rank {rank} besides rank 0 in a run of {}; do all ranks have the same world size?",
                self.ranks.len() + 1
            )),
        };
        if connection.send(&answer.encode()).is_err() || answer != Message::Welcome {
            return;
        }
        let last_heard = Instant::now();
        self.ranks.insert(
            rank,
            Rank::Present {
                connection,
                last_heard,
            },
        );
        self.outbox.arrived(rank);
    }
}
