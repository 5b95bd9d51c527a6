use super::place::require_master;
use super::variables::{Variables, bad, missing};
use super::{ClusterKind, Found, Requested, SpawnPlan};
use crate::{Error, Result};

/// A machine among several on which a person started the program once, with `NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT`. The
/// process starts the others of its node itself.
pub(super) fn find(variables: &Variables<'_>, requested: &Requested) -> Result<Option<Found>> {
    let node_rank = variables.number("NODE_RANK")?;
    let num_nodes = number_of_nodes(variables, requested)?;
    let (node_rank, num_nodes) = match (node_rank, num_nodes) {
        (None, None | Some(1)) => return Ok(None),
        (None, Some(nodes)) => {
            return Err(missing(
                "NODE_RANK",
                &format!("{nodes} nodes were asked for, and no launcher has started them"),
                "set it to the number of this machine from 0, with MASTER_ADDR and MASTER_PORT, or start the program with a launcher: \
                 torchrun, srun, mpirun, firebrand run",
            ));
        }
        // What a shell leaves behind: the first machine of nothing.
        (Some(0), None) if !variables.is_set("MASTER_ADDR") => return Ok(None),
        (Some(rank), None) => {
            return Err(bad(
                "NODE_RANK",
                &rank.to_string(),
                "is set, but not how many nodes there are",
                "ask for num_nodes, or set NNODES, or unset NODE_RANK",
            ));
        }
        (Some(rank), Some(nodes)) if rank >= nodes => {
            return Err(bad(
                "NODE_RANK",
                &rank.to_string(),
                &format!("is not below the number of nodes, {nodes}"),
                "machines are numbered from 0; set it lower, or ask for more nodes",
            ));
        }
        (Some(_), Some(1)) => return Ok(None),
        (Some(rank), Some(nodes)) => (rank, nodes),
    };
    let because = format!("this is node {node_rank} of {num_nodes} (NODE_RANK)");
    let plan = SpawnPlan::new(
        ClusterKind::Manual,
        requested.devices.unwrap_or(1),
        node_rank,
        num_nodes,
        Some(require_master(
            variables,
            &["MASTER_ADDR"],
            &["MASTER_PORT"],
            &because,
        )?),
    );
    Ok(Some(Found::Plan(plan.named(variables.text("FIREBRAND_RUN_ID")))))
}

/// What was asked for, or `NNODES`.
pub(super) fn number_of_nodes(variables: &Variables<'_>, requested: &Requested) -> Result<Option<usize>> {
    match (requested.num_nodes, variables.count("NNODES")?) {
        (Some(asked), Some(set)) if asked != set => Err(Error::Contradiction(format!(
            "num_nodes({asked}) was asked for, but NNODES={set} is set; remove one"
        ))),
        (asked, set) => Ok(asked.or(set)),
    }
}
