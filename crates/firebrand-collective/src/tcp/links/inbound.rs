use std::io::{ErrorKind, IoSliceMut, Read};

use super::direction::Direction;
use super::message::Header;
use crate::tcp::ending::is_passing;
use crate::{Error, Result};

/// How much of one message is received before the others have their turn.
const CHUNK: usize = 512 << 10;

/// The calls of one turn.
const CALLS: usize = 4;

/// What comes from another rank.
pub(super) struct Inbound {
    pub direction: Direction,
    header: [u8; Header::ENCODED],
}

impl Inbound {
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            header: [0; Header::ENCODED],
        }
    }

    /// Receives what has come. Returns whether there may be more. `own` is this rank's number among all.
    pub fn receive(&mut self, own: usize) -> bool {
        for _ in 0..CALLS {
            let direction = &mut self.direction;
            let (Some(stream), Some(message)) = (&mut direction.stream, direction.queue.front_mut()) else {
                return false;
            };
            let total = Header::ENCODED + message.buffer.size();
            let missing = Header::ENCODED.saturating_sub(direction.done);
            let begin = direction.done.saturating_sub(Header::ENCODED);
            let data = message.buffer.bytes_mut();
            let end = data.len().min(begin + CHUNK);
            let mut slices = [
                IoSliceMut::new(&mut self.header[Header::ENCODED - missing..]),
                IoSliceMut::new(&mut data[begin..end]),
            ];
            match stream.read_vectored(&mut slices) {
                Ok(0) => {
                    direction.lose(&ErrorKind::UnexpectedEof.into());
                    return false;
                }
                Ok(read) => direction.done += read,
                Err(error) if is_passing(&error) => return false,
                Err(error) => {
                    direction.lose(&error);
                    return false;
                }
            }
            if missing > 0
                && direction.done >= Header::ENCODED
                && let Err(error) = self.compare(own)
            {
                self.direction.fail(&error);
                return false;
            }
            if self.direction.done == total {
                self.direction.complete();
            }
        }
        self.direction.is_moving()
    }

    /// Compares what is sent with what this rank receives.
    fn compare(&self, own: usize) -> Result<()> {
        let Direction {
            global,
            sequence,
            queue,
            ..
        } = &self.direction;
        let Some(message) = queue.front() else {
            return Ok(());
        };
        let nonsense = |reason: String| Error::Protocol {
            peer: format!("rank {global}"),
            reason,
        };
        let sent = Header::decode(&self.header).map_err(|why| nonsense(why.0.to_owned()))?;
        if sent.sequence != *sequence {
            return Err(nonsense(format!(
                "it sent message {} where message {sequence} is due",
                sent.sequence
            )));
        }
        if sent != message.header(*sequence) {
            return Err(Error::Mismatch(format!(
                "message {sequence}: rank {global} sends {}[{}], rank {own} receives {}",
                sent.dtype,
                sent.len,
                message.shape()
            )));
        }
        Ok(())
    }
}
