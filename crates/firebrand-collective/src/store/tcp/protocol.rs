//! The messages of the store over TCP. Each is one frame; a client sends one request and waits for its response.
//!
//! Integers are little-endian; a text or value is its `u32` length and its bytes; a list is its `u32` length and its items.

use std::time::Duration;

use crate::control::{Fields, Malformed};
use crate::store::{MAX_KEY, MAX_VALUE};

/// The longest frame: `compare_set` with a key and two values.
pub(super) const MAX_FRAME: usize = 64 + MAX_KEY + 2 * MAX_VALUE;

/// The most keys of one request, so that the longest keys fit in a frame.
pub(super) const MAX_KEYS: usize = 1024;

/// The longest message of a refusal.
const MAX_MESSAGE: usize = 4096;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Set {
        key: &'a str,
        value: &'a [u8],
    },
    Get {
        key: &'a str,
        timeout: Duration,
    },
    Add {
        key: &'a str,
        amount: i64,
    },
    CompareSet {
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    },
    Wait {
        keys: Vec<&'a str>,
        timeout: Duration,
    },
    Check {
        keys: Vec<&'a str>,
    },
    Delete {
        key: &'a str,
    },
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Response<'a> {
    Done,
    Value(&'a [u8]),
    Number(i64),
    Flag(bool),
    /// The key that was not set in time.
    Missing(&'a str),
    /// What was asked for cannot be done.
    Refused(&'a str),
}

impl<'a> Request<'a> {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Set { key, value } => Frame::new(0).bytes(key.as_bytes()).bytes(value),
            Self::Get { key, timeout } => Frame::new(1).bytes(key.as_bytes()).duration(*timeout),
            Self::Add { key, amount } => Frame::new(2).bytes(key.as_bytes()).raw(&amount.to_le_bytes()),
            Self::CompareSet {
                key,
                expected,
                desired,
            } => Frame::new(3).bytes(key.as_bytes()).bytes(expected).bytes(desired),
            Self::Wait { keys, timeout } => Frame::new(4).keys(keys).duration(*timeout),
            Self::Check { keys } => Frame::new(5).keys(keys),
            Self::Delete { key } => Frame::new(6).bytes(key.as_bytes()),
        }
        .0
    }

    pub fn decode(frame: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(frame);
        let request = match fields.u8()? {
            0 => Self::Set {
                key: fields.text(MAX_KEY)?,
                value: fields.bytes(MAX_VALUE)?,
            },
            1 => Self::Get {
                key: fields.text(MAX_KEY)?,
                timeout: duration(&mut fields)?,
            },
            2 => Self::Add {
                key: fields.text(MAX_KEY)?,
                amount: fields.i64()?,
            },
            3 => Self::CompareSet {
                key: fields.text(MAX_KEY)?,
                expected: fields.bytes(MAX_VALUE)?,
                desired: fields.bytes(MAX_VALUE)?,
            },
            4 => Self::Wait {
                keys: keys(&mut fields)?,
                timeout: duration(&mut fields)?,
            },
            5 => Self::Check {
                keys: keys(&mut fields)?,
            },
            6 => Self::Delete {
                key: fields.text(MAX_KEY)?,
            },
            _ => return Err(Malformed("there is no such request")),
        };
        fields.end()?;
        Ok(request)
    }
}

impl<'a> Response<'a> {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Done => Frame::new(0),
            Self::Value(value) => Frame::new(1).bytes(value),
            Self::Number(number) => Frame::new(2).raw(&number.to_le_bytes()),
            Self::Flag(flag) => Frame::new(3).raw(&[u8::from(*flag)]),
            Self::Missing(key) => Frame::new(4).bytes(key.as_bytes()),
            Self::Refused(message) => Frame::new(5).bytes(clip(message).as_bytes()),
        }
        .0
    }

    pub fn decode(frame: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(frame);
        let response = match fields.u8()? {
            0 => Self::Done,
            1 => Self::Value(fields.bytes(MAX_VALUE)?),
            2 => Self::Number(fields.i64()?),
            3 => match fields.u8()? {
                0 => Self::Flag(false),
                1 => Self::Flag(true),
                _ => return Err(Malformed("a flag is neither 0 nor 1")),
            },
            4 => Self::Missing(fields.text(MAX_KEY)?),
            5 => Self::Refused(fields.text(MAX_MESSAGE)?),
            _ => return Err(Malformed("there is no such response")),
        };
        fields.end()?;
        Ok(response)
    }
}

/// A frame that is being written.
struct Frame(Vec<u8>);

impl Frame {
    fn new(code: u8) -> Self {
        Self(vec![code])
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.raw(&(bytes.len() as u32).to_le_bytes()).raw(bytes)
    }

    fn keys(self, keys: &[&str]) -> Self {
        let frame = self.raw(&(keys.len() as u32).to_le_bytes());
        keys.iter().fold(frame, |frame, key| frame.bytes(key.as_bytes()))
    }

    /// Milliseconds, rounded up, so that a server does not give up before the client does.
    fn duration(self, duration: Duration) -> Self {
        let milliseconds = duration.as_nanos().div_ceil(1_000_000);
        self.raw(&u32::try_from(milliseconds).unwrap_or(u32::MAX).to_le_bytes())
    }
}

fn duration(fields: &mut Fields<'_>) -> Result<Duration, Malformed> {
    Ok(Duration::from_millis(fields.u32()?.into()))
}

fn keys<'a>(fields: &mut Fields<'a>) -> Result<Vec<&'a str>, Malformed> {
    let count = fields.u32()? as usize;
    // Each has a length at least, so that a number alone reserves nothing.
    if count > MAX_KEYS || count > fields.left() / 4 {
        return Err(Malformed("there are too many keys"));
    }
    (0..count).map(|_| fields.text(MAX_KEY)).collect()
}

/// The beginning of a message, as long as one may be.
fn clip(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE)]
}
