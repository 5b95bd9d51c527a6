/// The part of the data that one data-parallel rank reads: of what remains of an epoch, samples `rank`, `rank + world_size`,
/// `rank + 2 * world_size`, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The data-parallel rank, from 0.
    pub rank: usize,
    /// The number of data-parallel ranks.
    pub world_size: usize,
}

impl Shard {
    /// The whole, on one rank.
    pub const WHOLE: Self = Self {
        rank: 0,
        world_size: 1,
    };
}

/// What training does when the samples cannot be divided among the ranks.
///
/// Every rank must train on the same number of batches. Evaluation never pads and never drops: the first ranks read one
/// sample more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShardTail {
    /// Repeats the first samples of the epoch: no sample is left out, at most `world_size - 1` are seen twice.
    #[default]
    Pad,
    /// Leaves out the last samples of the epoch, at most `world_size - 1`.
    Drop,
}

/// What an epoch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpochMode {
    /// Training: in the loader's order, the same number of batches on every rank.
    Train,
    /// Training on the same few batches again and again: unshuffled, with the augmentation of epoch 0, whatever the epoch.
    /// The number of batches is [`EpochRequest::limit_batches`].
    Overfit,
    /// Validation, test and prediction: every sample once on one of the ranks.
    Evaluate,
}

/// Which batches of which epoch a loader is to give.
///
/// The order of an epoch is a function of seed and epoch alone. A position in it is the number of samples that all ranks
/// together have consumed; what remains is divided among the ranks of [`shard`](Self::shard). So a run can go on in the
/// middle of an epoch, also with another number of ranks, and no sample is lost or repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct EpochRequest {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The seed of the run, which a loader with a seed of its own ignores.
    pub seed: u64,
    /// What the epoch is for.
    pub mode: EpochMode,
    /// The part of the data that this rank reads.
    pub shard: Shard,
    /// The number of samples of this epoch that all ranks together have consumed before.
    pub skip_samples: u64,
    /// The largest number of batches that this rank gets, counted from the position; default: all.
    pub limit_batches: Option<u64>,
    /// The number of samples of a batch, instead of the loader's: a run that goes on with another number of ranks keeps its
    /// global batch with it. A stream makes its own batches and may look at it.
    pub batch_size: Option<usize>,
}

impl EpochRequest {
    /// A whole epoch of training on one rank.
    pub fn train(seed: u64, epoch: u64) -> Self {
        Self::new(EpochMode::Train, seed, epoch)
    }

    /// The first `num_batches` batches of the training data, unshuffled, the same in each epoch.
    pub fn overfit(seed: u64, num_batches: u64) -> Self {
        Self::new(EpochMode::Overfit, seed, 0).limit_batches(Some(num_batches))
    }

    /// Every sample once, on one rank.
    pub fn evaluate(seed: u64, epoch: u64) -> Self {
        Self::new(EpochMode::Evaluate, seed, epoch)
    }

    /// Reads a part of the data.
    pub fn shard(mut self, shard: Shard) -> Self {
        self.shard = shard;
        self
    }

    /// Starts after a number of samples that all ranks together have consumed; default 0.
    pub fn skip_samples(mut self, num_samples: u64) -> Self {
        self.skip_samples = num_samples;
        self
    }

    /// Ends after a number of batches, counted from the position.
    pub fn limit_batches(mut self, num_batches: Option<u64>) -> Self {
        self.limit_batches = num_batches;
        self
    }

    /// Uses another number of samples per batch than the loader's.
    pub fn batch_size(mut self, batch_size: Option<usize>) -> Self {
        self.batch_size = batch_size;
        self
    }

    fn new(mode: EpochMode, seed: u64, epoch: u64) -> Self {
        Self {
            epoch,
            seed,
            mode,
            shard: Shard::WHOLE,
            skip_samples: 0,
            limit_batches: None,
            batch_size: None,
        }
    }

    /// The epoch that order and augmentation are drawn for.
    pub(crate) fn drawn_epoch(&self) -> u64 {
        match self.mode {
            EpochMode::Overfit => 0,
            EpochMode::Train | EpochMode::Evaluate => self.epoch,
        }
    }
}
