mod guests;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use guests::{Guest, STRANGERS};

use crate::control::{Alarm, Connection, Gate, Waker, poll};
use crate::monitor::MonitorContext;
use crate::monitor::handle::{LINGER, PURPOSE};
use crate::monitor::message::{Failure, Message};
use crate::monitor::outbox::{Closing, Outbox};
use crate::monitor::pace::Pace;
use crate::{Health, Result};

/// Rank 0's end of all connections, on a thread of its own.
pub(super) struct Hub {
    gate: Gate,
    alarm: Alarm,
    outbox: Arc<Outbox>,
    health: Arc<Health>,
    silence: Duration,
    pace: Pace,
    /// Who knows the secret and has not said yet which rank it is.
    guests: Vec<Guest>,
    /// The ranks, from 1.
    ranks: BTreeMap<usize, Rank>,
    /// What may turn out to follow from another failure, and when it counts.
    suspicion: Option<(Failure, Instant)>,
    /// The failure of the run.
    failure: Option<Failure>,
}

/// What is known of a rank.
enum Rank {
    /// It has not come yet.
    Absent,
    Present {
        connection: Connection,
        last_heard: Instant,
    },
    /// It has left as planned, or failed.
    Gone,
}

impl Hub {
    pub fn new(
        listener: TcpListener,
        waker: Waker,
        alarm: Alarm,
        outbox: Arc<Outbox>,
        context: &MonitorContext,
    ) -> Result<Self> {
        Ok(Self {
            gate: Gate::new(listener, Arc::clone(&context.secret), PURPOSE, STRANGERS, waker)?,
            alarm,
            outbox,
            health: Arc::clone(&context.health),
            silence: context.silence,
            pace: Pace::new(context),
            guests: Vec::new(),
            ranks: (1..context.world_size).map(|rank| (rank, Rank::Absent)).collect(),
            suspicion: None,
            failure: None,
        })
    }

    /// Runs until this rank leaves.
    pub fn run(mut self) {
        loop {
            self.turn();
            if let Some(closing) = self.outbox.closing() {
                self.close(closing);
                break;
            }
        }
        self.outbox.ended();
    }

    fn turn(&mut self) {
        let (guests, ranks) = self.poll();
        self.alarm.reset();
        let (now, late) = self.pace.begin_turn();
        for rank in ranks {
            self.receive(rank);
        }
        self.hear_guests(&guests);
        self.admit_guests();
        if let Some(phase) = self.outbox.take_phase() {
            self.send_to_all(&Message::Phase(phase));
        }
        if let Some(failure) = self.outbox.take_report() {
            self.hear(failure, 0);
        }
        self.look_for_silence(now, late);
        if let Some((failure, _)) = self.suspicion.take_if(|(_, until)| *until <= now) {
            self.decide(failure);
        }
        if self.pace.is_due() {
            self.send_to_all(&Message::Heartbeat);
        }
        if self.suspicion.is_none() && !self.is_sending() {
            self.outbox.told();
        }
    }

    /// Which guests, by place, and which ranks have something to read or can be written to.
    fn poll(&self) -> (Vec<usize>, Vec<usize>) {
        let suspicion = self.suspicion.as_ref().map(|(_, until)| *until);
        let until = [Some(self.pace.next()), suspicion, self.gate.next_look()];
        let (ranks, connections): (Vec<usize>, Vec<&Connection>) = self.present().unzip();
        let mut fds = vec![self.alarm.poll_fd()];
        fds.extend(self.gate.poll_fd());
        let first_guest = fds.len();
        fds.extend(self.guests.iter().map(|guest| guest.connection.poll_fd()));
        let first_rank = fds.len();
        fds.extend(connections.into_iter().map(Connection::poll_fd));
        poll(&mut fds, until.into_iter().flatten().min());
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let guests = (0..self.guests.len()).filter(|place| is_ready(&fds[first_guest + place]));
        let ranks = ranks.into_iter().zip(&fds[first_rank..]);
        (
            guests.collect(),
            ranks
                .filter(|(_, fd)| is_ready(fd))
                .map(|(rank, _)| rank)
                .collect(),
        )
    }

    fn present(&self) -> impl Iterator<Item = (usize, &Connection)> {
        self.ranks.iter().filter_map(|(rank, state)| match state {
            Rank::Present { connection, .. } => Some((*rank, connection)),
            _ => None,
        })
    }

    fn is_sending(&self) -> bool {
        self.present().any(|(_, connection)| connection.is_sending())
    }

    /// Reads what a rank has sent.
    fn receive(&mut self, rank: usize) {
        let Some(Rank::Present {
            connection,
            last_heard,
        }) = self.ranks.get_mut(&rank)
        else {
            return;
        };
        let mut messages = Vec::new();
        let mut read = || -> io::Result<()> {
            // Whether the connection has ended is for the reading to say, after the last message.
            drop(connection.flush());
            connection.receive()?;
            *last_heard = Instant::now();
            while let Some(frame) = connection.frame()? {
                messages.push(Message::decode(&frame).map_err(|_| io::ErrorKind::InvalidData)?);
            }
            Ok(())
        };
        let outcome = read();
        for message in messages {
            match message {
                Message::Heartbeat => {}
                Message::Phase(phase) => self.health.note_phase(rank, phase),
                Message::Failed(failure) => self.hear(failure, rank),
                Message::Goodbye => {
                    self.ranks.insert(rank, Rank::Gone);
                    return;
                }
                _ => return self.lose(rank, "it sent a message that only rank 0 sends".to_owned()),
            }
        }
        match outcome {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.lose(
                    rank,
                    "it sent the monitor a message that makes no sense".to_owned(),
                );
            }
            Err(_) => self.lose(rank, Failure::death(rank).cause),
        }
    }

    /// A rank is gone without a goodbye.
    fn lose(&mut self, rank: usize, cause: String) {
        self.ranks.insert(rank, Rank::Gone);
        self.suspect(Failure { rank, cause });
    }

    /// Hears of a failure from a rank, which speaks of itself or of another one.
    fn hear(&mut self, failure: Failure, from: usize) {
        if failure.rank == from {
            self.decide(failure);
        } else if failure.rank == 0 || self.ranks.contains_key(&failure.rank) {
            match &mut self.suspicion {
                // Who is suspected and speaks of another one left because of it: that came first.
                Some((suspected, _)) if suspected.rank == from => *suspected = failure,
                _ => self.suspect(failure),
            }
        } else {
            // No such rank: all that is known is that the one that says so has failed.
            self.decide(Failure {
                rank: from,
                cause: failure.error().to_string(),
            });
        }
    }

    /// Counts a failure unless the rank where it began speaks for itself soon.
    fn suspect(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.suspicion
                .get_or_insert((failure, Instant::now() + Health::SUSPICION));
        }
    }

    /// Tells all ranks of the failure of the run. Only the first counts.
    fn decide(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.suspicion = None;
        let failure = Failure::of(&self.health.with_phase(failure.error()), 0);
        self.failure = Some(failure.clone());
        self.send_to_all(&Message::Failed(failure.clone()));
        self.health.fail(failure.error());
        // That made a report of what is told already.
        drop(self.outbox.take_report());
    }

    fn send_to_all(&mut self, message: &Message) {
        let frame = message.encode();
        for state in self.ranks.values_mut() {
            if let Rank::Present { connection, .. } = state
                && (*message != Message::Heartbeat || !connection.is_sending())
            {
                drop(connection.send(&frame));
            }
        }
    }

    fn look_for_silence(&mut self, now: Instant, late: bool) {
        let mut silent = Vec::new();
        for (rank, state) in &mut self.ranks {
            if let Rank::Present { last_heard, .. } = state {
                if late {
                    *last_heard = now;
                }
                if now.saturating_duration_since(*last_heard) > self.silence {
                    silent.push(*rank);
                }
            }
        }
        for rank in silent {
            // It stays connected: when it goes on it hears that it has failed.
            self.suspect(Failure::silence(rank, self.silence));
        }
    }

    /// Says goodbye, or tells of a failure first, and waits until the ranks have heard it.
    fn close(&mut self, closing: Closing) {
        if let Some((failure, _)) = self.suspicion.take() {
            self.decide(failure);
        }
        if closing == Closing::Leave && self.failure.is_none() {
            self.send_to_all(&Message::Goodbye);
        }
        let until = Instant::now() + LINGER;
        loop {
            // What was received and not read would make the system throw away what was sent last.
            self.ranks.retain(|_, state| match state {
                Rank::Present { connection, .. } => {
                    drop(connection.flush());
                    let open = connection.receive().is_ok();
                    while let Ok(Some(_)) = connection.frame() {}
                    if !connection.is_sending() {
                        connection.finish();
                    }
                    open
                }
                _ => false,
            });
            if self.ranks.is_empty() || Instant::now() >= until {
                return;
            }
            let mut fds: Vec<_> = self
                .present()
                .map(|(_, connection)| connection.poll_fd())
                .collect();
            poll(&mut fds, Some(until));
        }
    }
}
