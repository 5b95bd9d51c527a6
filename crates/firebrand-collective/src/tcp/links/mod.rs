//! What two ranks of a group send to each other: in order between the two, and independent of everything else.
//!
//! Each direction between two ranks has a connection of its own, which the sender dials when it first sends. One thread per
//! group moves all bytes without blocking, so that nobody who does not receive holds up others.

mod direction;
mod inbound;
mod message;
mod outbound;
mod worker;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

#[cfg(test)]
pub(super) use message::Header;
use message::Message;
use worker::{Command, Worker};

use crate::control::{Waker, alarm};
use crate::{Buffer, Error, GroupContext, Result, Work};

/// What the connections are for.
const PURPOSE: &str = "links";

/// The links of one rank to the others of its group.
pub(crate) struct Links {
    context: GroupContext,
    /// None in a group of one rank, and when it ends.
    worker: Option<Handle>,
}

struct Handle {
    commands: Sender<Command>,
    waker: Waker,
    thread: JoinHandle<()>,
}

impl Links {
    /// Lets the other ranks of the group connect, all of which call this. It does not wait for them.
    ///
    /// # Errors
    ///
    /// If this rank cannot listen, or the store is not there.
    pub fn connect(context: &GroupContext) -> Result<Arc<Self>> {
        let worker = if context.global_ranks.len() > 1 {
            Some(Handle::start(context)?)
        } else {
            None
        };
        Ok(Arc::new(Self {
            context: context.clone(),
            worker,
        }))
    }

    /// Sends a buffer to one rank. The work is over when the system has taken all of it, which then delivers it.
    pub fn send(&self, buffer: Buffer, to: usize) -> Work {
        self.queue(buffer, to, |to, message| Command::Send { to, message })
    }

    /// Receives into a buffer from one rank, which sends one of the same type and size.
    pub fn recv(&self, buffer: Buffer, from: usize) -> Work {
        self.queue(buffer, from, |from, message| Command::Receive { from, message })
    }

    fn queue(&self, buffer: Buffer, peer: usize, command: fn(usize, Message) -> Command) -> Work {
        let ranks = self.context.global_ranks.len();
        let Some(worker) = self
            .worker
            .as_ref()
            .filter(|_| peer < ranks && peer != self.context.rank)
        else {
            return Work::ready(Err(Error::argument(format!(
                "rank {} of a group of {ranks} has no link to rank {peer}",
                self.context.rank
            ))));
        };
        let (work, completion) = Work::pending();
        // If the thread is gone, the message is dropped and ends the work.
        drop(
            worker
                .commands
                .send(command(peer, Message::new(buffer, completion))),
        );
        worker.waker.wake();
        work
    }
}

impl Handle {
    fn start(context: &GroupContext) -> Result<Self> {
        let (waker, alarm) = alarm()?;
        let (commands, queue) = channel();
        let worker = Worker::new(context, queue, waker.clone(), alarm)?;
        let thread = std::thread::Builder::new()
            .name("firebrand-links".to_owned())
            .spawn(move || worker.run())
            .map_err(|error| {
                Error::system("a thread for the links of a group could not be started", error)
            })?;
        Ok(Self {
            commands,
            waker,
            thread,
        })
    }
}

/// What is under way ends with an error; what the system has taken is delivered.
impl Drop for Links {
    fn drop(&mut self) {
        if let Some(Handle {
            commands,
            waker,
            thread,
        }) = self.worker.take()
        {
            drop(commands);
            waker.wake();
            drop(thread.join());
        }
    }
}
