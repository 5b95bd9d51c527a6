use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use super::MonitorContext;
use super::handle::LINGER;
use super::message::{Failure, MAX_FRAME, Message};
use super::outbox::{Closing, Outbox};
use super::pace::Pace;
use crate::control::{Alarm, Connection, poll};
use crate::{Error, Health, Result};

/// A rank's end of its connection to the hub, on a thread of its own.
pub(super) struct Member {
    connection: Connection,
    alarm: Alarm,
    outbox: Arc<Outbox>,
    health: Arc<Health>,
    silence: Duration,
    pace: Pace,
    last_heard: Instant,
    /// When the connection ended without a goodbye.
    lost: Option<Instant>,
    /// Whether all ranks know of a failure.
    failed: bool,
}

/// Whether there is more to do.
#[derive(PartialEq, Eq)]
enum Then {
    GoOn,
    End,
}

impl Member {
    pub fn new(
        stream: TcpStream,
        alarm: Alarm,
        outbox: Arc<Outbox>,
        context: &MonitorContext,
    ) -> Result<Self> {
        let connection = Connection::new(stream, MAX_FRAME)
            .map_err(|error| Error::system("the connection to the monitor could not be set up", error))?;
        Ok(Self {
            connection,
            alarm,
            outbox,
            health: Arc::clone(&context.health),
            silence: context.silence,
            pace: Pace::new(context),
            last_heard: Instant::now(),
            lost: None,
            failed: false,
        })
    }

    /// Runs until this rank or the hub leaves, or the hub is gone.
    pub fn run(mut self) {
        while self.turn() == Then::GoOn {}
        self.outbox.ended();
    }

    fn turn(&mut self) -> Then {
        let ready = self.poll();
        self.alarm.reset();
        let (now, late) = self.pace.begin_turn();
        if let Some(lost) = self.lost {
            return self.mourn(lost);
        }
        if ready {
            match self.receive() {
                Ok(Then::GoOn) => {}
                Ok(Then::End) => return Then::End,
                Err(_) => self.lost = Some(Instant::now()),
            }
        }
        if late {
            self.last_heard = now;
        }
        if now.saturating_duration_since(self.last_heard) > self.silence {
            self.health.fail(Failure::silence(0, self.silence).error());
            return Then::End;
        }
        if let Some(phase) = self.outbox.take_phase() {
            self.send(&Message::Phase(phase));
        }
        if let Some(failure) = self.outbox.take_report()
            && !self.failed
        {
            self.send(&Message::Failed(failure));
        }
        if self.pace.is_due() && !self.connection.is_sending() {
            self.send(&Message::Heartbeat);
        }
        if !self.connection.is_sending() {
            self.outbox.told();
        }
        match self.outbox.closing() {
            None => Then::GoOn,
            Some(closing) => {
                self.close(closing);
                Then::End
            }
        }
    }

    fn poll(&mut self) -> bool {
        let until = match self.lost {
            Some(lost) => lost + Health::MOURNING,
            None => self.pace.next(),
        };
        let mut fds = vec![self.alarm.poll_fd()];
        if self.lost.is_none() {
            fds.push(self.connection.poll_fd());
        }
        poll(&mut fds, Some(until));
        fds.get(1).is_some_and(|fd| !PollFd::revents(fd).is_empty())
    }

    fn receive(&mut self) -> io::Result<Then> {
        // Whether the connection has ended is for the reading to say, after the last message.
        drop(self.connection.flush());
        self.connection.receive()?;
        while let Some(frame) = self.connection.frame()? {
            self.last_heard = Instant::now();
            match Message::decode(&frame) {
                Ok(Message::Failed(failure)) => {
                    self.failed = true;
                    self.health.fail(failure.error());
                    drop(self.outbox.take_report());
                    self.outbox.told();
                }
                Ok(Message::Goodbye) => return Ok(Then::End),
                Ok(Message::Heartbeat) => {}
                Ok(Message::Phase(phase)) => self.health.note_phase(0, phase),
                Ok(_) | Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Then::GoOn)
    }

    fn send(&mut self, message: &Message) {
        drop(self.connection.send(&message.encode()));
    }

    /// The hub is gone. If that follows from the failure of another rank, this rank may hear of that in another way first.
    fn mourn(&mut self, lost: Instant) -> Then {
        if lost.elapsed() < Health::MOURNING && self.outbox.closing().is_none() && !self.failed {
            return Then::GoOn;
        }
        self.health.fail(Failure::death(0).error());
        Then::End
    }

    /// Says goodbye unless the run has failed, and waits until the hub has heard all.
    fn close(&mut self, closing: Closing) {
        if closing == Closing::Leave {
            self.send(&Message::Goodbye);
        }
        self.connection.finish();
        let until = Instant::now() + LINGER;
        while Instant::now() < until && self.connection.receive().is_ok() {
            while let Ok(Some(_)) = self.connection.frame() {}
            poll(&mut [self.connection.poll_fd()], Some(until));
        }
    }
}
