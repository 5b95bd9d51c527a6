use firebrand_collective::Topology;

use super::place::{Names, check};
use super::variables::{Variables, bad};
use super::{Cluster, ClusterKind, Found, MasterAddress, Origin, Requested};
use crate::Result;
use crate::spawn::names;

const NAMES: Names = Names {
    rank: names::RANK,
    world_size: names::WORLD_SIZE,
    local_rank: names::LOCAL_RANK,
    local_world_size: names::LOCAL_WORLD_SIZE,
    node_rank: names::NODE_RANK,
    num_nodes: names::NUM_NODES,
};

/// A rank that Firebrand itself started: the first rank of the node, or `firebrand run`.
pub(super) fn find(variables: &Variables<'_>, _: &Requested) -> Result<Option<Found>> {
    if variables.first(&[names::RANK, names::WORLD_SIZE]).is_none() {
        return Ok(None);
    }
    let fix = "unset all FIREBRAND_ variables of the rank: they are set together by whoever starts it";
    let because = format!("{} or {} is", names::RANK, names::WORLD_SIZE);
    let kind = match variables.text(names::LAUNCHER).as_deref() {
        None | Some(names::LAUNCHER_SPAWN) => ClusterKind::Spawned,
        Some(names::LAUNCHER_RUN) => ClusterKind::FirebrandRun,
        Some(other) => return Err(bad(names::LAUNCHER, other, "is not a launcher of Firebrand", fix)),
    };
    let topology = Topology {
        global_rank: variables.require_number(names::RANK, &because, fix)?,
        world_size: variables.require_count(names::WORLD_SIZE, &because, fix)?,
        local_rank: variables.require_number(names::LOCAL_RANK, &because, fix)?,
        local_world_size: variables.require_count(names::LOCAL_WORLD_SIZE, &because, fix)?,
        node_rank: variables.require_number(names::NODE_RANK, &because, fix)?,
        num_nodes: variables.require_count(names::NUM_NODES, &because, fix)?,
    };
    let topology = check(topology, &NAMES)?;
    let master = variables.text(names::MASTER).unwrap_or_default();
    let master: MasterAddress = master
        .parse()
        .map_err(|problem: String| bad(names::MASTER, &master, &format!("is no address: {problem}"), fix))?;
    let origin = Origin {
        devices: format!("{}={}", names::LOCAL_WORLD_SIZE, topology.local_world_size),
        num_nodes: format!("{}={}", names::NUM_NODES, topology.num_nodes),
    };
    let cluster = Cluster {
        kind,
        topology,
        master,
        agent_store: false,
        restart_count: variables.restarts(names::RESTART_COUNT)?,
        job_id: variables.text(names::RUN_ID).unwrap_or_default(),
    };
    Ok(Some(Found::Rank(cluster, origin)))
}
