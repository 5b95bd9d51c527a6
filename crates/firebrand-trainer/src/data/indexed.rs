use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::Device;
use firebrand_core::{AnyBatch, Batch, BoxError, Error};

use super::error::panic_message;
use super::plan::EpochPlan;
use super::random::SampleSeed;
use super::{Collate, DataError, LoadedBatch, SampleRng, Samples};

/// A dataset and its collate function as one function from sample indices to a batch. It is all of a loader that depends
/// on the user's types.
pub(crate) trait IndexedSource: Send + Sync {
    fn num_samples(&self) -> usize;

    fn load(
        &self,
        samples: &[usize],
        seed: SampleSeed,
        device: &Device,
        progress: &Progress<'_>,
    ) -> Result<AnyBatch, LoadFailure>;
}

pub(crate) struct Collated<I, C> {
    pub(crate) samples: Samples<I>,
    pub(crate) collate: C,
}

impl<I, C: Collate<I>> IndexedSource for Collated<I, C> {
    fn num_samples(&self) -> usize {
        self.samples.len()
    }

    fn load(
        &self,
        samples: &[usize],
        seed: SampleSeed,
        device: &Device,
        progress: &Progress<'_>,
    ) -> Result<AnyBatch, LoadFailure> {
        let mut items = Vec::with_capacity(samples.len());
        for &sample in samples {
            progress.reads(sample)?;
            let item = self.samples.get(sample, &mut SampleRng::of(seed, sample));
            items.push(item.map_err(|source| LoadFailure::Sample(sample, source))?);
        }
        progress.collates();
        let batch = self
            .collate
            .collate(items, device)
            .map_err(LoadFailure::Collate)?;
        batch
            .check()
            .map_err(|error| LoadFailure::Fields(Box::new(error)))?;
        Ok(AnyBatch::new(batch))
    }
}

/// Why there is no batch.
pub(crate) enum LoadFailure {
    /// Nobody waits for it any more.
    Cancelled,
    Sample(usize, BoxError),
    Collate(BoxError),
    Fields(Box<Error>),
}

/// Follows a batch while it is made: which sample is being read, and whether the batch is still wanted.
pub(crate) struct Progress<'a> {
    reading: Cell<Option<usize>>,
    cancelled: &'a AtomicBool,
}

impl Progress<'_> {
    fn reads(&self, sample: usize) -> Result<(), LoadFailure> {
        self.reading.set(Some(sample));
        if self.cancelled.load(Ordering::Relaxed) {
            Err(LoadFailure::Cancelled)
        } else {
            Ok(())
        }
    }

    fn collates(&self) {
        self.reading.set(None);
    }
}

/// What the workers of one epoch share.
pub(crate) struct IndexedEpoch {
    pub(crate) loader: String,
    pub(crate) source: Arc<dyn IndexedSource>,
    pub(crate) plan: EpochPlan,
    pub(crate) seed: SampleSeed,
    pub(crate) device: Device,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl IndexedEpoch {
    /// Makes a batch, or gives `None` if it is not wanted any more.
    fn batch(&self, number: usize) -> Option<Result<LoadedBatch, DataError>> {
        let samples = self.plan.samples(number);
        let progress = Progress {
            reading: Cell::new(None),
            cancelled: &self.cancelled,
        };
        // A panic of the dataset or of a batcher leaves nothing of ours half done: the source is only read.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.source.load(&samples, self.seed, &self.device, &progress)
        }));
        let loader = || self.loader.clone();
        let error = match (outcome, progress.reading.get()) {
            (Ok(Ok(batch)), _) if batch.is_empty() => DataError::EmptyBatch {
                loader: loader(),
                samples,
            },
            (Ok(Ok(batch)), _) => {
                return Some(Ok(LoadedBatch {
                    num_samples: batch.len(),
                    batch,
                    consumed: self.plan.consumed_after(number),
                    samples,
                }));
            }
            (Ok(Err(LoadFailure::Cancelled)), _) => return None,
            (Ok(Err(LoadFailure::Sample(sample, source))), _) => DataError::Sample {
                loader: loader(),
                sample,
                source,
            },
            (Ok(Err(LoadFailure::Collate(source))), _) => DataError::Collate {
                loader: loader(),
                samples,
                source,
            },
            (Ok(Err(LoadFailure::Fields(source))), _) => DataError::Fields {
                loader: loader(),
                samples,
                source,
            },
            (Err(panic), Some(sample)) => DataError::SamplePanicked {
                loader: loader(),
                sample,
                message: panic_message(panic.as_ref()),
            },
            (Err(panic), None) => DataError::CollatePanicked {
                loader: loader(),
                samples,
                message: panic_message(panic.as_ref()),
            },
        };
        Some(Err(error))
    }
}

/// Every `step`-th batch of an epoch: the share of one of `step` workers, or everything. It ends after an error.
pub(crate) struct IndexedBatches {
    epoch: Arc<IndexedEpoch>,
    next: usize,
    step: usize,
}

impl IndexedBatches {
    pub(crate) fn new(epoch: Arc<IndexedEpoch>, first: usize, step: usize) -> Self {
        Self {
            epoch,
            next: first,
            step,
        }
    }
}

impl Iterator for IndexedBatches {
    type Item = Result<LoadedBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let num_batches = self.epoch.plan.num_batches();
        let number = self.next;
        if number >= num_batches {
            return None;
        }
        let batch = self.epoch.batch(number);
        self.next = match batch {
            Some(Ok(_)) => number.saturating_add(self.step),
            Some(Err(_)) | None => num_batches,
        };
        batch
    }
}
