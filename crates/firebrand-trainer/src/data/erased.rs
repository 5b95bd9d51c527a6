use std::any::type_name;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use firebrand_core::{AnyBatch, Batch};

use super::indexed::{IndexedBatches, IndexedEpoch, IndexedSource};
use super::plan::{Division, EpochPlan, Split};
use super::random::SampleSeed;
use super::stream::{StreamBatches, StreamSettings, StreamSource};
use super::workers::AheadBatches;
use super::{DataError, EpochMode, EpochRequest, ShardTail};

/// A batch and where it stands in its epoch.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoadedBatch {
    /// The batch, on the device that the epoch was asked for, without autodiff.
    pub batch: AnyBatch,
    /// The number of samples in it.
    pub num_samples: usize,
    /// How many samples of the epoch all ranks together have consumed when they are through with it: what
    /// [`EpochRequest::skip_samples`] takes to go on after it.
    pub consumed: u64,
    /// The dataset indices of the samples that it was made of, in their order; for a stream their places in the epoch, ranks
    /// taking turns. A collate function may have made more or fewer samples of them.
    pub samples: Vec<usize>,
}

/// The batches of an epoch. After an error there are no more.
pub type LoadedBatches = Box<dyn Iterator<Item = Result<LoadedBatch, DataError>> + Send>;

/// A [`DataLoader`](super::DataLoader) without its type: what the loops read.
pub trait ErasedLoader: Send + Sync {
    /// What messages call it: `train`, `validation[1]`, ….
    fn name(&self) -> &str;

    /// The type of its batches, for messages.
    fn batch_type(&self) -> &'static str;

    /// The number of samples of an epoch on all ranks together; `None` for a stream.
    fn num_samples(&self) -> Option<u64>;

    /// The number of samples of a batch on one rank; `None` for a stream that does not say.
    fn batch_size(&self) -> Option<usize>;

    /// How many batches the request's rank gets from its position on; `None` if a stream does not say, or is to start in
    /// the middle.
    ///
    /// # Errors
    ///
    /// [`DataError`] for settings or data that give no batch at all.
    fn num_batches(&self, request: &EpochRequest) -> Result<Option<u64>, DataError>;

    /// The batches of the request's rank from its position on, made on `device` without its autodiff.
    ///
    /// # Errors
    ///
    /// As [`num_batches`](Self::num_batches), and if a stream cannot be opened or a worker not be started.
    fn epoch(&self, request: &EpochRequest, device: &Device) -> Result<LoadedBatches, DataError>;
}

/// Any loader, cheap to clone.
pub type AnyLoader = Arc<dyn ErasedLoader>;

#[derive(Clone)]
pub(crate) enum Source {
    Indexed(Arc<dyn IndexedSource>),
    Stream(Arc<dyn StreamSource>),
}

/// A loader's settings and its source: all of it, without the type of its batches.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) source: Source,
    pub(crate) name: Option<String>,
    pub(crate) batch_type: &'static str,
    pub(crate) batch_size: Option<usize>,
    pub(crate) shuffle: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) drop_last: bool,
    pub(crate) shard_tail: ShardTail,
    pub(crate) num_workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) device: Option<Device>,
    pub(crate) epoch_batches: Option<u64>,
    pub(crate) seekable: bool,
}

impl Loader {
    pub(crate) fn new<B: Batch>(source: Source) -> Self {
        Self {
            source,
            name: None,
            batch_type: type_name::<B>(),
            batch_size: None,
            shuffle: false,
            seed: None,
            drop_last: false,
            shard_tail: ShardTail::Pad,
            num_workers: 0,
            prefetch: 2,
            device: None,
            epoch_batches: None,
            seekable: false,
        }
    }

    fn refuse(
        &self,
        setting: &'static str,
        value: impl ToString,
        fix: &'static str,
    ) -> Result<(), DataError> {
        Err(DataError::Setting {
            loader: self.name().to_owned(),
            setting,
            value: value.to_string(),
            fix,
        })
    }

    fn split(&self, source: &dyn IndexedSource, request: &EpochRequest) -> Result<Split, DataError> {
        const FIX: &str = "it says something about a stream; a loader over a dataset knows it";
        if let Some(epoch_batches) = self.epoch_batches {
            self.refuse("epoch_batches", epoch_batches, FIX)?;
        }
        if self.seekable {
            self.refuse("seekable", true, FIX)?;
        }
        let division = Division {
            num_samples: source.num_samples(),
            batch_size: self.batch_size.unwrap_or(1),
            drop_last: self.drop_last,
            shard_tail: self.shard_tail,
        };
        division.split(request, self.name())
    }

    fn stream(&self) -> Result<StreamSettings, DataError> {
        if self.shuffle {
            self.refuse(
                "shuffle",
                true,
                "shuffle within the stream; its order is a function of the request",
            )?;
        }
        if self.drop_last {
            self.refuse("drop_last", true, "leave the last batch out in the stream")?;
        }
        if self.device.is_some() {
            self.refuse(
                "build_on",
                "device",
                "the stream makes its batches where it likes",
            )?;
        }
        if self.batch_size == Some(0) {
            self.refuse("batch_size", 0, "a batch needs at least one sample")?;
        }
        if self.epoch_batches == Some(0) {
            self.refuse("epoch_batches", 0, "an epoch needs at least one batch")?;
        }
        Ok(StreamSettings {
            batch_size: self.batch_size,
            epoch_batches: self.epoch_batches,
            seekable: self.seekable,
        })
    }

    fn indexed_epoch(
        &self,
        source: &Arc<dyn IndexedSource>,
        request: &EpochRequest,
        device: &Device,
    ) -> Result<LoadedBatches, DataError> {
        let split = self.split(source.as_ref(), request)?;
        let (seed, epoch) = (self.seed.unwrap_or(request.seed), request.drawn_epoch());
        let shuffled = self.shuffle && request.mode != EpochMode::Overfit && split.num_batches > 0;
        let cancelled = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(IndexedEpoch {
            loader: self.name().to_owned(),
            source: Arc::clone(source),
            plan: EpochPlan::new(split, source.num_samples(), shuffled.then_some((seed, epoch))),
            seed: SampleSeed { seed, epoch },
            device: self.device.as_ref().unwrap_or(device).clone().without_autodiff(),
            cancelled: Arc::clone(&cancelled),
        });
        let num_workers = self.num_workers.min(split.num_batches);
        if num_workers == 0 {
            return Ok(Box::new(IndexedBatches::new(shared, 0, 1)));
        }
        let shares: Vec<LoadedBatches> = (0..num_workers)
            .map(|worker| -> LoadedBatches {
                Box::new(IndexedBatches::new(Arc::clone(&shared), worker, num_workers))
            })
            .collect();
        Ok(Box::new(AheadBatches::start(
            self.name(),
            shares,
            self.prefetch,
            cancelled,
        )?))
    }

    fn stream_epoch(
        &self,
        source: &dyn StreamSource,
        request: &EpochRequest,
    ) -> Result<LoadedBatches, DataError> {
        let mut request = request.clone();
        request.seed = self.seed.unwrap_or(request.seed);
        let batches = Box::new(StreamBatches::open(source, self.stream()?, request, self.name())?);
        if self.num_workers == 0 {
            return Ok(batches);
        }
        // One thread, since a stream is read in its order; it reads as far ahead as so many workers would.
        let prefetch = self.prefetch.saturating_mul(self.num_workers);
        let cancelled = Arc::new(AtomicBool::new(false));
        Ok(Box::new(AheadBatches::start(
            self.name(),
            vec![batches],
            prefetch,
            cancelled,
        )?))
    }
}

impl ErasedLoader for Loader {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("data")
    }

    fn batch_type(&self) -> &'static str {
        self.batch_type
    }

    fn num_samples(&self) -> Option<u64> {
        match &self.source {
            Source::Indexed(source) => Some(source.num_samples() as u64),
            Source::Stream(_) => None,
        }
    }

    fn batch_size(&self) -> Option<usize> {
        match &self.source {
            Source::Indexed(_) => Some(self.batch_size.unwrap_or(1)),
            Source::Stream(_) => self.batch_size,
        }
    }

    fn num_batches(&self, request: &EpochRequest) -> Result<Option<u64>, DataError> {
        match &self.source {
            Source::Indexed(source) => {
                let split = self.split(source.as_ref(), request)?;
                Ok(Some(split.num_batches as u64))
            }
            Source::Stream(_) => {
                let epoch_batches = self.stream()?.epoch_batches.filter(|_| request.skip_samples == 0);
                Ok(epoch_batches.map(|batches| batches.min(request.limit_batches.unwrap_or(batches))))
            }
        }
    }

    fn epoch(&self, request: &EpochRequest, device: &Device) -> Result<LoadedBatches, DataError> {
        match &self.source {
            Source::Indexed(source) => self.indexed_epoch(source, request, device),
            Source::Stream(source) => self.stream_epoch(source.as_ref(), request),
        }
    }
}
