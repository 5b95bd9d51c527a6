use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Buffer, DType, Health, ReduceOp, Result, Store, Work};

/// Ranks that communicate with each other.
///
/// Every rank of a group calls the same collective operations in the same order, with the same types and sizes; the operations
/// of a group run one after another in that order, beside the caller. `send` and `recv` pair up in order per peer, apart from
/// the collectives. Results are the same bit for bit on all ranks and from run to run for the same group.
///
/// Each wait has the deadline of the group. When a rank fails, all pending and later operations end with that failure.
pub trait ProcessGroup: Send + Sync {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks in the group.
    fn size(&self) -> usize;

    /// The number among all ranks of each rank of the group.
    fn global_ranks(&self) -> &[usize];

    /// How the group communicates: `single`, `shm`, `tcp`, `hierarchical`.
    fn backend(&self) -> &'static str;

    /// What becomes of the ranks.
    fn health(&self) -> &Arc<Health>;

    /// A buffer of zeros in the memory with which the group is fastest. Buffers in any other memory do as well.
    ///
    /// # Errors
    ///
    /// If there is not enough memory.
    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer>;

    /// Reduces the buffers of all ranks, element by element; each rank gets all of the result.
    fn all_reduce(&self, buffer: Buffer, op: ReduceOp) -> Work;

    /// Reduces the buffers of all ranks, and gives each rank its part: of `size × n` elements, rank `r` gets those from `r × n`.
    fn reduce_scatter(&self, buffer: Buffer, op: ReduceOp) -> Work;

    /// Gives every rank the buffers of all ranks, one behind the other in the order of the ranks.
    fn all_gather(&self, buffer: Buffer) -> Work;

    /// Gives every rank the buffer of one; the others' must have its type and size.
    fn broadcast(&self, buffer: Buffer, root: usize) -> Work;

    /// Sends a buffer to one rank.
    fn send(&self, buffer: Buffer, to: usize) -> Work;

    /// Receives into a buffer, of the type and size that are sent, from one rank.
    fn recv(&self, buffer: Buffer, from: usize) -> Work;

    /// Is over when every rank has called it.
    fn barrier(&self) -> Work<()>;

    /// A group of some ranks of this one, numbered in the order given. Every rank of this group calls it with the same list;
    /// those that are not in it get none.
    ///
    /// # Errors
    ///
    /// If the list names a rank twice or one that does not exist, or the group cannot be made.
    fn subgroup(&self, ranks: &[usize]) -> Result<Option<Arc<dyn ProcessGroup>>>;

    /// The group of the same ranks for what layers exchange inside a forward or backward pass.
    ///
    /// It has a queue of its own, so that its operations neither wait for the reducer's, which are queued here while the backward
    /// pass goes on, nor come between them. It is made at the first call, in which every rank takes part; every later call
    /// gives the same. It ends with this group.
    ///
    /// # Errors
    ///
    /// If the group cannot be made.
    fn layer_group(&self) -> Result<Arc<dyn ProcessGroup>>;
}

impl fmt::Debug for dyn ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ProcessGroup({}, rank {} of {})",
            self.backend(),
            self.rank(),
            self.size()
        )
    }
}

/// What a group is made from: who takes part, and how they find each other.
#[derive(Clone)]
pub struct GroupContext {
    /// Where the ranks of the group exchange addresses; keys of other groups are out of sight behind a prefix.
    pub store: Arc<dyn Store>,
    /// This rank's number in the group.
    pub rank: usize,
    /// The number among all ranks of each rank of the group; its length is the size of the group.
    pub global_ranks: Vec<usize>,
    /// What becomes of the ranks.
    pub health: Arc<Health>,
    /// The address at which the other ranks reach this one; connections are listened for on it alone.
    pub address: IpAddr,
    /// The secret of the job: connections between ranks begin with a proof that both know it.
    pub secret: Arc<[u8]>,
    /// The deadline of every operation, and of making the group.
    pub timeout: Duration,
}
