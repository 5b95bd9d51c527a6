use std::panic::{AssertUnwindSafe, catch_unwind};

use firebrand_core::{AnyBatch, Batch, BoxError, Result};

use super::error::panic_message;
use super::{DataError, EpochRequest, LoadedBatch};

/// The batches of one rank, in order.
pub(crate) type StreamItems = Box<dyn Iterator<Item = Result<AnyBatch>> + Send>;

/// A function that opens the stream of an epoch.
pub(crate) trait StreamSource: Send + Sync {
    fn open(&self, request: &EpochRequest) -> Result<StreamItems>;
}

/// A user's function that opens the stream of an epoch, with its types.
pub(crate) struct Opened<F>(pub(crate) F);

impl<F, T, B> StreamSource for Opened<F>
where
    F: Fn(&EpochRequest) -> Result<T> + Send + Sync,
    T: Iterator<Item = Result<B>> + Send + 'static,
    B: Batch,
{
    fn open(&self, request: &EpochRequest) -> Result<StreamItems> {
        let batches = (self.0)(request)?;
        Ok(Box::new(batches.map(|batch| {
            let batch = batch?;
            batch.check()?;
            Ok(AnyBatch::new(batch))
        })))
    }
}

/// What a loader says about its stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamSettings {
    /// The samples of a batch, where it is known.
    pub(crate) batch_size: Option<usize>,
    /// The batches of an epoch and rank, where they are known.
    pub(crate) epoch_batches: Option<u64>,
    /// Whether the stream starts at a position by itself.
    pub(crate) seekable: bool,
}

/// The batches of a stream from a position on.
pub(crate) struct StreamBatches {
    loader: String,
    items: Option<StreamItems>,
    request: EpochRequest,
    epoch_batches: u64,
    /// Batches of the epoch that were read, the skipped ones included.
    read_batches: u64,
    given_batches: u64,
    /// Samples of this rank that are still to be skipped.
    to_skip: u64,
    /// Samples of this rank before the position.
    skipped: u64,
    /// Samples of this rank since the position.
    given: u64,
}

impl StreamBatches {
    /// Opens the stream. One that cannot seek is opened at its start, and what was consumed is read and thrown away.
    pub(crate) fn open(
        source: &dyn StreamSource,
        settings: StreamSettings,
        request: EpochRequest,
        loader: &str,
    ) -> Result<Self, DataError> {
        let (rank, world_size) = (request.shard.rank as u64, request.shard.world_size as u64);
        if rank >= world_size {
            return Err(DataError::Shard {
                loader: loader.to_owned(),
                rank: request.shard.rank,
                world_size: request.shard.world_size,
            });
        }
        let consumed = request.skip_samples;
        let skipped = consumed / world_size + u64::from(rank < consumed % world_size);
        let mut opened = request.clone();
        opened.epoch = request.drawn_epoch();
        let read_batches = if settings.seekable {
            first_batch(settings, &request, loader)?
        } else {
            opened.skip_samples = 0;
            0
        };
        let items = watched(loader, read_batches, || source.open(&opened))?;
        Ok(Self {
            loader: loader.to_owned(),
            items: Some(items),
            request,
            epoch_batches: settings.epoch_batches.unwrap_or(u64::MAX),
            read_batches,
            given_batches: 0,
            to_skip: if settings.seekable { 0 } else { skipped },
            skipped,
            given: 0,
        })
    }

    fn read(&mut self) -> Option<Result<LoadedBatch, DataError>> {
        while self.read_batches < self.epoch_batches
            && self.given_batches < self.request.limit_batches.unwrap_or(u64::MAX)
        {
            let items = self.items.as_mut()?;
            let batch = match watched(&self.loader, self.read_batches, || items.next().transpose()) {
                Ok(batch) => batch?,
                Err(error) => return Some(Err(error)),
            };
            if batch.is_empty() {
                return Some(Err(DataError::EmptyStreamBatch {
                    loader: self.loader.clone(),
                    batch: self.read_batches,
                }));
            }
            self.read_batches += 1;
            let num_samples = batch.len() as u64;
            if num_samples <= self.to_skip {
                self.to_skip -= num_samples;
                continue;
            }
            // With another number of ranks than before, a position may lie within a batch.
            let batch = match std::mem::take(&mut self.to_skip) {
                0 => batch,
                head => batch.slice(head as usize..num_samples as usize),
            };
            return Some(Ok(self.give(batch)));
        }
        None
    }

    fn give(&mut self, batch: AnyBatch) -> LoadedBatch {
        let num_samples = batch.len();
        let (rank, world_size) = (self.request.shard.rank, self.request.shard.world_size);
        let first = (self.skipped + self.given) as usize;
        self.given_batches += 1;
        self.given += num_samples as u64;
        LoadedBatch {
            batch,
            num_samples,
            consumed: self.request.skip_samples + self.given * world_size as u64,
            samples: (first..first + num_samples)
                .map(|sample| sample * world_size + rank)
                .collect(),
        }
    }
}

impl Iterator for StreamBatches {
    type Item = Result<LoadedBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.read();
        if !matches!(batch, Some(Ok(_))) {
            self.items = None;
        }
        batch
    }
}

/// The index of the batch at which a seekable stream starts, which only the declared batch size tells.
fn first_batch(settings: StreamSettings, request: &EpochRequest, loader: &str) -> Result<u64, DataError> {
    match (settings.batch_size, settings.epoch_batches) {
        (Some(batch_size), _) => {
            let global_batch = (batch_size as u64).saturating_mul(request.shard.world_size as u64);
            Ok(request.skip_samples / global_batch.max(1))
        }
        (None, Some(epoch_batches)) if request.skip_samples > 0 => Err(DataError::Setting {
            loader: loader.to_owned(),
            setting: "epoch_batches",
            value: epoch_batches.to_string(),
            fix: "a seekable stream with a given length needs its `batch_size` too, so that the batches before a \
                  position can be counted",
        }),
        (None, _) => Ok(0),
    }
}

/// Calls the user's stream, with panics as errors. After a panic the stream is not called again.
fn watched<T>(loader: &str, batch: u64, call: impl FnOnce() -> Result<T, BoxError>) -> Result<T, DataError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|source| DataError::Stream {
            loader: loader.to_owned(),
            batch,
            source,
        }),
        Err(panic) => Err(DataError::StreamPanicked {
            loader: loader.to_owned(),
            batch,
            message: panic_message(panic.as_ref()),
        }),
    }
}
