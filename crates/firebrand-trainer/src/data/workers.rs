use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::error::panic_message;
use super::{DataError, LoadedBatch, LoadedBatches};

/// How long a dropped epoch waits for its workers, which end after the sample that they are reading.
const PATIENCE: Duration = Duration::from_secs(5);

/// Batches that threads make ahead, in the order of the epoch.
///
/// Batch `t` comes from worker `t mod n` through a channel of its own, so that order and content are those of one thread and no
/// more than `n * (prefetch + 1)` finished batches are in memory. Dropping it ends the workers.
pub(crate) struct AheadBatches {
    loader: String,
    workers: Vec<Worker>,
    turn: usize,
    cancelled: Arc<AtomicBool>,
    /// Disconnected as soon as no worker is left.
    alive: Receiver<()>,
}

struct Worker {
    batches: Receiver<Result<LoadedBatch, DataError>>,
    thread: JoinHandle<()>,
}

impl AheadBatches {
    /// Starts a thread for each of the shares, which take turns.
    pub(crate) fn start(
        loader: &str,
        shares: Vec<LoadedBatches>,
        prefetch: usize,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let (sign_of_life, alive) = bounded(0);
        let mut ahead = Self {
            loader: loader.to_owned(),
            workers: Vec::with_capacity(shares.len()),
            turn: 0,
            cancelled,
            alive,
        };
        let mut failure = None;
        for (worker, share) in shares.into_iter().enumerate() {
            let (sender, batches) = bounded(prefetch);
            let sign_of_life = sign_of_life.clone();
            let cancelled = Arc::clone(&ahead.cancelled);
            let thread = Builder::new()
                .name(format!("{loader}-{worker}"))
                .spawn(move || work(share, &sender, &cancelled, sign_of_life));
            match thread {
                Ok(thread) => ahead.workers.push(Worker { batches, thread }),
                Err(source) => {
                    failure = Some(DataError::SpawnWorker {
                        loader: loader.to_owned(),
                        worker,
                        source,
                    });
                    break;
                }
            }
        }
        // Before `ahead` may be dropped, which waits until nobody holds one.
        drop(sign_of_life);
        failure.map_or(Ok(ahead), Err)
    }

    /// Ends the workers, and says how the one whose turn it was ended.
    fn end(&mut self) -> Option<DataError> {
        self.cancelled.store(true, Ordering::Relaxed);
        // Without receivers, workers that wait for room go on and end.
        let threads: Vec<JoinHandle<()>> = self.workers.drain(..).map(|worker| worker.thread).collect();
        if self.alive.recv_timeout(PATIENCE) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            tracing::warn!(
                "a worker of the {} loader still reads a sample; it ends when the dataset returns",
                self.loader
            );
            return None;
        }
        let mut death = None;
        for (worker, thread) in threads.into_iter().enumerate() {
            if let Err(panic) = thread.join()
                && worker == self.turn
            {
                death = Some(DataError::WorkerDied {
                    loader: self.loader.clone(),
                    worker,
                    message: panic_message(panic.as_ref()),
                });
            }
        }
        death
    }
}

fn work(
    share: LoadedBatches,
    sender: &Sender<Result<LoadedBatch, DataError>>,
    cancelled: &AtomicBool,
    sign_of_life: Sender<()>,
) {
    for batch in share {
        if cancelled.load(Ordering::Relaxed) || sender.send(batch).is_err() {
            break;
        }
    }
    drop(sign_of_life);
}

impl Iterator for AheadBatches {
    type Item = Result<LoadedBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let worker = self.workers.get(self.turn)?;
        match worker.batches.recv() {
            Ok(Ok(batch)) => {
                self.turn = (self.turn + 1) % self.workers.len();
                Some(Ok(batch))
            }
            Ok(Err(error)) => {
                self.end();
                Some(Err(error))
            }
            // The worker is through with its share, and so is the epoch, since shares take turns.
            Err(_) => self.end().map(Err),
        }
    }
}

impl Drop for AheadBatches {
    fn drop(&mut self) {
        self.end();
    }
}
