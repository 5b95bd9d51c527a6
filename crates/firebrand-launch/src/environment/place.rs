use firebrand_collective::Topology;

use super::MasterAddress;
use super::variables::{Variables, bad, missing};
use crate::Result;

/// Which variables the numbers of a [`Topology`] are from, for messages.
pub(super) struct Names {
    pub rank: &'static str,
    pub world_size: &'static str,
    pub local_rank: &'static str,
    pub local_world_size: &'static str,
    pub node_rank: &'static str,
    pub num_nodes: &'static str,
}

/// Refuses numbers that contradict each other, and says from which variables they are.
pub(super) fn check(topology: Topology, names: &Names) -> Result<Topology> {
    let below = |(name, value): (&str, usize), (bound_name, bound): (&str, usize)| match value < bound {
        true => Ok(()),
        false => Err(bad(
            name,
            &value.to_string(),
            &format!("is not below {bound_name}={bound}"),
            "numbers begin at 0; set both as the launcher would",
        )),
    };
    let within = |(name, value): (&str, usize), (bound_name, bound): (&str, usize)| match value <= bound {
        true => Ok(()),
        false => Err(bad(
            name,
            &value.to_string(),
            &format!("is more than {bound_name}={bound}"),
            "a node has no more processes than the run, and a run no more nodes than processes; set both as the launcher would",
        )),
    };
    let world = (names.world_size, topology.world_size);
    let local_world = (names.local_world_size, topology.local_world_size);
    let nodes = (names.num_nodes, topology.num_nodes);
    below((names.rank, topology.global_rank), world)?;
    below((names.local_rank, topology.local_rank), local_world)?;
    below((names.node_rank, topology.node_rank), nodes)?;
    within(local_world, world)?;
    within(nodes, world)?;
    if topology.num_nodes == 1 && topology.local_world_size != topology.world_size {
        return Err(bad(
            names.local_world_size,
            &topology.local_world_size.to_string(),
            &format!(
                "is not {}={}, though there is one node",
                names.world_size, topology.world_size
            ),
            "set both as the launcher would",
        ));
    }
    Ok(topology)
}

/// What a launcher says of the place of a rank, as far as it says anything.
pub(super) struct Hints {
    pub local_rank: Option<usize>,
    pub local_world_size: Option<usize>,
    pub node_rank: Option<usize>,
    pub num_nodes: Option<usize>,
    /// How many processes per node the program asked for.
    pub devices: Option<usize>,
    /// Whether all ranks are known to be on this machine.
    pub one_machine: bool,
}

/// Completes the place of a rank. Nodes are taken to have as many ranks each, one node's behind the other's.
///
/// Without any hint there is one process per node, as in Kubernetes.
pub(super) fn complete(rank: usize, world_size: usize, hints: &Hints, names: &Names) -> Result<Topology> {
    let local_world_size = match (hints.local_world_size, hints.num_nodes, hints.devices) {
        (Some(size), ..) => size,
        (None, Some(nodes), _) => divide(world_size, nodes, names)?,
        (None, None, Some(devices)) if world_size.is_multiple_of(devices) => devices,
        _ if hints.one_machine => world_size,
        _ if hints.local_rank.is_some() => {
            return Err(missing(
                names.local_world_size,
                &format!("{} is", names.local_rank),
                "set it to the number of processes on this node",
            ));
        }
        _ => 1,
    };
    if local_world_size == 0 {
        return Err(missing(
            names.local_world_size,
            "a node has at least one process",
            "set it to the number of processes on this node",
        ));
    }
    let local_rank = hints.local_rank.unwrap_or(rank % local_world_size);
    let node_rank = hints
        .node_rank
        .unwrap_or(rank.saturating_sub(local_rank) / local_world_size);
    let topology = Topology {
        global_rank: rank,
        world_size,
        local_rank,
        local_world_size,
        node_rank,
        num_nodes: hints.num_nodes.unwrap_or(world_size.div_ceil(local_world_size)),
    };
    check(topology, names)
}

fn divide(world_size: usize, nodes: usize, names: &Names) -> Result<usize> {
    if world_size.is_multiple_of(nodes) && world_size > 0 {
        return Ok(world_size / nodes);
    }
    Err(missing(
        names.local_world_size,
        &format!(
            "{} ranks ({}) do not divide evenly among {nodes} nodes",
            world_size, names.world_size
        ),
        "set it to the number of processes on this node, together with LOCAL_RANK",
    ))
}

/// The address in `MASTER_ADDR`, if it is set.
pub(super) fn master_host(variables: &Variables<'_>, names: &[&str]) -> Result<Option<String>> {
    let Some((name, host)) = variables.first(names) else {
        return Ok(None);
    };
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '[' | ']');
    if host.chars().any(odd) {
        return Err(bad(
            name,
            &host,
            "is neither a name of a host nor an address",
            "set it to the name or the address of the node of rank 0, without a port",
        ));
    }
    Ok(Some(host))
}

/// The address in `MASTER_ADDR` and `MASTER_PORT`, or their likes, which have to be there.
pub(super) fn require_master(
    variables: &Variables<'_>,
    host_names: &[&str],
    port_names: &[&str],
    because: &str,
) -> Result<MasterAddress> {
    let first = |names: &[&str]| names.first().map_or("MASTER_ADDR", |name| *name).to_owned();
    let host = master_host(variables, host_names)?.ok_or_else(|| {
        missing(
            &first(host_names),
            because,
            "set it on every rank to the name or the address of the node of rank 0",
        )
    })?;
    let port = match variables.first(port_names) {
        Some((name, _)) => variables.port(name)?,
        None => None,
    };
    let port = port.ok_or_else(|| {
        missing(
            &first(port_names),
            because,
            "set it on every rank to a port that is free on the node of rank 0, such as 29400",
        )
    })?;
    Ok(MasterAddress { host, port })
}
