use std::io::{self, ErrorKind};
use std::time::Instant;

use super::protocol::{Request, Response};
use crate::control::{Connection, deadline};
use crate::store::{MemoryStore, Store};

/// The server's end of one client's connection.
pub(super) struct Session {
    pub connection: Connection,
    /// What the client waits for.
    pub waiting: Option<Waiting>,
}

/// A `get` or `wait` that cannot be answered yet.
pub(super) struct Waiting {
    pub deadline: Instant,
    /// The last is not there, and is waited for; of those before it nothing is known. Ranks often come in order, and then
    /// one look at the end is enough.
    keys: Vec<String>,
    /// Whether the value is the answer.
    is_get: bool,
}

impl Waiting {
    /// The key whose change matters.
    pub fn key(&self) -> &str {
        self.keys.last().map_or("", String::as_str)
    }
}

impl Session {
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            waiting: None,
        }
    }

    /// Reads what has come, and answers if it is a whole request.
    ///
    /// # Errors
    ///
    /// If the connection has ended, or the client does not keep to the protocol.
    pub fn receive(&mut self, store: &MemoryStore) -> io::Result<()> {
        self.connection.receive()?;
        if self.waiting.is_some() || self.connection.is_sending() {
            return match self.connection.has_received() {
                true => Err(invalid("a request before the last one was answered")),
                false => Ok(()),
            };
        }
        let Some(frame) = self.connection.frame()? else {
            return Ok(());
        };
        if self.connection.has_received() {
            return Err(invalid("two requests at once"));
        }
        let request = Request::decode(&frame).map_err(|why| invalid(why.0))?;
        self.answer(request, store)
    }

    /// Looks again for what is waited for; gives up if it is time.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn look(&mut self, store: &MemoryStore) -> io::Result<()> {
        let Some(mut waiting) = self.waiting.take() else {
            return Ok(());
        };
        if waiting.is_get {
            if let Some(value) = store.peek(waiting.key()) {
                return self.send(&Response::Value(&value));
            }
        } else {
            while waiting
                .keys
                .pop_if(|key| store.check(&[key]).is_ok_and(|there| there))
                .is_some()
            {}
            if waiting.keys.is_empty() {
                return self.send(&Response::Done);
            }
        }
        if Instant::now() >= waiting.deadline {
            return self.send(&Response::Missing(waiting.key()));
        }
        self.waiting = Some(waiting);
        Ok(())
    }

    fn answer(&mut self, request: Request<'_>, store: &MemoryStore) -> io::Result<()> {
        match request {
            Request::Set { key, value } => match store.set(key, value) {
                Ok(()) => self.send(&Response::Done),
                Err(error) => self.refuse(&error),
            },
            Request::Add { key, amount } => match store.add(key, amount) {
                Ok(sum) => self.send(&Response::Number(sum)),
                Err(error) => self.refuse(&error),
            },
            Request::CompareSet {
                key,
                expected,
                desired,
            } => match store.compare_set(key, expected, desired) {
                Ok(value) => self.send(&Response::Value(&value)),
                Err(error) => self.refuse(&error),
            },
            Request::Check { keys } => match store.check(&keys) {
                Ok(all) => self.send(&Response::Flag(all)),
                Err(error) => self.refuse(&error),
            },
            Request::Delete { key } => match store.delete(key) {
                Ok(was_there) => self.send(&Response::Flag(was_there)),
                Err(error) => self.refuse(&error),
            },
            Request::Get { key, timeout } => {
                self.waiting = Some(Waiting {
                    deadline: deadline(timeout),
                    keys: vec![key.to_owned()],
                    is_get: true,
                });
                self.look(store)
            }
            Request::Wait { keys, timeout } => {
                self.waiting = Some(Waiting {
                    deadline: deadline(timeout),
                    keys: keys.into_iter().map(str::to_owned).collect(),
                    is_get: false,
                });
                self.look(store)
            }
        }
    }

    fn send(&mut self, response: &Response<'_>) -> io::Result<()> {
        self.connection.send(&response.encode())
    }

    fn refuse(&mut self, error: &crate::Error) -> io::Result<()> {
        self.send(&Response::Refused(&error.to_string()))
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}
