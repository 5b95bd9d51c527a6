//! The ranks of a run: who this process is among them, and how they agree.

use std::sync::Arc;

use firebrand_collective::{Buffer, DType, ProcessGroup, ReduceOp, Topology, broadcast_bytes};
use firebrand_launch::{
    JoinOptions, Launch, Requested, Session, detect, environment_variable, threads_per_rank,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data::Shard;
use crate::options::{Launcher, Strategy};
use crate::{Error, TrainerConfig};

/// The ranks of a run, as one of them sees them. Every rank calls what communicates in the same order.
#[derive(Clone)]
pub(crate) struct World {
    topology: Topology,
    /// The group of the ranks and whoever watches over them; `None` for one rank. Its end is this rank's goodbye.
    session: Option<Arc<Session>>,
}

impl World {
    /// One rank.
    pub(crate) fn single() -> Self {
        Self {
            topology: Topology::single(),
            session: None,
        }
    }

    /// The ranks of a session.
    pub(crate) fn of(session: Arc<Session>) -> Self {
        Self {
            topology: session.topology().clone(),
            session: Some(session),
        }
    }

    /// The ranks that the options and the environment speak of.
    ///
    /// # Errors
    ///
    /// If they contradict each other, or the ranks do not come together.
    pub(crate) fn join(config: &TrainerConfig) -> Result<Self, Error> {
        let launch = launch(config)?;
        check_strategy(config, &launch)?;
        if let Launch::Spawn(plan) = &launch {
            share_cores(plan.num_local);
        }
        let options = JoinOptions::from_environment(&environment_variable)?;
        let Some(session) = Session::join(&launch, options)? else {
            return Ok(Self::single());
        };
        Ok(Self::of(Arc::new(session)))
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
        self.session.as_ref().map(|session| session.group())
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
        let Some(group) = self.group() else {
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
    pub(crate) fn on_zero<T: Serialize + DeserializeOwned>(
        &self,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(group) = self.group() else {
            return make();
        };
        let mine = self.is_global_zero().then(make);
        let said = match &mine {
            Some(result) => encode(
                &result
                    .as_ref()
                    .map_err(|error| firebrand_core::ErrorChain(error).to_string()),
            )?,
            None => Vec::new(),
        };
        let heard = broadcast_bytes(group.as_ref(), said)?;
        mine.unwrap_or_else(|| {
            decode::<Result<T, String>>(0, &heard)?
                .map_err(|cause| Error::Ranks(firebrand_collective::Error::RankFailed { rank: 0, cause }))
        })
    }

    /// An outcome, of which the other ranks are told if it is a failure of this one.
    pub(crate) fn reported<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let (Err(error), Some(session)) = (&outcome, &self.session)
            && error.of_ranks().is_none()
            && !matches!(error, Error::Interrupted { .. })
        {
            session.fail(&firebrand_core::ErrorChain(error).to_string());
        }
        outcome
    }

    /// Is over when every rank has called it, and has no deadline: it waits for as long as all are alive.
    pub(crate) fn meet(&self, what: &str) -> Result<(), Error> {
        match &self.session {
            Some(session) => Ok(session.meet(what)?),
            None => Ok(()),
        }
    }

    /// Whether something holds on every rank.
    pub(crate) fn all(&self, holds: bool) -> Result<bool, Error> {
        let Some(group) = self.group() else {
            return Ok(holds);
        };
        let buffer = Buffer::from_slice(&[u8::from(holds)]);
        let lowest = group.all_reduce(buffer, ReduceOp::Min).wait()?;
        Ok(lowest.as_slice::<u8>()?.first() == Some(&1))
    }

    /// The largest of each of some numbers over all ranks.
    pub(crate) fn largest<const N: usize>(&self, mine: [u64; N]) -> Result<[u64; N], Error> {
        let Some(group) = self.group() else {
            return Ok(mine);
        };
        let largest = group
            .all_reduce(Buffer::from_slice(&mine), ReduceOp::Max)
            .wait()?;
        Ok(<[u64; N]>::try_from(largest.as_slice::<u64>()?).unwrap_or(mine))
    }

    /// Lets the other ranks know what this one is doing, for their messages if it fails.
    pub(crate) fn enter(&self, phase: impl FnOnce() -> String) {
        if let Some(group) = self.group() {
            group.health().set_phase(&phase());
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

/// How many ranks are to be threads of this process, if any are.
///
/// # Errors
///
/// If somebody has started ranks already, or there is more than one node.
pub(crate) fn num_thread_ranks(config: &TrainerConfig) -> Result<Option<usize>, Error> {
    if config.launcher != Launcher::Thread {
        return Ok(None);
    }
    let on_nodes = |num_nodes| {
        Err(Error::Contradiction(format!(
            "the launcher `thread` starts ranks on one node, and {num_nodes} are asked for; use the launcher `process`"
        )))
    };
    if let Some(num_nodes) = config.num_nodes.filter(|num_nodes| *num_nodes > 1) {
        return on_nodes(num_nodes);
    }
    let launch = launch(config)?;
    check_strategy(config, &launch)?;
    match launch {
        Launch::Spawn(plan) if plan.topology_of_first.num_nodes == 1 => Ok(Some(plan.num_local)),
        Launch::Spawn(plan) => on_nodes(plan.topology_of_first.num_nodes),
        Launch::External(cluster) if cluster.topology.world_size > 1 => Err(Error::Contradiction(format!(
            "the launcher `thread` starts ranks in this process, but {} has started {} already; leave out the launcher",
            cluster.kind, cluster.topology.world_size
        ))),
        _ => Ok(None),
    }
}

fn check_strategy(config: &TrainerConfig, launch: &Launch) -> Result<(), Error> {
    if config.strategy != Some(Strategy::Single) || matches!(launch, Launch::Single) {
        return Ok(());
    }
    Err(Error::Contradiction(
        "the strategy `single` has one rank, and devices, num_nodes or the launcher ask for several; use the strategy `ddp`, \
         or one device"
            .to_owned(),
    ))
}

/// What the options and the environment ask for.
fn launch(config: &TrainerConfig) -> Result<Launch, Error> {
    let requested = Requested {
        devices: config.devices,
        num_nodes: config.num_nodes,
    };
    // A rank that another one has started asks for what that one asks for: a second trainer of the program may be for one rank.
    if environment_variable("FIREBRAND_LAUNCHER").as_deref() != Some("spawn") {
        return Ok(detect(&requested, &environment_variable)?);
    }
    let foreign = |name: &str| environment_variable(name).filter(|_| !name.starts_with("FIREBRAND_"));
    match detect(&requested, &foreign)? {
        Launch::Spawn(_) => Ok(detect(&requested, &environment_variable)?),
        launch => Ok(launch),
    }
}

/// Leaves the other ranks of the node their part of the cores, unless the user has said how many threads there are to be.
fn share_cores(num_local: usize) {
    if environment_variable("RAYON_NUM_THREADS").is_none() {
        // Too late if something was computed before: then this rank keeps the threads that it has.
        let _ = rayon::ThreadPoolBuilder::new()
            .num_threads(threads_per_rank(num_local))
            .build_global();
    }
    #[cfg(feature = "libtorch")]
    if environment_variable("OMP_NUM_THREADS").is_none() {
        crate::accelerator::limit_threads(threads_per_rank(num_local));
    }
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
