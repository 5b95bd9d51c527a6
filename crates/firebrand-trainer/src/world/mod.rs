//! The ranks of a run: who this process is among them, and how they agree.

use std::sync::Arc;

use firebrand_collective::{Buffer, DType, ProcessGroup, ReduceOp, Topology};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data::Shard;
use crate::{Error, TrainerConfig};

/// The ranks of a run, as one of them sees them. Every rank calls what communicates in the same order.
#[derive(Clone)]
pub(crate) struct World {
    topology: Topology,
    /// `None` for one rank.
    group: Option<Arc<dyn ProcessGroup>>,
}

impl World {
    /// One rank.
    pub(crate) fn single() -> Self {
        Self {
            topology: Topology::single(),
            group: None,
        }
    }

    /// The ranks that the options and the environment speak of.
    pub(crate) fn join(config: &TrainerConfig) -> Result<Self, Error> {
        let _ = config;
        Ok(Self::single())
    }

    /// The ranks of a group.
    pub(crate) fn of(topology: Topology, group: Arc<dyn ProcessGroup>) -> Self {
        Self {
            group: (topology.world_size > 1).then_some(group),
            topology,
        }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn rank(&self) -> usize {
        self.topology.global_rank
    }

    pub(crate) fn size(&self) -> usize {
        self.topology.world_size
    }

    pub(crate) fn is_global_zero(&self) -> bool {
        self.topology.is_global_zero()
    }

    /// The group of all ranks, if there are several.
    pub(crate) fn group(&self) -> Option<&Arc<dyn ProcessGroup>> {
        self.group.as_ref()
    }

    /// The part of the data that this rank reads.
    pub(crate) fn shard(&self) -> Shard {
        Shard {
            rank: self.rank(),
            world_size: self.size(),
        }
    }

    /// What every rank has, in the order of the ranks.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<Vec<T>, Error> {
        let Some(group) = &self.group else {
            return Ok(vec![value]);
        };
        let bytes = encode(&value)?;
        self.gather_bytes(group.as_ref(), &bytes)?
            .iter()
            .enumerate()
            .map(|(rank, bytes)| decode(rank, bytes))
            .collect()
    }

    /// What rank 0 makes, on every rank. If it fails there, it fails everywhere.
    pub(crate) fn from_zero<T: Serialize + DeserializeOwned>(
        &self,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(group) = &self.group else {
            return make();
        };
        let mine = self.is_global_zero().then(make);
        let said: Result<Vec<u8>, String> = match &mine {
            Some(Ok(value)) => encode(value).map_err(|error| error.to_string()),
            Some(Err(error)) => Err(firebrand_core::ErrorChain(error).to_string()),
            None => Ok(Vec::new()),
        };
        let heard = broadcast(group.as_ref(), encode(&said)?)?;
        match mine {
            Some(result) => result,
            None => match decode::<Result<Vec<u8>, String>>(0, &heard)? {
                Ok(bytes) => decode(0, &bytes),
                Err(cause) => Err(Error::Ranks(firebrand_collective::Error::RankFailed {
                    rank: 0,
                    cause,
                })),
            },
        }
    }

    /// An outcome, of which the other ranks are told if it is a failure of this one.
    pub(crate) fn reported<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let (Err(error), Some(group)) = (&outcome, &self.group)
            && error.of_ranks().is_none()
            && !matches!(error, Error::Interrupted { .. })
        {
            let cause = firebrand_core::ErrorChain(error).to_string();
            group.health().fail(firebrand_collective::Error::RankFailed {
                rank: self.rank(),
                cause,
            });
        }
        outcome
    }

    /// Whether something holds on every rank.
    pub(crate) fn all(&self, holds: bool) -> Result<bool, Error> {
        let Some(group) = &self.group else {
            return Ok(holds);
        };
        let buffer = Buffer::from_slice(&[u8::from(holds)]);
        let lowest = group.all_reduce(buffer, ReduceOp::Min).wait()?;
        Ok(lowest.as_slice::<u8>()?.first() == Some(&1))
    }

    /// Waits until every rank has come here.
    pub(crate) fn barrier(&self) -> Result<(), Error> {
        match &self.group {
            Some(group) => Ok(group.barrier().wait()?),
            None => Ok(()),
        }
    }

    /// The bytes of every rank, of which each may have another number.
    pub(crate) fn gather_bytes(&self, group: &dyn ProcessGroup, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let lens = group
            .all_gather(Buffer::from_slice(&[bytes.len() as u64]))
            .wait()?;
        let lens: Vec<usize> = lens
            .as_slice::<u64>()?
            .iter()
            .map(|len| usize::try_from(*len).unwrap_or_default())
            .collect();
        let longest = lens.iter().copied().max().unwrap_or_default();
        let mut padded = Buffer::zeros(DType::U8, longest);
        padded.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let all = group.all_gather(padded).wait()?;
        let parts = all.bytes().chunks(longest.max(1)).zip(&lens);
        let mut gathered: Vec<Vec<u8>> = parts.map(|(part, len)| part[..*len].to_vec()).collect();
        gathered.resize(lens.len(), Vec::new());
        Ok(gathered)
    }
}

/// The bytes of rank 0, on every rank.
fn broadcast(group: &dyn ProcessGroup, mut bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let len = group
        .broadcast(Buffer::from_slice(&[bytes.len() as u64]), 0)
        .wait()?;
    let len = len.as_slice::<u64>()?.first().copied().unwrap_or_default();
    bytes.resize(usize::try_from(len).unwrap_or_default(), 0);
    let sent = group.broadcast(Buffer::from_slice(&bytes), 0).wait()?;
    Ok(sent.bytes().to_vec())
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value)
        .map_err(|error| Error::Contradiction(format!("a value cannot be given to the other ranks: {error}")))
}

fn decode<T: DeserializeOwned>(rank: usize, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::Ranks(firebrand_collective::Error::Protocol {
            peer: format!("rank {rank}"),
            reason: error.to_string(),
        })
    })
}
