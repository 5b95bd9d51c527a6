use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::Health;
use crate::control::Timed;

/// What a client sends first.
const MAGIC: u32 = 0x3C85_F7CE;

/// The requests of PyTorch's protocol. Integers are little-endian; a key, a value and a list begin with a `u64` length.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Query {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Delete = 8,
    Ping = 13,
}

/// A request that is being written.
pub(super) struct Message(Vec<u8>);

impl Message {
    pub fn new(query: Query) -> Self {
        Self(vec![query as u8])
    }

    pub fn u32(mut self, number: u32) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub fn i64(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn list(mut self, items: &[String]) -> Self {
        self.0.extend_from_slice(&(items.len() as u64).to_le_bytes());
        items
            .iter()
            .fold(self, |message, item| message.bytes(item.as_bytes()))
    }
}

/// A connection on which one request at a time is made, until a deadline.
pub(super) struct Exchange<'a>(Timed<'a>);

impl<'a> Exchange<'a> {
    pub fn new(stream: &'a TcpStream, deadline: Instant, health: Option<&'a Health>) -> Self {
        Self(Timed::new(stream, deadline, health))
    }

    /// Asks whether a `TCPStore` is at the other end.
    pub fn begin(&mut self) -> io::Result<()> {
        const NONCE: u32 = 0x4652_4252;
        self.send(&Message::new(Query::Validate).u32(MAGIC))?;
        self.send(&Message::new(Query::Ping).u32(NONCE))?;
        match u32::from_le_bytes(self.array()?) {
            NONCE => Ok(()),
            _ => Err(invalid("it does not answer like a TCPStore")),
        }
    }

    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        self.0.write_all(&message.0)
    }

    pub fn u8(&mut self) -> io::Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> io::Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A value, whose memory is not reserved before its size is known to be right.
    pub fn bytes(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let length = u64::from_le_bytes(self.array()?);
        if length > max as u64 {
            return Err(invalid("a value is longer than any that is set"));
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

pub(super) fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}
