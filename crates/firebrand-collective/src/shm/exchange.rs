//! Operations on buffers of any size, block by block.
//!
//! A buffer in the arena lies there as a whole. Another one passes through a ring of slots: block `n`, counted over all operations, is
//! in slot `n % SLOTS`, and is written when every rank is done with the block that was there before. Ranks of both kinds
//! work together. The ring is so small that it stays in the cache, and only what a peer reads passes through it.
//!
//! All-reduce: of each block every rank reduces its own part, reading the peers' where they lie, and then copies the parts that
//! the others have reduced, one block later, so that nobody waits for the other to finish and the data is still in a cache.

use std::ops::Range;
use std::sync::Arc;

use super::ShmTransport;
use super::arena::{Arena, Block};
use super::control::{Control, Progress, Source};
use super::memory::Mapping;
use super::partition::{Blocks, part};
use crate::transport::{Call, Operation, Patience};
use crate::{Buffer, Memory, ReduceOp, Result, reduce_into};

/// The slots of the ring. A rank stages one block ahead, and copies one block behind.
pub(super) const SLOTS: usize = 4;

/// How many blocks the copies of an all-reduce are behind.
const LAG: usize = 1;

/// The part of a block that one rank reduces: small enough that it is still in the second-level cache of the rank when
/// others copy it.
fn part_size(ranks: usize) -> usize {
    ((1 << 20) / ranks).clamp(16 << 10, 256 << 10) / 64 * 64
}

/// The largest block.
pub(super) fn slot_size(ranks: usize) -> usize {
    ranks * part_size(ranks)
}

/// What of a buffer a block is.
#[derive(Clone, Copy)]
enum Layout {
    /// The block's range of the buffer.
    Whole,
    /// The same without this rank's own part, which takes its place when it is reduced.
    Peers,
    /// The block's range of each rank's part, which has so many bytes.
    Parts(usize),
}

/// One operation of one rank.
pub(super) struct Exchange<'a> {
    control: &'a Control,
    arena: &'a Arc<Arena>,
    peers: &'a [Option<Mapping>],
    /// The ring of slots, if this rank's buffer passes through it.
    ring: Option<&'a mut Block>,
    sources: Vec<Source>,
    patience: &'a Patience,
    rank: usize,
    /// The blocks of all operations before, and of this one.
    first: u64,
    blocks: Blocks,
    /// The blocks that were staged so far.
    staged: usize,
}

impl<'a> Exchange<'a> {
    /// When all ranks have arrived.
    pub(super) fn new(
        transport: &'a mut ShmTransport,
        operation: u64,
        own: Source,
        patience: &'a Patience,
    ) -> Result<Self> {
        let ShmTransport {
            control,
            arena,
            peers,
            staging,
            rank,
            blocks,
            ..
        } = transport;
        let sources = (0..peers.len()).map(|peer| match peer == *rank {
            true => Ok(own),
            false => control.source(peer, operation),
        });
        Ok(Self {
            sources: sources.collect::<Result<_>>()?,
            control,
            arena,
            peers,
            ring: staging.as_mut().filter(|_| own.staged),
            patience,
            rank: *rank,
            first: *blocks,
            blocks: Blocks::new(0, 64),
            staged: 0,
        })
    }

    /// The blocks of all operations so far.
    pub(super) fn end(&self) -> u64 {
        self.first + self.blocks.count() as u64
    }

    /// Does the operation in the buffer, or returns another one with the result.
    pub(super) fn run(&mut self, call: &Call, buffer: &mut Buffer) -> Result<Option<Buffer>> {
        let ranks = self.peers.len();
        let (size, most) = (buffer.size(), slot_size(ranks));
        self.blocks = match call.operation {
            Operation::ReduceScatter(_) => Blocks::new(size / ranks, part_size(ranks)),
            _ => Blocks::new(size, most),
        };
        let result = match call.operation {
            Operation::AllReduce(op) => self.all_reduce(call, buffer, op)?,
            Operation::ReduceScatter(op) => self.reduce_scatter(call, buffer, op)?,
            Operation::AllGather => self.all_gather(call, buffer)?,
            Operation::Broadcast { root } => self.broadcast(buffer, root)?,
            Operation::Barrier => None,
        };
        self.control.advance(Progress::Done, self.end());
        // The buffer can be written again when nobody reads it any more. A ring is looked after when it is used again.
        let sends = !matches!(call.operation, Operation::Broadcast { root } if root != self.rank);
        if sends && self.ring.is_none() {
            self.control.wait(Progress::Done, self.end(), self.patience)?;
        }
        Ok(result)
    }

    fn all_reduce(&mut self, call: &Call, buffer: &mut Buffer, op: ReduceOp) -> Result<Option<Buffer>> {
        let (rank, ranks, count) = (self.rank, self.peers.len(), self.blocks.count());
        let bytes = buffer.bytes_mut();
        for block in 0..count + LAG {
            if block < count {
                self.stage(block + 2, bytes, Layout::Peers)?;
                self.wait_ready(block)?;
                let range = self.blocks.range(block);
                let own = part(&range, rank, ranks);
                let within = own.start - range.start..own.end - range.start;
                let slot = self.slot(block);
                let peers = self.all_peers(block, own.start, within.start, own.len())?;
                reduce_into(&mut bytes[own.clone()], rank, &peers, call.dtype, op)?;
                if let Some(ring) = &mut self.ring {
                    ring.bytes_mut()[slot..][within].copy_from_slice(&bytes[own]);
                }
                self.advance(Progress::Reduced, block);
            }
            if let Some(block) = block.checked_sub(LAG) {
                let range = self.blocks.range(block);
                // Each begins with another one, so that they do not all read from the same.
                for peer in (1..ranks).map(|distance| (rank + distance) % ranks) {
                    self.control
                        .wait_for(peer, Progress::Reduced, self.number(block), self.patience)?;
                    let theirs = part(&range, peer, ranks);
                    let reduced = self.peer(
                        peer,
                        block,
                        theirs.start,
                        theirs.start - range.start,
                        theirs.len(),
                    )?;
                    bytes[theirs].copy_from_slice(reduced);
                }
                self.advance(Progress::Done, block);
            }
        }
        Ok(None)
    }

    fn reduce_scatter(&mut self, call: &Call, buffer: &mut Buffer, op: ReduceOp) -> Result<Option<Buffer>> {
        let (rank, ranks) = (self.rank, self.peers.len());
        let size = buffer.size() / ranks;
        let mut result = self.arena.result(call.dtype, buffer.len() / ranks)?;
        let bytes = buffer.bytes();
        for block in 0..self.blocks.count() {
            self.stage(block + 2, bytes, Layout::Parts(size))?;
            self.wait_ready(block)?;
            let range = self.blocks.range(block);
            let at = rank * size + range.start;
            let target = &mut result.bytes_mut()[range.clone()];
            target.copy_from_slice(&bytes[at..at + range.len()]);
            let peers = self.all_peers(block, at, rank * part_size(ranks), range.len())?;
            reduce_into(target, rank, &peers, call.dtype, op)?;
            self.advance(Progress::Done, block);
        }
        Ok(Some(result))
    }

    fn all_gather(&mut self, call: &Call, buffer: &mut Buffer) -> Result<Option<Buffer>> {
        let (rank, ranks) = (self.rank, self.peers.len());
        let bytes = buffer.bytes();
        let size = bytes.len();
        let mut result = self.arena.result(call.dtype, buffer.len() * ranks)?;
        for block in 0..self.blocks.count() {
            self.stage(block + 2, bytes, Layout::Whole)?;
            self.wait_ready(block)?;
            let range = self.blocks.range(block);
            for from in (0..ranks).map(|distance| (rank + distance) % ranks) {
                let target = &mut result.bytes_mut()[from * size..][range.clone()];
                target.copy_from_slice(match from == rank {
                    true => &bytes[range.clone()],
                    false => self.peer(from, block, range.start, 0, range.len())?,
                });
            }
            self.advance(Progress::Done, block);
        }
        Ok(Some(result))
    }

    fn broadcast(&mut self, buffer: &mut Buffer, root: usize) -> Result<Option<Buffer>> {
        if root == self.rank {
            self.stage(self.blocks.count(), buffer.bytes(), Layout::Whole)?;
            return Ok(None);
        }
        let bytes = buffer.bytes_mut();
        for block in 0..self.blocks.count() {
            if self.sources[root].staged {
                self.control
                    .wait_for(root, Progress::Ready, self.number(block), self.patience)?;
            }
            let range = self.blocks.range(block);
            bytes[range.clone()].copy_from_slice(self.peer(root, block, range.start, 0, range.len())?);
            self.advance(Progress::Done, block);
        }
        Ok(None)
    }

    /// Copies this rank's blocks, until there are so many, to the ring; unless its buffer lies in the arena.
    fn stage(&mut self, until: usize, bytes: &[u8], layout: Layout) -> Result<()> {
        while self.staged < until.min(self.blocks.count()) {
            let block = self.staged;
            let (number, at, range) = (self.number(block), self.slot(block), self.blocks.range(block));
            let (rank, ranks) = (self.rank, self.peers.len());
            let Some(ring) = &mut self.ring else { break };
            self.control
                .wait(Progress::Done, number.saturating_sub(SLOTS as u64), self.patience)?;
            let slot = &mut ring.bytes_mut()[at..][..slot_size(ranks)];
            match layout {
                Layout::Whole => slot[..range.len()].copy_from_slice(&bytes[range]),
                Layout::Peers => {
                    let own = part(&range, rank, ranks);
                    for theirs in [range.start..own.start, own.end..range.end] {
                        let within = theirs.start - range.start..theirs.end - range.start;
                        slot[within].copy_from_slice(&bytes[theirs]);
                    }
                }
                Layout::Parts(size) => {
                    for peer in (0..ranks).filter(|peer| *peer != rank) {
                        let part = &bytes[peer * size..][range.clone()];
                        slot[peer * part_size(ranks)..][..range.len()].copy_from_slice(part);
                    }
                }
            }
            self.advance(Progress::Ready, block);
            self.staged += 1;
        }
        Ok(())
    }

    /// Waits until a block of every rank lies in its arena.
    fn wait_ready(&self, block: usize) -> Result<()> {
        let staged = (0..self.peers.len()).filter(|peer| *peer != self.rank && self.sources[*peer].staged);
        for peer in staged {
            self.control
                .wait_for(peer, Progress::Ready, self.number(block), self.patience)?;
        }
        Ok(())
    }

    /// The value of a counter when a block is dealt with.
    fn number(&self, block: usize) -> u64 {
        self.first + block as u64 + 1
    }

    fn advance(&self, progress: Progress, block: usize) {
        self.control.advance(progress, self.number(block));
    }

    /// Where in a ring a block begins.
    fn slot(&self, block: usize) -> usize {
        ((self.first + block as u64) % SLOTS as u64) as usize * slot_size(self.peers.len())
    }

    /// Bytes of a block of a peer, which begin at `direct` in its buffer and at `within` in a slot.
    fn peer(&self, peer: usize, block: usize, direct: usize, within: usize, len: usize) -> Result<&'a [u8]> {
        let Source { offset, staged } = self.sources[peer];
        let at = if staged { self.slot(block) + within } else { direct };
        let range = offset.checked_add(at).and_then(|start| {
            Some(Range {
                start,
                end: start.checked_add(len)?,
            })
        });
        match (&self.peers[peer], range) {
            (Some(arena), Some(range)) => arena.announced(range),
            _ => Err(self
                .control
                .nonsense(peer, &format!("its buffer lies at {offset} in shared memory"))),
        }
    }

    /// The same bytes of all peers, in the order of the ranks.
    fn all_peers(&self, block: usize, direct: usize, within: usize, len: usize) -> Result<Vec<&'a [u8]>> {
        let peers = (0..self.peers.len()).filter(|peer| *peer != self.rank);
        peers
            .map(|peer| self.peer(peer, block, direct, within, len))
            .collect()
    }
}
