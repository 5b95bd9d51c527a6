use std::marker::PhantomData;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;
use firebrand_core::{Batch, Result};

use super::collate::BurnBatcher;
use super::erased::{Loader, Source};
use super::indexed::Collated;
use super::stream::Opened;
use super::{
    AnyLoader, Collate, DataError, EpochRequest, ErasedLoader, IntoSamples, LoadedBatches, ShardTail,
};

/// Gives the batches of a dataset or a stream, epoch by epoch.
///
/// The order of an epoch, and what random augmentation makes of a sample, are functions of seed, epoch and sample index:
/// they do not depend on workers, ranks or interruptions. A loader is cheap to clone.
///
/// ```
/// use burn::data::dataset::InMemDataset;
/// use burn::tensor::{Device, Tensor};
/// use firebrand_trainer::data::{DataLoader, EpochRequest};
///
/// let numbers = InMemDataset::new((0..10).map(|n| n as f32).collect::<Vec<_>>());
/// let loader = DataLoader::from_fn(numbers, |samples, device| {
///     Ok(Tensor::<1>::from_floats(samples.as_slice(), device))
/// })
/// .batch_size(4)
/// .shuffle(true)
/// .num_workers(2);
///
/// let mut sum = 0.0;
/// for batch in loader.epoch(&EpochRequest::train(0, 0), &Device::flex())? {
///     sum += batch?.sum().into_scalar::<f32>();
/// }
/// assert_eq!(sum, 45.0);
/// # Ok::<(), firebrand_trainer::data::DataError>(())
/// ```
#[must_use]
pub struct DataLoader<B> {
    loader: Loader,
    batch: PhantomData<fn() -> B>,
}

impl<B: Batch> DataLoader<B> {
    /// Batches of the samples of a Burn `Dataset`, a `Vec` or [`Samples`](super::Samples).
    pub fn new<I, K, C>(samples: impl IntoSamples<I, K>, collate: C) -> Self
    where
        I: 'static,
        C: Collate<I, Batch = B>,
    {
        let samples = samples.into_samples();
        Self::of(Source::Indexed(Arc::new(Collated { samples, collate })))
    }

    /// Batches that a closure makes; the same as [`new`](Self::new), where the types of the closure need not be written.
    pub fn from_fn<I: 'static, K>(
        samples: impl IntoSamples<I, K>,
        collate: impl Fn(Vec<I>, &Device) -> Result<B> + Send + Sync + 'static,
    ) -> Self {
        Self::new(samples, collate)
    }

    /// Batches that one of Burn's batchers makes.
    pub fn from_batcher<I: 'static, K>(
        samples: impl IntoSamples<I, K>,
        batcher: impl Batcher<I, B> + 'static,
    ) -> Self {
        Self::new(samples, BurnBatcher::new(batcher))
    }

    /// Batches that come one after the other from a stream, whose length need not be known.
    ///
    /// The function opens the stream of an epoch. It should give the same batches for the same request (epoch, seed, shard), so
    /// that a run can be repeated, and every rank its own: with ranks taking turns sample by sample, another number of
    /// ranks can go on in the middle of an epoch. A position is reached by reading what is before it, unless the stream is
    /// [`seekable`](Self::seekable).
    ///
    /// A stream has no `shuffle`, `drop_last`, `build_on` and `shard_tail`; `batch_size` only tells what its batches hold.
    pub fn from_stream<T>(open: impl Fn(&EpochRequest) -> Result<T> + Send + Sync + 'static) -> Self
    where
        T: Iterator<Item = Result<B>> + Send + 'static,
    {
        Self::of(Source::Stream(Arc::new(Opened(open))))
    }

    fn of(source: Source) -> Self {
        Self {
            loader: Loader::new::<B>(source),
            batch: PhantomData,
        }
    }

    /// The batches of an epoch, for a loop of your own.
    ///
    /// # Errors
    ///
    /// See [`ErasedLoader::epoch`]. An item is an error where a batch cannot be made; there are no more after it.
    pub fn epoch(&self, request: &EpochRequest, device: &Device) -> Result<Batches<B>, DataError> {
        Ok(Batches {
            name: self.loader.name().to_owned(),
            batches: self.loader.epoch(request, device)?,
            batch: PhantomData,
        })
    }

    /// How many batches a request gives; see [`ErasedLoader::num_batches`].
    ///
    /// # Errors
    ///
    /// See there.
    pub fn num_batches(&self, request: &EpochRequest) -> Result<Option<u64>, DataError> {
        self.loader.num_batches(request)
    }

    /// Erases the type of the batches.
    pub fn erase(self) -> AnyLoader {
        Arc::new(self.loader)
    }

    /// Erases the type of the batches, and names the loader unless it has a name.
    pub(crate) fn erase_as(mut self, name: impl FnOnce() -> String) -> AnyLoader {
        self.loader.name.get_or_insert_with(name);
        self.erase()
    }
}

impl<B> DataLoader<B> {
    /// The number of samples of a batch on one rank; default 1.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.loader.batch_size = Some(batch_size);
        self
    }

    /// Shuffles the samples anew in each epoch; default: the order of the dataset.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.loader.shuffle = shuffle;
        self
    }

    /// A seed for order and augmentation; default: the seed of the run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.loader.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it is not full; default: it is given.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.loader.drop_last = drop_last;
        self
    }

    /// What training does when the samples cannot be divided among the ranks; default [`ShardTail::Pad`].
    pub fn shard_tail(mut self, shard_tail: ShardTail) -> Self {
        self.loader.shard_tail = shard_tail;
        self
    }

    /// The number of threads that make batches ahead; default 0: each batch is made by the training thread when it is needed,
    /// which is fastest where making it is cheap. A stream has one thread at most.
    pub fn num_workers(mut self, num_workers: usize) -> Self {
        self.loader.num_workers = num_workers;
        self
    }

    /// The number of finished batches that wait for each worker; default 2. One more is in the worker's hands.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.loader.prefetch = prefetch;
        self
    }

    /// The device on which batches are made, without its autodiff; default: the one that trains. The trainer moves them.
    pub fn build_on(mut self, device: Device) -> Self {
        self.loader.device = Some(device);
        self
    }

    /// What messages call the loader; default: what it is used for (`train`, `validation`, …).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.loader.name = Some(name.into());
        self
    }

    /// Ends each epoch of a stream after so many batches per rank, if it does not end before. Schedules and progress count on
    /// it, so it should be what the stream gives. Default: an epoch ends with the stream.
    pub fn epoch_batches(mut self, num_batches: u64) -> Self {
        self.loader.epoch_batches = Some(num_batches);
        self
    }

    /// Says that the stream starts at [`EpochRequest::skip_samples`] by itself; default: it is opened at its start with
    /// `skip_samples` 0, and what was consumed is read again and thrown away.
    pub fn seekable(mut self) -> Self {
        self.loader.seekable = true;
        self
    }
}

impl<B> Clone for DataLoader<B> {
    fn clone(&self) -> Self {
        Self {
            loader: self.loader.clone(),
            batch: PhantomData,
        }
    }
}

impl<B> std::fmt::Debug for DataLoader<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataLoader")
            .field("name", &self.loader.name)
            .field("num_samples", &self.loader.num_samples())
            .field("batch_size", &self.loader.batch_size)
            .field("shuffle", &self.loader.shuffle)
            .field("num_workers", &self.loader.num_workers)
            .finish_non_exhaustive()
    }
}

/// The batches of an epoch with their type; see [`DataLoader::epoch`].
pub struct Batches<B> {
    name: String,
    batches: LoadedBatches,
    batch: PhantomData<fn() -> B>,
}

impl<B: Batch> Iterator for Batches<B> {
    type Item = Result<B, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let loaded = self.batches.next()?;
        Some(loaded.and_then(|loaded| {
            loaded.batch.downcast().map_err(|source| DataError::BatchType {
                loader: self.name.clone(),
                source: Box::new(source),
            })
        }))
    }
}
