use std::time::Instant;

use crate::control::{Fields, Malformed};
use crate::{Buffer, Completion, DType, Result};

/// What goes ahead of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct Header {
    /// How many messages went before between the two ranks in this direction.
    pub sequence: u64,
    pub dtype: DType,
    /// The number of elements.
    pub len: u64,
}

impl Header {
    pub const ENCODED: usize = 24;

    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut bytes = [0; Self::ENCODED];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16] = self.dtype.code();
        bytes
    }

    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, Malformed> {
        let mut fields = Fields::new(bytes);
        let sequence = u64::from_le_bytes(fields.array()?);
        let len = u64::from_le_bytes(fields.array()?);
        let dtype = DType::from_code(fields.u8()?).ok_or(Malformed("there is no such element type"))?;
        if fields.array()? != [0; 7] {
            return Err(Malformed("its reserved bytes are not zero"));
        }
        fields.end()?;
        Ok(Self { sequence, dtype, len })
    }
}

/// A buffer that is to be sent, or to be received into.
pub(super) struct Message {
    pub buffer: Buffer,
    /// When it was asked for.
    pub since: Instant,
    completion: Completion,
}

impl Message {
    pub fn new(buffer: Buffer, completion: Completion) -> Self {
        Self {
            buffer,
            since: Instant::now(),
            completion,
        }
    }

    pub fn header(&self, sequence: u64) -> Header {
        Header {
            sequence,
            dtype: self.buffer.dtype(),
            len: self.buffer.len() as u64,
        }
    }

    /// What it carries, in words: `f32[200]`.
    pub fn shape(&self) -> String {
        format!("{}[{}]", self.buffer.dtype(), self.buffer.len())
    }

    /// It is over.
    pub fn end(self, outcome: Result<()>) {
        self.completion.complete(outcome.map(|()| self.buffer));
    }
}
