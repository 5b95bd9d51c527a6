use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::backend::{Means, connect};
use super::{Backend, GroupContext, ProcessGroup};
use crate::store::PrefixStore;
use crate::tcp::Links;
use crate::transport::{Call, Operation, Patience, Transport};
use crate::{Buffer, Completion, DType, Error, Health, ReduceOp, Result, Work};

/// Where buffers come from with which a transport is fastest.
pub(super) type Allocate = Box<dyn Fn(DType, usize) -> Result<Buffer> + Send + Sync>;

/// A group whose collectives run one after another on a thread of its own.
pub(super) struct QueuedGroup {
    context: GroupContext,
    backend: Backend,
    name: &'static str,
    allocate: Allocate,
    links: Arc<Links>,
    subgroups: AtomicU64,
    /// The group for what layers exchange, once it was asked for.
    layers: Mutex<Option<Arc<dyn ProcessGroup>>>,
    /// `None` once the group is being dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// A collective in the queue.
struct Job {
    operation: Operation,
    buffer: Buffer,
    reply: Reply,
}

/// Where the result of a collective goes.
enum Reply {
    Buffer(Completion),
    Done(Completion<()>),
}

impl Reply {
    fn send(self, result: Result<Buffer>) {
        match self {
            Self::Buffer(completion) => completion.complete(result),
            Self::Done(completion) => completion.complete(result.map(drop)),
        }
    }
}

impl QueuedGroup {
    pub(super) fn start(
        context: GroupContext,
        backend: Backend,
        means: Means,
        links: Arc<Links>,
    ) -> Result<Self> {
        let Means {
            name,
            transport,
            allocate,
        } = means;
        let (jobs, queue) = channel();
        let runner = Runner {
            transport,
            health: Arc::clone(&context.health),
            global_rank: context
                .global_ranks
                .get(context.rank)
                .copied()
                .unwrap_or(context.rank),
            timeout: context.timeout,
            sequence: 0,
        };
        let thread = std::thread::Builder::new()
            .name(format!("firebrand-{name}"))
            .spawn(move || runner.run(&queue))
            .map_err(|error| Error::system("the thread of a process group could not be started", error))?;
        Ok(Self {
            context,
            backend,
            name,
            allocate,
            links,
            subgroups: AtomicU64::new(0),
            layers: Mutex::default(),
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    fn queue(&self, operation: Operation, buffer: Buffer, reply: Reply) {
        // Whoever cannot take the job drops it, and with it the completion, which ends the wait.
        if let Some(jobs) = &self.jobs {
            drop(jobs.send(Job {
                operation,
                buffer,
                reply,
            }));
        }
    }

    fn collective(&self, operation: Operation, buffer: Buffer) -> Work {
        if let Err(error) = self.check(operation, &buffer) {
            return Work::ready(Err(error));
        }
        let (work, completion) = Work::pending();
        self.queue(operation, buffer, Reply::Buffer(completion));
        work
    }

    /// Refuses what no group can do, before other ranks are bothered.
    fn check(&self, operation: Operation, buffer: &Buffer) -> Result<()> {
        match operation {
            Operation::AllReduce(op) => op.check(buffer.dtype()),
            Operation::ReduceScatter(op) if !buffer.len().is_multiple_of(self.size()) => {
                Err(Error::argument(format!(
                    "{} elements cannot be divided among {} ranks; pad the buffer to reduce_scatter {op}",
                    buffer.len(),
                    self.size()
                )))
            }
            Operation::ReduceScatter(op) => op.check(buffer.dtype()),
            Operation::Broadcast { root } => self.check_rank(root),
            Operation::AllGather | Operation::Barrier => Ok(()),
        }
    }

    fn check_rank(&self, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::argument(format!(
            "there is no rank {rank} in a group of {}",
            self.size()
        )))
    }

    /// Makes a group of some ranks of this one, in which this rank has a number.
    fn connect_among(&self, name: &str, rank: usize, ranks: &[usize]) -> Result<Arc<dyn ProcessGroup>> {
        let context = GroupContext {
            store: Arc::new(PrefixStore::new(Arc::clone(&self.context.store), name)),
            rank,
            global_ranks: ranks
                .iter()
                .map(|rank| self.context.global_ranks[*rank])
                .collect(),
            ..self.context.clone()
        };
        connect(context, self.backend)
    }

    fn check_peer(&self, peer: usize) -> Result<()> {
        if peer == self.rank() {
            return Err(Error::argument(format!(
                "rank {peer} cannot send to itself or receive from itself"
            )));
        }
        self.check_rank(peer)
    }
}

impl ProcessGroup for QueuedGroup {
    fn rank(&self) -> usize {
        self.context.rank
    }

    fn size(&self) -> usize {
        self.context.global_ranks.len()
    }

    fn global_ranks(&self) -> &[usize] {
        &self.context.global_ranks
    }

    fn backend(&self) -> &'static str {
        self.name
    }

    fn health(&self) -> &Arc<Health> {
        &self.context.health
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Buffer> {
        (self.allocate)(dtype, len)
    }

    fn all_reduce(&self, buffer: Buffer, op: ReduceOp) -> Work {
        self.collective(Operation::AllReduce(op), buffer)
    }

    fn reduce_scatter(&self, buffer: Buffer, op: ReduceOp) -> Work {
        self.collective(Operation::ReduceScatter(op), buffer)
    }

    fn all_gather(&self, buffer: Buffer) -> Work {
        self.collective(Operation::AllGather, buffer)
    }

    fn broadcast(&self, buffer: Buffer, root: usize) -> Work {
        self.collective(Operation::Broadcast { root }, buffer)
    }

    fn send(&self, buffer: Buffer, to: usize) -> Work {
        match self.check_peer(to) {
            Ok(()) => self.links.send(buffer, to),
            Err(error) => Work::ready(Err(error)),
        }
    }

    fn recv(&self, buffer: Buffer, from: usize) -> Work {
        match self.check_peer(from) {
            Ok(()) => self.links.recv(buffer, from),
            Err(error) => Work::ready(Err(error)),
        }
    }

    fn barrier(&self) -> Work<()> {
        let (work, completion) = Work::pending();
        let nothing = Buffer::zeros(DType::U8, 0);
        self.queue(Operation::Barrier, nothing, Reply::Done(completion));
        work
    }

    fn subgroup(&self, ranks: &[usize]) -> Result<Option<Arc<dyn ProcessGroup>>> {
        ranks.iter().try_for_each(|rank| self.check_rank(*rank))?;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::argument(format!(
                "the subgroup names rank {} twice",
                pair[0]
            )));
        }
        // Counted on every rank, so that all have the same name for it.
        let number = self.subgroups.fetch_add(1, Ordering::Relaxed);
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Ok(None);
        };
        self.connect_among(&format!("subgroup{number}"), rank, ranks)
            .map(Some)
    }

    fn layer_group(&self) -> Result<Arc<dyn ProcessGroup>> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = &*layers {
            return Ok(Arc::clone(group));
        }
        let ranks: Vec<usize> = (0..self.size()).collect();
        let group = self.connect_among("layers", self.rank(), &ranks)?;
        *layers = Some(Arc::clone(&group));
        Ok(group)
    }
}

/// Operations that are under way are done to their end, which their deadline limits.
impl Drop for QueuedGroup {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// What runs on the thread of the group.
struct Runner {
    transport: Box<dyn Transport>,
    health: Arc<Health>,
    /// This rank's number among all.
    global_rank: usize,
    timeout: std::time::Duration,
    sequence: u64,
}

impl Runner {
    /// The ranks are no longer in step: nothing that follows could be right. A rank that did not come is one that failed.
    fn failed(&self, error: Error) -> Error {
        let error = match error.blame(self.global_rank) {
            (rank, cause) if rank != self.global_rank => {
                self.health.with_phase(Error::RankFailed { rank, cause })
            }
            _ => error,
        };
        self.health.fail(error.clone());
        error
    }

    fn run(mut self, queue: &Receiver<Job>) {
        for job in queue {
            let call = Call {
                sequence: self.sequence,
                operation: job.operation,
                dtype: job.buffer.dtype(),
                len: job.buffer.len(),
            };
            self.sequence += 1;
            let patience = Patience::new(Arc::clone(&self.health), call.to_string(), self.timeout);
            let result = self
                .health
                .check()
                .and_then(|()| self.transport.run(&call, job.buffer, &patience));
            job.reply.send(result.map_err(|error| self.failed(error)));
        }
    }
}
