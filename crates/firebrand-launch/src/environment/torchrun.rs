use super::place::{Hints, Names, complete, require_master};
use super::variables::Variables;
use super::{Cluster, ClusterKind, Found, Origin, Requested};
use crate::Result;

const NAMES: Names = Names {
    rank: "RANK",
    world_size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world_size: "LOCAL_WORLD_SIZE",
    node_rank: "GROUP_RANK",
    num_nodes: "GROUP_WORLD_SIZE",
};

/// A worker of torchrun. Its agent may serve PyTorch's store at the master address already.
pub(super) fn find(variables: &Variables<'_>, _: &Requested) -> Result<Option<Found>> {
    let Some(job_id) = variables.text("TORCHELASTIC_RUN_ID") else {
        return Ok(None);
    };
    let because = "TORCHELASTIC_RUN_ID is";
    let fix = "start the program with torchrun, or unset TORCHELASTIC_RUN_ID";
    let rank = variables.require_number("RANK", because, fix)?;
    let world_size = variables.require_count("WORLD_SIZE", because, fix)?;
    let hints = Hints {
        local_rank: Some(variables.require_number("LOCAL_RANK", because, fix)?),
        local_world_size: Some(variables.require_count("LOCAL_WORLD_SIZE", because, fix)?),
        node_rank: variables.number("GROUP_RANK")?,
        num_nodes: variables.count("GROUP_WORLD_SIZE")?,
        devices: None,
        one_machine: false,
    };
    let topology = complete(rank, world_size, &hints, &NAMES)?;
    let master = require_master(variables, &["MASTER_ADDR"], &["MASTER_PORT"], because)?;
    let origin = Origin {
        devices: format!("LOCAL_WORLD_SIZE={}", topology.local_world_size),
        num_nodes: match hints.num_nodes {
            Some(nodes) => format!("GROUP_WORLD_SIZE={nodes}"),
            None => format!(
                "WORLD_SIZE={world_size}, LOCAL_WORLD_SIZE={}",
                topology.local_world_size
            ),
        },
    };
    let cluster = Cluster {
        kind: ClusterKind::Torchrun,
        topology,
        master,
        agent_store: variables
            .text("TORCHELASTIC_USE_AGENT_STORE")
            .is_some_and(|value| value.eq_ignore_ascii_case("true")),
        restart_count: variables.restarts("TORCHELASTIC_RESTART_COUNT")?,
        job_id,
    };
    Ok(Some(Found::Rank(cluster, origin)))
}
