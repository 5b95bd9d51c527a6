//! Small buffers in as few rounds as possible: in each round, what is known doubles.

use super::flow::{Ends, Flow};
use super::wires::Wires;
use crate::transport::Patience;
use crate::{Buffer, Result};

/// Lets every rank have the parts of all: `known` begins with this rank's part, and ends with those of the ranks `rank`,
/// `rank - 1`, `rank - 2`, … in the circle.
pub(super) fn all_gather(
    wires: &mut Wires,
    known: &mut [u8],
    rank: usize,
    size: usize,
    patience: &Patience,
) -> Result<()> {
    let part = known.len() / size;
    let mut distance = 1;
    while distance < size {
        let count = distance.min(size - distance) * part;
        let (outgoing, incoming) = known.split_at_mut(distance * part);
        let mut flow = Exchange::new(&outgoing[..count], &mut incoming[..count]);
        let ends = Ends {
            to: Some((rank + distance) % size),
            from: Some((rank + size - distance) % size),
        };
        wires.run(ends, &mut flow, patience)?;
        distance *= 2;
    }
    Ok(())
}

/// Gives every rank the bytes of one: each that has them hands them on, at distances that double.
pub(super) fn broadcast(
    wires: &mut Wires,
    buffer: &mut Buffer,
    root: usize,
    (rank, size): (usize, usize),
    patience: &Patience,
) -> Result<()> {
    let place = (rank + size - root) % size;
    let mut distance = 1;
    if place > 0 {
        distance = 1 << place.ilog2();
        let ends = Ends {
            to: None,
            from: Some((rank + size - distance) % size),
        };
        wires.run(ends, &mut Exchange::new(&[], buffer.bytes_mut()), patience)?;
        distance *= 2;
    }
    while place + distance < size {
        let ends = Ends {
            to: Some((rank + distance) % size),
            from: None,
        };
        wires.run(ends, &mut Exchange::new(buffer.bytes(), &mut []), patience)?;
        distance *= 2;
    }
    Ok(())
}

/// Bytes that are sent as they are, and others that come.
struct Exchange<'a> {
    outgoing: &'a [u8],
    incoming: &'a mut [u8],
    received: usize,
}

impl<'a> Exchange<'a> {
    fn new(outgoing: &'a [u8], incoming: &'a mut [u8]) -> Self {
        Self {
            outgoing,
            incoming,
            received: 0,
        }
    }
}

impl Flow for Exchange<'_> {
    fn outgoing(&self) -> &[u8] {
        self.outgoing
    }

    fn sent(&mut self, bytes: usize) {
        self.outgoing = &self.outgoing[bytes..];
    }

    fn incoming(&mut self) -> &mut [u8] {
        &mut self.incoming[self.received..]
    }

    fn received(&mut self, bytes: usize) -> Result<()> {
        self.received += bytes;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.outgoing.is_empty() && self.received == self.incoming.len()
    }
}
