use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::thread::futex::{self, Timespec};

use super::memory::{Mapping, Payload};
use crate::transport::{Call, Patience};
use crate::{Error, Result};

/// The most bytes of a buffer that are passed in the control memory, where one synchronisation is enough.
pub(super) const INLINE: usize = 8192;

/// How long a wait spins, if every rank has a core: about what it costs to sleep and be woken.
const SPIN: Duration = Duration::from_micros(30);

/// A rank gave up because something failed.
const FAILED: u32 = 1;

/// A rank left the group, and says no more.
const LEFT: u32 = 2;

/// How far a rank has come. Each counter only ever grows.
#[derive(Clone, Copy)]
pub(super) enum Progress {
    /// Operations whose call is announced.
    Arrived,
    /// Blocks whose data lies in the rank's arena; for ranks that stage.
    Ready,
    /// Blocks of which the rank's own part is reduced.
    Reduced,
    /// Blocks that the rank will not look at again.
    Done,
}

/// What one rank writes and the others read. All zeros at first.
#[repr(C, align(128))]
pub(super) struct RankArea {
    progress: [AtomicU64; 4],
    /// Changes with each step forward; what the others sleep on.
    event: AtomicU32,
    /// Whether the rank has given up, for the reason in `failure`: zero, [`FAILED`] or [`LEFT`].
    failed: AtomicU32,
    /// The core on which the rank was last seen.
    core: AtomicU32,
    sleepers: Sleepers,
    /// What the rank calls, by the parity of the operation's number.
    slots: [Slot; 2],
    failure: Failure,
}

/// How many ranks sleep on the event; on a line of its own, since it is others that write it.
#[repr(C, align(128))]
struct Sleepers(AtomicU32);

/// One operation, as a rank calls it.
#[repr(C, align(64))]
pub(super) struct Slot {
    call: [AtomicU64; 3],
    offset: AtomicU64,
    staged: AtomicU64,
    payload: Payload<INLINE>,
}

#[repr(C)]
struct Failure {
    rank: AtomicU64,
    len: AtomicU64,
    text: Payload<512>,
}

/// Where in its arena a rank has the data of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) offset: usize,
    /// Whether blocks pass through a ring of slots there; otherwise the whole buffer lies there.
    pub(super) staged: bool,
}

/// The control memory of a group, and the waiting on it.
pub(super) struct Control {
    mapping: Mapping,
    rank: usize,
    global_ranks: Vec<usize>,
    spin: bool,
}

impl Control {
    /// The size for a number of ranks.
    pub(super) fn size(ranks: usize) -> usize {
        (ranks * size_of::<RankArea>()).next_multiple_of(rustix::param::page_size())
    }

    /// For the rank with a number in the group, in a mapping of [`size`](Self::size).
    pub(super) fn new(mapping: Mapping, rank: usize, global_ranks: Vec<usize>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = global_ranks.len() <= cores;
        Self {
            mapping,
            rank,
            global_ranks,
            spin,
        }
    }

    fn area(&self, rank: usize) -> &RankArea {
        &self.mapping.areas()[rank]
    }

    fn slot(&self, rank: usize, operation: u64) -> &Slot {
        &self.area(rank).slots[(operation % 2) as usize]
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.global_ranks.len()).filter(move |rank| *rank != own)
    }

    /// Says what this rank calls as its operation of a number, and where its data is.
    pub(super) fn announce(&self, operation: u64, call: &Call, source: Source, payload: &[u8]) {
        let slot = self.slot(self.rank, operation);
        let bytes = call.encode();
        for (word, bytes) in slot.call.iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_le_bytes(std::array::from_fn(|i| bytes[i])), Relaxed);
        }
        slot.offset.store(source.offset as u64, Relaxed);
        slot.staged.store(u64::from(source.staged), Relaxed);
        slot.payload.write(payload);
        self.area(self.rank).core.store(current_core(), Relaxed);
        self.advance(Progress::Arrived, operation + 1);
    }

    /// What a rank calls; after it has arrived.
    pub(super) fn call(&self, rank: usize, operation: u64) -> Result<Call> {
        let mut bytes = [0; Call::ENCODED];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(&self.slot(rank, operation).call) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        Call::decode(&bytes).ok_or_else(|| self.nonsense(rank, "its call is none"))
    }

    /// Where a rank's data is; after it has arrived.
    pub(super) fn source(&self, rank: usize, operation: u64) -> Result<Source> {
        let slot = self.slot(rank, operation);
        Ok(Source {
            offset: usize::try_from(slot.offset.load(Relaxed))
                .map_err(|_| self.nonsense(rank, "its buffer lies beyond any memory"))?,
            staged: slot.staged.load(Relaxed) != 0,
        })
    }

    /// The data of a rank that is passed in the control memory; after it has arrived.
    pub(super) fn payload(&self, rank: usize, operation: u64, len: usize) -> &[u8] {
        self.slot(rank, operation).payload.read(len)
    }

    pub(super) fn nonsense(&self, rank: usize, reason: &str) -> Error {
        Error::Protocol {
            peer: format!("rank {}", self.global_ranks[rank]),
            reason: reason.to_owned(),
        }
    }

    /// This rank has come so far.
    pub(super) fn advance(&self, progress: Progress, value: u64) {
        self.area(self.rank).progress[progress as usize].store(value, Release);
        self.wake();
    }

    fn wake(&self) {
        let area = self.area(self.rank);
        // A sleeper counts itself before it looks at the event; this changes the event before it looks at the count. One
        // of the two sees the other.
        area.event.fetch_add(1, SeqCst);
        if area.sleepers.0.load(SeqCst) > 0 {
            // It cannot fail for an address that is mapped; if it did, the sleepers would look again after their period.
            let _ = futex::wake(&area.event, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Waits until all other ranks have come so far.
    pub(super) fn wait(&self, progress: Progress, value: u64, patience: &Patience) -> Result<()> {
        self.peers()
            .try_for_each(|rank| self.wait_for(rank, progress, value, patience))
    }

    /// Waits until one rank has come so far.
    pub(super) fn wait_for(
        &self,
        rank: usize,
        progress: Progress,
        value: u64,
        patience: &Patience,
    ) -> Result<()> {
        let area = self.area(rank);
        let counter = &area.progress[progress as usize];
        let reached = || counter.load(Acquire) >= value;
        if reached() {
            return Ok(());
        }
        // A peer on the same core, where the system may well put two that wake each other, goes on only when this rank sleeps.
        if self.spin && area.core.load(Relaxed) != current_core() {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                for _ in 0..16 {
                    if reached() {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
            }
        }
        loop {
            let failed = area.failed.load(Acquire);
            // What a rank had done before it gave up still counts.
            if reached() {
                return Ok(());
            }
            patience.check(|| self.missing(progress, value))?;
            if failed != 0 {
                // Who leaves without a word may follow another failure, of which this rank hears soon.
                let first = if failed == LEFT { patience.hearsay() } else { None };
                return Err(first.unwrap_or_else(|| self.failure(rank)));
            }
            area.sleepers.0.fetch_add(1, SeqCst);
            let event = area.event.load(SeqCst);
            if !reached() && area.failed.load(Acquire) == 0 {
                let period = patience.period();
                let period = Timespec {
                    tv_sec: period.as_secs() as i64,
                    tv_nsec: i64::from(period.subsec_nanos()) as _,
                };
                // Woken, changed meanwhile, interrupted or over time: each means to look again.
                let _ = futex::wait(&area.event, futex::Flags::empty(), event, Some(&period));
            }
            area.sleepers.0.fetch_sub(1, SeqCst);
            self.area(self.rank).core.store(current_core(), Relaxed);
        }
    }

    /// The ranks, by their numbers among all, that have not come so far.
    fn missing(&self, progress: Progress, value: u64) -> Vec<usize> {
        self.peers()
            .filter(|rank| self.area(*rank).progress[progress as usize].load(Acquire) < value)
            .map(|rank| self.global_ranks[rank])
            .collect()
    }

    /// This rank will not go on: ends what waits for it, with the reason.
    pub(super) fn give_up(&self, reason: &Error) {
        // It is the first failure that counts, wherever it was.
        let (rank, cause) = reason.blame(self.global_ranks[self.rank]);
        let area = self.area(self.rank);
        if area.failed.load(Relaxed) != 0 {
            return;
        }
        area.failure.rank.store(rank as u64, Relaxed);
        area.failure.len.store(cause.len() as u64, Relaxed);
        area.failure.text.write(cause.as_bytes());
        let how = if matches!(reason, Error::Aborted(_)) {
            LEFT
        } else {
            FAILED
        };
        area.failed.store(how, Release);
        self.wake();
    }

    fn failure(&self, rank: usize) -> Error {
        let Failure { rank, len, text } = &self.area(rank).failure;
        let text = text.read(usize::try_from(len.load(Relaxed)).unwrap_or(usize::MAX));
        Error::RankFailed {
            rank: usize::try_from(rank.load(Relaxed)).unwrap_or(usize::MAX),
            cause: String::from_utf8_lossy(text).into_owned(),
        }
    }
}

/// The core that this thread runs on.
fn current_core() -> u32 {
    rustix::thread::sched_getcpu() as u32
}
