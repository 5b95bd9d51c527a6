use std::ops::Range;

use super::dissemination;
use super::flow::Ends;
use super::mesh;
use super::ring::{Memories, Ring, needs_sums};
use super::steps::{Around, Kind, Steps, block};
use super::wire::Wire;
use super::wires::Wires;
use crate::transport::{Call, Operation, Patience, Transport};
use crate::{Buffer, DType, Error, GroupContext, ReduceOp, Result, reduce_into};

/// Up to so many bytes of all ranks together, everything is gathered everywhere: the number of rounds is what takes time.
const GATHERED: usize = 384 << 10;

/// Up to so many bytes a broadcast goes down a tree.
const TREE: usize = 64 << 10;

/// How much comes in before it is reduced, at most.
const SEGMENT: usize = 512 << 10;

/// How large a part of a block is about, which goes around the ring as one.
const PART: usize = 512 << 10;

/// The ranks of a group, over TCP.
pub(crate) struct TcpTransport {
    wires: Wires,
    rank: usize,
    size: usize,
    /// Memory that is kept between operations: what comes in, and sums of 16-bit floats.
    arrived: Buffer,
    sums: Buffer,
    /// Why there will be no further operation.
    failed: Option<Error>,
}

impl TcpTransport {
    /// Connects to the other ranks of a group, all of which call this.
    ///
    /// # Errors
    ///
    /// If a rank does not come before the deadline, cannot be reached, or knows another secret.
    pub fn connect(context: &GroupContext) -> Result<Self> {
        let size = context.global_ranks.len();
        if context.rank >= size {
            return Err(Error::argument(format!(
                "rank {} is none of a group of {size}",
                context.rank
            )));
        }
        let streams = mesh::connect(context)?;
        let wires = streams.into_iter().map(|stream| stream.map(Wire::new)).collect();
        Ok(Self {
            wires: Wires::new(wires, context),
            rank: context.rank,
            size,
            arrived: Buffer::zeros(DType::U8, 0),
            sums: Buffer::zeros(DType::U8, 0),
            failed: None,
        })
    }

    fn collective(&mut self, call: &Call, buffer: Buffer, patience: &Patience) -> Result<Buffer> {
        self.wires.begin(call);
        let buffer = match call.operation {
            Operation::AllReduce(op) => self.all_reduce(call, op, buffer, patience)?,
            Operation::ReduceScatter(op) => self.reduce_scatter(call, op, buffer, patience)?,
            Operation::AllGather => self.all_gather(call, &buffer, patience)?,
            Operation::Broadcast { root } => self.broadcast(call, root, buffer, patience)?,
            Operation::Barrier => {
                self.gather(&[0], patience)?;
                buffer
            }
        };
        self.wires.end(patience)?;
        Ok(buffer)
    }

    fn all_reduce(
        &mut self,
        call: &Call,
        op: ReduceOp,
        mut buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        if self.is_small(&buffer) {
            let size = buffer.size();
            self.gather(buffer.bytes(), patience)?;
            self.reduce_gathered(buffer.bytes_mut(), size, 0..size, call.dtype, op)?;
            return Ok(buffer);
        }
        let steps = self.around(call.len, call.dtype).all_reduce();
        self.ring(&mut buffer, steps, op, patience)?;
        Ok(buffer)
    }

    fn reduce_scatter(
        &mut self,
        call: &Call,
        op: ReduceOp,
        mut buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        let own = block(call.len, self.rank, self.size);
        let own = own.start * call.dtype.size()..own.end * call.dtype.size();
        let mut result = Buffer::zeros(call.dtype, call.len / self.size);
        if self.is_small(&buffer) {
            self.gather(buffer.bytes(), patience)?;
            self.reduce_gathered(result.bytes_mut(), buffer.size(), own, call.dtype, op)?;
            return Ok(result);
        }
        let steps = self.around(call.len, call.dtype).reduce_scatter();
        self.ring(&mut buffer, steps, op, patience)?;
        result.bytes_mut().copy_from_slice(&buffer.bytes()[own]);
        Ok(result)
    }

    fn all_gather(&mut self, call: &Call, buffer: &Buffer, patience: &Patience) -> Result<Buffer> {
        let size = buffer.size();
        let mut all = Buffer::zeros(call.dtype, call.len * self.size);
        if self.is_small(buffer) {
            self.gather(buffer.bytes(), patience)?;
            for rank in 0..self.size {
                all.bytes_mut()[rank * size..][..size].copy_from_slice(self.gathered(rank, size));
            }
            return Ok(all);
        }
        all.bytes_mut()[self.rank * size..][..size].copy_from_slice(buffer.bytes());
        let steps = self.around(all.len(), call.dtype).all_gather();
        // Nothing is reduced: any operation will do.
        self.ring(&mut all, steps, ReduceOp::Sum, patience)?;
        Ok(all)
    }

    fn broadcast(
        &mut self,
        call: &Call,
        root: usize,
        mut buffer: Buffer,
        patience: &Patience,
    ) -> Result<Buffer> {
        if root >= self.size {
            return Err(Error::argument(format!(
                "rank {root} cannot broadcast in a group of {}",
                self.size
            )));
        }
        if buffer.size() <= TREE {
            let place = (self.rank, self.size);
            dissemination::broadcast(&mut self.wires, &mut buffer, root, place, patience)?;
            return Ok(buffer);
        }
        let steps = Steps::broadcast(call.len, self.rank, self.size, root);
        self.ring(&mut buffer, steps, ReduceOp::Sum, patience)?;
        Ok(buffer)
    }

    /// Whether every rank gathers the buffers of all: the same on every rank.
    fn is_small(&self, buffer: &Buffer) -> bool {
        buffer.size().saturating_mul(self.size) <= GATHERED
    }

    /// Gathers the parts of all ranks, to be had from [`gathered`](Self::gathered).
    fn gather(&mut self, part: &[u8], patience: &Patience) -> Result<()> {
        reserve(&mut self.arrived, part.len() * self.size);
        let known = &mut self.arrived.bytes_mut()[..part.len() * self.size];
        known[..part.len()].copy_from_slice(part);
        dissemination::all_gather(&mut self.wires, known, self.rank, self.size, patience)
    }

    /// The part of one rank.
    fn gathered(&self, rank: usize, size: usize) -> &[u8] {
        let place = (self.rank + self.size - rank) % self.size;
        &self.arrived.bytes()[place * size..][..size]
    }

    /// Reduces a range of the gathered parts. Every rank does exactly the same, so that the bits are the same whatever the
    /// values are.
    fn reduce_gathered(
        &self,
        target: &mut [u8],
        size: usize,
        range: Range<usize>,
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        target.copy_from_slice(&self.gathered(0, size)[range.clone()]);
        let others: Vec<&[u8]> = (1..self.size)
            .map(|rank| &self.gathered(rank, size)[range.clone()])
            .collect();
        reduce_into(target, 0, &others, dtype, op)
    }

    fn around(&self, len: usize, dtype: DType) -> Around {
        Around {
            len,
            rank: self.rank,
            size: self.size,
            parts: (len / self.size * dtype.size()).div_ceil(PART).max(1),
        }
    }

    fn ring(&mut self, buffer: &mut Buffer, steps: Steps, op: ReduceOp, patience: &Patience) -> Result<()> {
        let dtype = buffer.dtype();
        reserve(&mut self.arrived, SEGMENT);
        let reduces = steps.incoming.iter().any(|step| step.kind != Kind::Whole);
        let sums = if reduces && needs_sums(dtype, self.size) {
            let needed = buffer.len() * DType::F32.size();
            reserve(&mut self.sums, needed);
            &mut self.sums.bytes_mut()[..needed]
        } else {
            &mut []
        };
        let ends = Ends {
            to: (!steps.outgoing.is_empty()).then_some((self.rank + 1) % self.size),
            from: (!steps.incoming.is_empty()).then_some((self.rank + self.size - 1) % self.size),
        };
        let memories = Memories {
            buffer: buffer.bytes_mut(),
            sums,
            arrived: &mut self.arrived.bytes_mut()[..SEGMENT],
        };
        let mut ring = Ring::new(memories, steps, dtype, op, self.size);
        self.wires.run(ends, &mut ring, patience)
    }
}

impl Transport for TcpTransport {
    fn run(&mut self, call: &Call, buffer: Buffer, patience: &Patience) -> Result<Buffer> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        if self.size == 1 {
            return Ok(buffer);
        }
        let outcome = patience
            .check(Vec::new)
            .and_then(|()| self.collective(call, buffer, patience));
        if let Err(error) = &outcome {
            // The ranks are out of step. Neighbours learn it from the end of the connections.
            self.wires.close();
            self.failed = Some(error.clone());
        }
        outcome
    }
}

/// Makes memory at least so large.
fn reserve(memory: &mut Buffer, bytes: usize) {
    if memory.size() < bytes {
        *memory = Buffer::zeros(DType::U8, bytes);
    }
}
