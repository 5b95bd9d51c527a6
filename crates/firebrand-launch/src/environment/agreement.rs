use super::{Cluster, Found, Launch, Origin, Requested};
use crate::{Error, Result};

/// What was found, if it is what was asked for.
pub(super) fn check(requested: &Requested, found: Found) -> Result<Launch> {
    match found {
        Found::Rank(cluster, origin) => {
            agree(
                requested,
                cluster.kind.name(),
                cluster.topology.local_world_size,
                cluster.topology.num_nodes,
                &origin,
            )?;
            Ok(Launch::External(cluster))
        }
        Found::Alone(kind, origin) => {
            agree(requested, kind.name(), 1, 1, &origin)?;
            Ok(Launch::Single)
        }
        Found::Plan(plan) => {
            // Who writes a plan has compared the numbers, since they come from what was asked for.
            if plan.num_local > 1 {
                return Ok(Launch::Spawn(plan));
            }
            match plan.master {
                Some(master) if plan.topology_of_first.num_nodes > 1 => Ok(Launch::External(Cluster {
                    kind: plan.kind,
                    topology: plan.topology_of_first,
                    master,
                    agent_store: false,
                    restart_count: plan.restart_count,
                    job_id: plan.job_id,
                })),
                _ => Ok(Launch::Single),
            }
        }
    }
}

fn agree(
    requested: &Requested,
    launcher: &str,
    local_world_size: usize,
    num_nodes: usize,
    origin: &Origin,
) -> Result<()> {
    if let Some(devices) = requested.devices
        && devices != local_world_size
    {
        return Err(Error::Contradiction(format!(
            "devices({devices}) was asked for, but {launcher} started {} on this node ({}); remove one: leave out devices, or start \
             {devices} per node",
            counted(local_world_size, "process", "processes"),
            origin.devices,
        )));
    }
    if let Some(nodes) = requested.num_nodes
        && nodes != num_nodes
    {
        return Err(Error::Contradiction(format!(
            "num_nodes({nodes}) was asked for, but {launcher} started {} ({}); remove one: leave out num_nodes, or start {nodes}",
            counted(num_nodes, "node", "nodes"),
            origin.num_nodes,
        )));
    }
    Ok(())
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
