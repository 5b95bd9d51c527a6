use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use super::PURPOSE;
use super::direction::Direction;
use super::inbound::Inbound;
use super::message::Message;
use super::outbound;
use crate::control::{Alarm, Waker, poll};
use crate::tcp::dial::{Cancel, Dial};
use crate::tcp::reception::Reception;
use crate::{Error, GroupContext, Health, Result};

/// What the thread is asked to do.
pub(super) enum Command {
    Send { to: usize, message: Message },
    Receive { from: usize, message: Message },
}

/// What a thread that dials reports: the rank, and the connection or why there is none.
type Dialled = (usize, Result<TcpStream>);

/// The thread of the links.
pub(super) struct Worker {
    context: GroupContext,
    commands: Receiver<Command>,
    waker: Waker,
    alarm: Alarm,
    reception: Reception,
    outbound: BTreeMap<usize, Direction>,
    inbound: BTreeMap<usize, Inbound>,
    dialled: (Sender<Dialled>, Receiver<Dialled>),
    cancel: Cancel,
}

impl Worker {
    pub fn new(
        context: &GroupContext,
        commands: Receiver<Command>,
        waker: Waker,
        alarm: Alarm,
    ) -> Result<Self> {
        Ok(Self {
            context: context.clone(),
            commands,
            reception: Reception::open(context, PURPOSE, waker.clone())?,
            waker,
            alarm,
            outbound: BTreeMap::new(),
            inbound: BTreeMap::new(),
            dialled: channel(),
            cancel: Cancel::default(),
        })
    }

    /// Until nobody asks for anything more.
    pub fn run(mut self) {
        let mut is_busy = false;
        loop {
            self.wait(is_busy);
            if !self.take_commands() {
                break;
            }
            self.take_connections();
            is_busy = self.advance();
        }
        let end = Error::Aborted("the group was dropped while the message was under way".to_owned());
        let inbound = self.inbound.values_mut().map(|inbound| &mut inbound.direction);
        for direction in self.outbound.values_mut().chain(inbound) {
            direction.fail(&end);
        }
    }

    /// Waits until something can be done. If a message is under way, not longer than until the next look at the health.
    fn wait(&self, is_busy: bool) {
        let outbound = self
            .outbound
            .values()
            .map(|direction| (direction, PollFlags::OUT));
        let inbound = self.inbound.values();
        let inbound = inbound.map(|inbound| (&inbound.direction, PollFlags::IN));
        let mut fds = vec![self.alarm.poll_fd()];
        self.reception.poll_fds(&mut fds);
        let now = Instant::now();
        let mut until = self.reception.next_look();
        let mut not_after = |moment: Instant| until = Some(until.map_or(moment, |until| until.min(moment)));
        if is_busy {
            not_after(now);
        }
        for (direction, events) in outbound.chain(inbound) {
            if !direction.queue.is_empty() {
                not_after(now + Health::PERIOD);
                fds.extend(
                    direction
                        .stream
                        .as_ref()
                        .map(|stream| PollFd::new(stream, events)),
                );
            }
        }
        poll(&mut fds, until);
        drop(fds);
        self.alarm.reset();
    }

    /// Takes what is asked for. Returns whether there may be more later.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Send { to, message }) => self.outbound(to).push(message),
                Ok(Command::Receive { from, message }) => self.inbound(from).direction.push(message),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// The direction to a rank, to which a connection is begun if it is the first time.
    fn outbound(&mut self, to: usize) -> &mut Direction {
        self.outbound.entry(to).or_insert_with(|| {
            let mut direction = Direction::new(to, &self.context);
            let (sender, waker) = (self.dialled.0.clone(), self.waker.clone());
            let dial = Dial::new(&self.context, PURPOSE, to, Arc::clone(&self.cancel.0));
            let started = dial.start(move |outcome| {
                // Who does not wait any more has given up already.
                drop(sender.send((to, outcome)));
                waker.wake();
            });
            if let Err(error) = started {
                direction.fail(&error);
            }
            direction
        })
    }

    fn inbound(&mut self, from: usize) -> &mut Inbound {
        self.inbound
            .entry(from)
            .or_insert_with(|| Inbound::new(Direction::new(from, &self.context)))
    }

    fn take_connections(&mut self) {
        for (from, stream) in self.reception.admit() {
            let direction = &mut self.inbound(from).direction;
            // Of two from the same rank, the first is one that it gave up before it sent anything.
            let is_unused = direction.stream.is_some() && direction.sequence == 0 && direction.done == 0;
            if direction.needs_stream() || is_unused {
                direction.stream = Some(stream);
            }
        }
        while let Ok((to, outcome)) = self.dialled.1.try_recv() {
            if let Some(direction) = self.outbound.get_mut(&to) {
                match outcome {
                    Ok(stream) if direction.needs_stream() => direction.stream = Some(stream),
                    Ok(_) => {}
                    Err(error) => direction.fail(&error),
                }
            }
        }
    }

    /// Moves what can be moved at once. Returns whether there may be more.
    fn advance(&mut self) -> bool {
        let own = self.context.global_ranks[self.context.rank];
        let mut is_busy = false;
        for direction in self.outbound.values_mut() {
            is_busy |= outbound::send(direction);
            direction.check(&self.context, "send", "to");
        }
        for inbound in self.inbound.values_mut() {
            is_busy |= inbound.receive(own);
            inbound.direction.check(&self.context, "receive", "from");
        }
        is_busy
    }
}
