//! Ranks as threads and as processes, in the same code as those of a run.
#![allow(clippy::unwrap_used)]

mod agreement;
mod bandwidth;
mod failures;
mod processes;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::{DType, Element, Health, MemoryStore, ReduceOp, Store};

/// One rank of a group, ready to call operations.
struct Rank {
    rank: usize,
    ranks: usize,
    transport: ShmTransport,
    arena: Arc<Arena>,
    health: Arc<Health>,
    timeout: Duration,
    sequence: u64,
}

impl Rank {
    fn new(context: &GroupContext) -> Result<Self> {
        let (transport, arena) = connect(context)?;
        Ok(Self {
            rank: context.rank,
            ranks: context.global_ranks.len(),
            transport,
            arena,
            health: Arc::clone(&context.health),
            timeout: context.timeout,
            sequence: 0,
        })
    }

    fn run(&mut self, operation: Operation, buffer: Buffer) -> Result<Buffer> {
        let call = Call {
            sequence: self.sequence,
            operation,
            dtype: buffer.dtype(),
            len: buffer.len(),
        };
        self.sequence += 1;
        let patience = Patience::new(Arc::clone(&self.health), call.to_string(), self.timeout);
        self.transport.run(&call, buffer, &patience)
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(Operation::Barrier, Buffer::zeros(DType::U8, 0))
            .map(drop)
    }

    /// Elements in the arena or in ordinary memory.
    fn buffer<E: Element>(&self, elements: &[E], in_arena: bool) -> Buffer {
        if !in_arena {
            return Buffer::from_slice(elements);
        }
        let mut buffer = self.arena.allocate(E::DTYPE, elements.len()).unwrap();
        buffer.as_mut_slice::<E>().unwrap().copy_from_slice(elements);
        buffer
    }
}

/// Global ranks that cannot be mistaken for numbers in the group.
fn global_ranks(ranks: usize) -> Vec<usize> {
    (0..ranks).map(|rank| 10 + rank).collect()
}

fn context(store: &Arc<dyn Store>, rank: usize, ranks: usize, timeout: Duration) -> GroupContext {
    GroupContext {
        store: Arc::clone(store),
        rank,
        global_ranks: global_ranks(ranks),
        health: Arc::new(Health::new()),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        secret: Arc::from(&b"secret"[..]),
        timeout,
    }
}

/// Calls a function with the context of each rank, each on a thread of its own.
fn with_contexts<T: Send>(
    ranks: usize,
    timeout: Duration,
    function: impl Fn(GroupContext) -> T + Sync,
) -> Vec<T> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    std::thread::scope(|scope| {
        let (store, function) = (&store, &function);
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || function(context(store, rank, ranks, timeout))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Calls a function with each rank of a group.
fn with_ranks<T: Send>(ranks: usize, timeout: Duration, function: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    with_contexts(ranks, timeout, |context| function(Rank::new(&context).unwrap()))
}

const PATIENT: Duration = Duration::from_secs(30);
