//! Ranks as threads that find each other through a store in memory, and talk over the loopback interface.

#![allow(clippy::unwrap_used)]

mod agreement;
mod bandwidth;
mod failures;
mod frames;
mod groups;
mod links;
mod processes;
mod strangers;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use super::{Links, TcpTransport};
use crate::transport::{Call, Operation, Patience, Transport};
use crate::{Buffer, DType, Error, GroupContext, Health, MemoryStore, ReduceOp, Result, Store};

const SECRET: &[u8] = b"the secret of a test";
const SOON: Duration = Duration::from_secs(20);

/// The number among all ranks of the first rank of a group: so that the two numbers of a rank differ.
const FIRST: usize = 20;

fn context(store: &Arc<dyn Store>, rank: usize, ranks: usize) -> GroupContext {
    GroupContext {
        store: Arc::clone(store),
        rank,
        global_ranks: (FIRST..FIRST + ranks).collect(),
        health: Arc::new(Health::new()),
        address: Ipv4Addr::LOCALHOST.into(),
        secret: SECRET.into(),
        timeout: SOON,
    }
}

/// The contexts of the ranks of a group. Each has a health of its own, as processes have.
fn contexts(ranks: usize) -> Vec<GroupContext> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    (0..ranks).map(|rank| context(&store, rank, ranks)).collect()
}

/// Does something as every rank at the same time.
fn as_ranks<T: Send>(contexts: Vec<GroupContext>, act: impl Fn(GroupContext) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = contexts
            .into_iter()
            .map(|context| scope.spawn(move || act(context)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A rank with its transport, which counts its calls as a group does.
struct Rank {
    transport: TcpTransport,
    context: GroupContext,
    sequence: u64,
}

impl Rank {
    fn connect(context: GroupContext) -> Result<Self> {
        Ok(Self {
            transport: TcpTransport::connect(&context)?,
            context,
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
        let health = Arc::clone(&self.context.health);
        let patience = Patience::new(health, call.to_string(), self.context.timeout);
        self.transport.run(&call, buffer, &patience)
    }

    fn barrier(&mut self) -> Result<()> {
        self.run(Operation::Barrier, Buffer::zeros(DType::U8, 0))
            .map(drop)
    }

    fn sum(&mut self, values: &[f32]) -> Result<Vec<f32>> {
        let sum = self.run(Operation::AllReduce(ReduceOp::Sum), Buffer::from_slice(values))?;
        Ok(sum.as_slice::<f32>()?.to_vec())
    }
}

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() >> 16) as usize % end
    }
}
