use super::cluster::is_loopback;
use super::place::{Hints, Names, complete, master_host, require_master};
use super::variables::{Variables, missing};
use super::{Cluster, ClusterKind, Found, Origin, Requested};
use crate::Result;

const NAMES: Names = Names {
    rank: "RANK",
    world_size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world_size: "LOCAL_WORLD_SIZE",
    node_rank: "NODE_RANK",
    num_nodes: "the number of nodes",
};

/// A rank whose `RANK` and `WORLD_SIZE` somebody set: PyTorchJob, a script, another launcher.
pub(super) fn find(variables: &Variables<'_>, requested: &Requested) -> Result<Option<Found>> {
    let (rank, world_size) = match (variables.number("RANK")?, variables.count("WORLD_SIZE")?) {
        (Some(rank), Some(world_size)) => (rank, world_size),
        (Some(rank), None) => {
            return Err(missing(
                "WORLD_SIZE",
                &format!("RANK={rank} is"),
                "set it to the number of processes, or unset RANK",
            ));
        }
        // The number of an Indexed Job's pod is the rank.
        (None, Some(_)) if variables.is_set("JOB_COMPLETION_INDEX") => return Ok(None),
        (None, Some(world_size)) => {
            return Err(missing(
                "RANK",
                &format!("WORLD_SIZE={world_size} is"),
                "set it to the number of this process from 0, or unset WORLD_SIZE",
            ));
        }
        (None, None) => return Ok(None),
    };
    let host = master_host(variables, &["MASTER_ADDR"])?;
    let hints = Hints {
        local_rank: variables.number("LOCAL_RANK")?,
        local_world_size: variables.count("LOCAL_WORLD_SIZE")?,
        node_rank: variables
            .first_number(&["GROUP_RANK", "NODE_RANK"])?
            .map(|(_, rank)| rank),
        num_nodes: match variables.first_count(&["GROUP_WORLD_SIZE", "NNODES"])? {
            Some(nodes) => Some(nodes),
            None => requested.num_nodes,
        },
        devices: requested.devices,
        one_machine: host.as_deref().is_some_and(is_loopback),
    };
    let topology = complete(rank, world_size, &hints, &NAMES)?;
    let origin = Origin {
        devices: match hints.local_world_size {
            Some(size) => format!("LOCAL_WORLD_SIZE={size}"),
            None => format!("WORLD_SIZE={world_size}, LOCAL_WORLD_SIZE is not set"),
        },
        num_nodes: format!("WORLD_SIZE={world_size}, {} per node", topology.local_world_size),
    };
    if world_size == 1 && (host.is_none() || !variables.is_set("MASTER_PORT")) {
        return Ok(Some(Found::Alone(ClusterKind::Variables, origin)));
    }
    let because = format!("RANK={rank} and WORLD_SIZE={world_size} are");
    let cluster = Cluster {
        kind: ClusterKind::Variables,
        topology,
        master: require_master(variables, &["MASTER_ADDR"], &["MASTER_PORT"], &because)?,
        agent_store: false,
        restart_count: variables.restarts("FIREBRAND_RESTART_COUNT")?,
        job_id: variables.text("FIREBRAND_RUN_ID").unwrap_or_default(),
    };
    Ok(Some(Found::Rank(cluster, origin)))
}
