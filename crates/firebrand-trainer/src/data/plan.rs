use super::random::permutation;
use super::{DataError, EpochMode, EpochRequest, Shard, ShardTail};

/// What a loader over a dataset divides, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    pub(crate) num_samples: usize,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
    pub(crate) shard_tail: ShardTail,
}

/// How many batches one rank gets from a position on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The position in the order of the epoch.
    start: usize,
    shard: Shard,
    batch_size: usize,
    /// The samples of this rank from the position on.
    rank_samples: usize,
    /// The position at which all ranks together are through.
    end: usize,
    pub(crate) num_batches: usize,
}

impl Division {
    /// What a request asks of the data; errors are those of [`DataError`] that name a setting, a size or a position.
    pub(crate) fn split(&self, request: &EpochRequest, loader: &str) -> Result<Split, DataError> {
        let loader = || loader.to_owned();
        let Shard { rank, world_size } = request.shard;
        let batch_size = request.batch_size.unwrap_or(self.batch_size);
        if batch_size == 0 {
            return Err(DataError::Setting {
                loader: loader(),
                setting: "batch_size",
                value: "0".to_owned(),
                fix: "a batch needs at least one sample",
            });
        }
        if rank >= world_size {
            return Err(DataError::Shard {
                loader: loader(),
                rank,
                world_size,
            });
        }
        if self.num_samples == 0 {
            return Err(DataError::EmptyDataset { loader: loader() });
        }
        // Rank 0 has most samples, so that it alone says whether the epoch has any batch.
        let first_rank = self.rank_samples(request.mode, self.num_samples, Shard { rank: 0, world_size });
        if self.num_batches(first_rank, batch_size) == 0 {
            let per_rank = if self.drop_last { batch_size } else { 1 };
            return Err(DataError::NoBatch {
                loader: loader(),
                num_samples: self.num_samples,
                needed: per_rank.saturating_mul(world_size),
                batch_size,
                world_size,
            });
        }
        let start = usize::try_from(request.skip_samples)
            .ok()
            .filter(|start| *start <= self.num_samples)
            .ok_or_else(|| DataError::Position {
                loader: loader(),
                position: request.skip_samples,
                num_samples: self.num_samples as u64,
            })?;
        let rank_samples = self.rank_samples(request.mode, self.num_samples - start, request.shard);
        let end = match (request.mode, self.shard_tail) {
            (EpochMode::Train | EpochMode::Overfit, ShardTail::Drop) => start + rank_samples * world_size,
            _ => self.num_samples,
        };
        let limit = request
            .limit_batches
            .and_then(|limit| usize::try_from(limit).ok());
        Ok(Split {
            start,
            shard: request.shard,
            batch_size,
            rank_samples,
            end,
            num_batches: self
                .num_batches(rank_samples, batch_size)
                .min(limit.unwrap_or(usize::MAX)),
        })
    }

    fn rank_samples(&self, mode: EpochMode, remaining: usize, shard: Shard) -> usize {
        match (mode, self.shard_tail) {
            (EpochMode::Evaluate, _) => remaining.saturating_sub(shard.rank).div_ceil(shard.world_size),
            (_, ShardTail::Pad) => remaining.div_ceil(shard.world_size),
            (_, ShardTail::Drop) => remaining / shard.world_size,
        }
    }

    fn num_batches(&self, rank_samples: usize, batch_size: usize) -> usize {
        if self.drop_last {
            rank_samples / batch_size
        } else {
            rank_samples.div_ceil(batch_size)
        }
    }
}

/// The order of an epoch's samples.
#[derive(Debug)]
pub(crate) enum Order {
    /// As the dataset has them.
    Stored,
    /// A permutation.
    Shuffled(Vec<usize>),
}

/// Which samples are in which batch of one rank.
#[derive(Debug)]
pub(crate) struct EpochPlan {
    split: Split,
    num_samples: usize,
    order: Order,
}

impl EpochPlan {
    pub(crate) fn new(split: Split, num_samples: usize, shuffle: Option<(u64, u64)>) -> Self {
        let order = match shuffle {
            Some((seed, epoch)) => Order::Shuffled(permutation(num_samples, seed, epoch)),
            None => Order::Stored,
        };
        Self {
            split,
            num_samples,
            order,
        }
    }

    pub(crate) fn num_batches(&self) -> usize {
        self.split.num_batches
    }

    /// The dataset indices of the samples of a batch.
    pub(crate) fn samples(&self, batch: usize) -> Vec<usize> {
        let Split {
            start,
            shard,
            batch_size,
            rank_samples,
            ..
        } = self.split;
        let first = batch.saturating_mul(batch_size);
        let last = first.saturating_add(batch_size).min(rank_samples);
        (first..last)
            .map(|number| self.sample_at(start + shard.rank + number * shard.world_size))
            .collect()
    }

    /// How many samples of the epoch all ranks together have consumed after a batch.
    pub(crate) fn consumed_after(&self, batch: usize) -> u64 {
        let Split {
            start,
            shard,
            batch_size,
            end,
            ..
        } = self.split;
        let global_batch = batch_size.saturating_mul(shard.world_size);
        start
            .saturating_add((batch + 1).saturating_mul(global_batch))
            .min(end) as u64
    }

    /// The sample at a position; behind the end, the head of the epoch is repeated.
    fn sample_at(&self, position: usize) -> usize {
        let position = position % self.num_samples;
        match &self.order {
            Order::Stored => position,
            Order::Shuffled(order) => order.get(position).copied().unwrap_or(position),
        }
    }
}

#[cfg(test)]
mod tests;
