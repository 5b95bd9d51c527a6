use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::time::Instant;

use super::message::Message;
use crate::tcp::ending::how_it_ended;
use crate::{Error, GroupContext, Health, Result};

/// One direction between this rank and another: its messages, and its connection.
pub(super) struct Direction {
    /// The other rank's number among all.
    pub global: usize,
    pub stream: Option<TcpStream>,
    pub queue: VecDeque<Message>,
    /// The number of the first message of the queue.
    pub sequence: u64,
    /// How many bytes of it, with its header, are over.
    pub done: usize,
    /// When the connection ended, and how.
    lost: Option<(Instant, String)>,
    /// Why there will be no further message.
    failed: Option<Error>,
}

impl Direction {
    pub fn new(peer: usize, context: &GroupContext) -> Self {
        Self {
            global: context.global_ranks[peer],
            stream: None,
            queue: VecDeque::new(),
            sequence: 0,
            done: 0,
            lost: None,
            failed: None,
        }
    }

    /// Adds a message, or ends it if there will be none.
    pub fn push(&mut self, message: Message) {
        match &self.failed {
            Some(failure) => message.end(Err(failure.clone())),
            None => self.queue.push_back(message),
        }
    }

    /// The first message is over.
    pub fn complete(&mut self) {
        if let Some(message) = self.queue.pop_front() {
            self.sequence += 1;
            self.done = 0;
            message.end(Ok(()));
        }
    }

    /// Nothing more goes this way.
    pub fn fail(&mut self, error: &Error) {
        self.stream = None;
        self.failed.get_or_insert_with(|| error.clone());
        for message in self.queue.drain(..) {
            message.end(Err(error.clone()));
        }
    }

    /// Whether something can be moved when the connection is ready.
    pub fn is_moving(&self) -> bool {
        self.stream.is_some() && !self.queue.is_empty()
    }

    /// Whether a connection would be of use.
    pub fn needs_stream(&self) -> bool {
        self.stream.is_none() && self.failed.is_none() && self.lost.is_none()
    }

    /// The connection has ended.
    pub fn lose(&mut self, error: &io::Error) {
        self.stream = None;
        self.lost
            .get_or_insert_with(|| (Instant::now(), how_it_ended(error)));
    }

    /// Looks whether there is still a reason to wait. `verb` and `preposition` are for messages: `send`, `to`.
    pub fn check(&mut self, context: &GroupContext, verb: &str, preposition: &str) {
        if let Err(error) = self.look(context, verb, preposition) {
            self.fail(&error);
        }
    }

    fn look(&self, context: &GroupContext, verb: &str, preposition: &str) -> Result<()> {
        let Some(first) = self.queue.front() else {
            return Ok(());
        };
        let global = self.global;
        let what = || {
            let (sequence, shape) = (self.sequence, first.shape());
            format!("{verb} of message {sequence} {shape} {preposition} rank {global}")
        };
        context.health.check()?;
        if let Some((_, how)) = self
            .lost
            .as_ref()
            .filter(|(since, _)| since.elapsed() >= Health::HEARSAY)
        {
            return Err(Error::RankFailed {
                rank: global,
                cause: format!(
                    "the connection to it was {how} during the {}; its own output says why",
                    what()
                ),
            });
        }
        if first.since.elapsed() >= context.timeout {
            return Err(Error::Timeout {
                operation: what(),
                waiting_for: vec![global],
                after: context.timeout,
            });
        }
        Ok(())
    }
}
