use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

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
    patience: Duration,
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
            patience: PATIENCE,
        };
        let mut failure = None;
        for (worker, share) in shares.into_iter().enumerate() {
            let (sender, batches) = bounded(prefetch);
            let sign_of_life = sign_of_life.clone();
            let cancelled = Arc::clone(&ahead.cancelled);
            let thread = Builder::new()
                // A name with a zero byte would make the standard library panic.
                .name(format!("{}-{worker}", loader.replace('\0', "")))
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

    /// Ends the workers that are left.
    fn end(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Without receivers, workers that wait for room go on and end.
        let threads: Vec<JoinHandle<()>> = self.workers.drain(..).map(|worker| worker.thread).collect();
        if self.alive.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "a worker of the {} loader still reads a sample; it ends when the dataset returns",
                self.loader
            );
            return;
        }
        for thread in threads {
            // What a worker that nobody waits for says in a panic does not matter any more.
            let _ = thread.join();
        }
    }

    /// How the worker ended that has no more batches: through with its share, and so is the epoch, since shares take turns,
    /// or with a panic that is not one of the user's code, which is caught before.
    fn last_words(&mut self) -> Option<DataError> {
        let worker = self.turn;
        let panic = self.workers.swap_remove(worker).thread.join().err();
        self.end();
        panic.map(|panic| DataError::WorkerDied {
            loader: self.loader.clone(),
            worker,
            message: panic_message(panic.as_ref()),
        })
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
            Err(_) => self.last_words().map(Err),
        }
    }
}

impl Drop for AheadBatches {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use firebrand_core::AnyBatch;

    use super::*;

    fn loaded(sample: usize) -> Result<LoadedBatch, DataError> {
        Ok(LoadedBatch {
            batch: AnyBatch::new(vec![sample]),
            num_samples: 1,
            consumed: sample as u64 + 1,
            samples: vec![sample],
        })
    }

    fn start(shares: Vec<LoadedBatches>) -> AheadBatches {
        AheadBatches::start("train", shares, 1, Arc::new(AtomicBool::new(false))).unwrap()
    }

    #[test]
    fn shares_take_turns_and_may_differ_by_one() {
        let shares: Vec<LoadedBatches> = vec![
            Box::new([0, 2, 4].into_iter().map(loaded)),
            Box::new([1, 3].into_iter().map(loaded)),
        ];
        let samples: Vec<usize> = start(shares).map(|batch| batch.unwrap().samples[0]).collect();
        assert_eq!(samples, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_worker_that_dies_is_an_error_and_not_the_end_of_the_epoch() {
        let dying = (0..3).map(|sample| {
            assert_ne!(sample, 1, "out of luck");
            loaded(sample)
        });
        let mut batches = start(vec![Box::new(dying)]);
        assert!(batches.next().unwrap().is_ok());
        let error = batches.next().unwrap().unwrap_err().to_string();
        assert!(
            error.starts_with("worker 0 of the train loader died: "),
            "{error}"
        );
        assert!(error.contains("out of luck"), "{error}");
        assert!(batches.next().is_none());
    }

    #[test]
    fn a_dead_worker_is_told_from_the_end_while_another_is_stuck() {
        let (never, blocked) = bounded::<()>(0);
        let stuck = (0..1).map(move |sample| {
            let _ = blocked.recv();
            loaded(sample)
        });
        let dying = (0..1).map(|_| panic!("out of luck"));
        let mut batches = start(vec![Box::new(dying), Box::new(stuck)]);
        batches.patience = Duration::from_millis(20);
        assert!(matches!(
            batches.next(),
            Some(Err(DataError::WorkerDied { worker: 0, .. }))
        ));
        assert!(batches.next().is_none());
        drop(never);
    }

    #[test]
    fn a_worker_that_is_stuck_does_not_hold_up_the_end() {
        let (never, blocked) = bounded::<()>(0);
        let stuck = (0..1).map(move |sample| {
            let _ = blocked.recv();
            loaded(sample)
        });
        let mut batches = start(vec![Box::new(stuck)]);
        batches.patience = Duration::from_millis(20);
        let begin = Instant::now();
        drop(batches);
        assert!(begin.elapsed() < Duration::from_secs(2));
        drop(never);
    }
}
