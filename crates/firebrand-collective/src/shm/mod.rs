//! The transport between ranks of one node over shared memory; for processes and for threads alike.
//!
//! Each rank has an arena, which the others can read: buffers in it are reduced where they lie. Others pass through a ring of
//! slots in it, block by block ([`exchange`]); small ones through the control memory, with a single synchronisation. Nothing of
//! all this has a name in a file system.
//!
//! Before an operation each rank announces its call and where its data is, and compares the calls of all. Then each
//! follows the progress of the others in counters that only grow, and sleeps on futexes. The rules that exclude races are
//! those of [`memory`].

mod arena;
mod control;
mod cores;
mod exchange;
mod link;
mod memfd;
mod memory;
mod partition;
mod rendezvous;
mod space;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use arena::Arena;
use arena::Block;
use control::{Control, INLINE, Progress, Source};
use cores::keep_to_own_cores;
use exchange::Exchange;
use memory::Mapping;

use crate::transport::{Call, Operation, Patience, Transport};
use crate::{Buffer, Error, GroupContext, Result, reduce_into};

/// Shares memory with the other ranks of a group, all of which call this. Returns the transport, and the arena to allocate in.
///
/// # Errors
///
/// If a rank does not come before the deadline, knows another secret, or memory cannot be shared.
pub(crate) fn connect(context: &GroupContext) -> Result<(ShmTransport, Arc<Arena>)> {
    let ranks = context.global_ranks.len();
    if context.rank >= ranks {
        return Err(Error::argument(format!(
            "rank {} is none of a group of {ranks}",
            context.rank
        )));
    }
    let shared = rendezvous::meet(context)?;
    let arena = Arena::new(shared.arena);
    let transport = ShmTransport {
        control: Control::new(shared.control, context.rank, context.global_ranks.clone()),
        arena: Arc::clone(&arena),
        peers: shared.peers,
        staging: None,
        rank: context.rank,
        global_ranks: context.global_ranks.clone(),
        operations: 0,
        blocks: 0,
        failed: None,
    };
    Ok((transport, arena))
}

/// The ranks of a node, through shared memory.
pub(crate) struct ShmTransport {
    control: Control,
    arena: Arc<Arena>,
    /// The arenas of the others; none for this rank.
    peers: Vec<Option<Mapping>>,
    /// The ring of slots for buffers in ordinary memory, kept once it was needed.
    staging: Option<Block>,
    rank: usize,
    global_ranks: Vec<usize>,
    /// How many operations there were before, and how many blocks they had: the same on every rank.
    operations: u64,
    blocks: u64,
    /// Why there will be no further operation.
    failed: Option<Error>,
}

impl Transport for ShmTransport {
    fn run(&mut self, call: &Call, mut buffer: Buffer, patience: &Patience) -> Result<Buffer> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        if self.operations == 0 {
            keep_to_own_cores(self.rank, self.global_ranks.len());
        }
        let outcome = patience
            .check(Vec::new)
            .and_then(|()| self.collective(call, &mut buffer, patience));
        match outcome {
            Ok(None) => Ok(buffer),
            Ok(Some(result)) => Ok(result),
            Err(error) => {
                // The buffer is dropped after this, while a peer may still be reading it.
                self.give_up(&error);
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }
}

impl ShmTransport {
    /// Does an operation in the buffer, or returns another one with the result.
    fn collective(
        &mut self,
        call: &Call,
        buffer: &mut Buffer,
        patience: &Patience,
    ) -> Result<Option<Buffer>> {
        let ranks = self.global_ranks.len();
        let operation = self.operations;
        self.operations += 1;
        let small = buffer.size() <= INLINE || call.operation == Operation::Barrier;
        let sends = match call.operation {
            Operation::Broadcast { root } if root >= ranks => {
                return Err(Error::argument(format!(
                    "rank {root} cannot broadcast in a group of {ranks}"
                )));
            }
            Operation::Broadcast { root } => root == self.rank,
            Operation::Barrier => false,
            _ => true,
        };
        let source = match Block::offset_in(&self.arena, buffer) {
            Some(offset) => Source {
                offset,
                staged: false,
            },
            None if small || !sends || ranks == 1 => Source {
                offset: 0,
                staged: false,
            },
            None => Source {
                offset: self.staging()?.offset(),
                staged: true,
            },
        };
        let payload: &[u8] = if small && sends { buffer.bytes() } else { &[] };
        self.control.announce(operation, call, source, payload);
        self.control.wait(Progress::Arrived, operation + 1, patience)?;
        self.compare(operation, call)?;
        if call.operation == Operation::Barrier {
            return Ok(None);
        }
        if small {
            return self.exchange_payloads(operation, call, buffer);
        }
        let mut exchange = Exchange::new(self, operation, source, patience)?;
        let outcome = exchange.run(call, buffer);
        self.blocks = exchange.end();
        outcome
    }

    /// Compares what the ranks call: on every rank the same error names the first that differs from the first.
    fn compare(&self, operation: u64, own: &Call) -> Result<()> {
        let first = if self.rank == 0 {
            *own
        } else {
            self.control.call(0, operation)?
        };
        for rank in 1..self.global_ranks.len() {
            let call = self.control.call(rank, operation)?;
            if call != first {
                return Err(mismatch(
                    (self.global_ranks[0], first),
                    (self.global_ranks[rank], call),
                ));
            }
        }
        Ok(())
    }

    /// An operation on small buffers, which came with the calls. Nothing more needs to be waited for: the payload of this operation
    /// is written over in the next but one, when every rank has arrived at the next.
    fn exchange_payloads(&self, operation: u64, call: &Call, buffer: &mut Buffer) -> Result<Option<Buffer>> {
        let size = buffer.size();
        let payloads: Vec<&[u8]> = (0..self.global_ranks.len())
            .map(|rank| self.control.payload(rank, operation, size))
            .collect();
        match call.operation {
            Operation::AllReduce(op) => {
                // Every rank does exactly the same, so that the bits are the same whatever the values are.
                let target = buffer.bytes_mut();
                target.copy_from_slice(payloads[0]);
                reduce_into(target, 0, &payloads[1..], call.dtype, op)?;
                Ok(None)
            }
            Operation::ReduceScatter(op) => {
                let mut result = self.arena.result(call.dtype, buffer.len() / payloads.len())?;
                let own = self.rank * result.size()..(self.rank + 1) * result.size();
                let parts: Vec<&[u8]> = payloads.iter().map(|payload| &payload[own.clone()]).collect();
                let target = result.bytes_mut();
                target.copy_from_slice(parts[0]);
                reduce_into(target, 0, &parts[1..], call.dtype, op)?;
                Ok(Some(result))
            }
            Operation::AllGather => {
                let mut result = self.arena.result(call.dtype, buffer.len() * payloads.len())?;
                for (target, payload) in result.bytes_mut().chunks_exact_mut(size.max(1)).zip(payloads) {
                    target.copy_from_slice(payload);
                }
                Ok(Some(result))
            }
            Operation::Broadcast { root } => {
                if root != self.rank {
                    buffer.bytes_mut().copy_from_slice(payloads[root]);
                }
                Ok(None)
            }
            Operation::Barrier => Ok(None),
        }
    }

    fn staging(&mut self) -> Result<&Block> {
        let block = match self.staging.take() {
            Some(block) => block,
            None => self
                .arena
                .block(exchange::SLOTS * exchange::slot_size(self.global_ranks.len()))?,
        };
        Ok(self.staging.insert(block))
    }

    /// Lets nobody wait for this rank, and no memory be used again that a peer may be reading.
    fn give_up(&self, reason: &Error) {
        self.arena.retire();
        self.control.give_up(reason);
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.give_up(&Error::Aborted("it left the group".to_owned()));
    }
}

/// What two ranks call, `seq 41: rank 0 all_reduce sum f32[200], rank 1 all_reduce sum f32[100]`.
fn mismatch(first: (usize, Call), other: (usize, Call)) -> Error {
    let text = if first.1.sequence == other.1.sequence {
        let prefix = format!("seq {} ", first.1.sequence);
        let [one, two] = [first.1, other.1].map(|call| call.to_string().replacen(&prefix, "", 1));
        format!(
            "seq {}: rank {} {one}, rank {} {two}",
            first.1.sequence, first.0, other.0
        )
    } else {
        format!("rank {} {}, rank {} {}", first.0, first.1, other.0, other.1)
    };
    Error::Mismatch(text)
}
