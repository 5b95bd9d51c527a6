use std::io::{ErrorKind, IoSlice, Write};

use super::direction::Direction;
use super::message::Header;
use crate::tcp::ending::is_passing;

/// How much of one message is sent before the others have their turn.
const CHUNK: usize = 512 << 10;

/// The calls of one turn.
const CALLS: usize = 4;

/// Sends what can be sent at once. Returns whether there may be more to send at once.
pub(super) fn send(direction: &mut Direction) -> bool {
    for _ in 0..CALLS {
        let (Some(stream), Some(message)) = (&mut direction.stream, direction.queue.front()) else {
            return false;
        };
        let header = message.header(direction.sequence).encode();
        let data = message.buffer.bytes();
        let begin = direction.done.saturating_sub(Header::ENCODED);
        let end = data.len().min(begin + CHUNK);
        let slices = [
            IoSlice::new(&header[direction.done.min(Header::ENCODED)..]),
            IoSlice::new(&data[begin..end]),
        ];
        let total = Header::ENCODED + data.len();
        match stream.write_vectored(&slices) {
            Ok(0) => {
                direction.lose(&ErrorKind::WriteZero.into());
                return false;
            }
            Ok(written) => direction.done += written,
            Err(error) if is_passing(&error) => return false,
            Err(error) => {
                direction.lose(&error);
                return false;
            }
        }
        if direction.done == total {
            direction.complete();
        }
    }
    direction.is_moving()
}
