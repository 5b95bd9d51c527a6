use firebrand_collective::Topology;

use super::cluster::is_loopback;
use super::place::{Hints, Names, complete, master_host};
use super::variables::{Variables, missing};
use super::{Cluster, ClusterKind, Found, MasterAddress, Origin, Requested};
use crate::{Error, Result, slurm};

// OMPI_COMM_WORLD_NODE_RANK is a rank within the node, whatever it sounds like; the node's own number is in no variable.
const OPEN_MPI: Names = Names {
    rank: "OMPI_COMM_WORLD_RANK",
    world_size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_world_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    node_rank: "the number of the node",
    num_nodes: "the number of nodes",
};

const PMI: Names = Names {
    rank: "PMI_RANK",
    world_size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_world_size: "MPI_LOCALNRANKS",
    node_rank: "the number of the node",
    num_nodes: "the number of nodes",
};

/// What all ranks of a run see as the same, and no other run at the time does.
const JOB_IDS: [&str; 4] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "OMPI_MCA_orte_ess_jobid",
    "PMI_JOBID",
];

/// A process of Open MPI's mpirun, or of a launcher that speaks PMI (MPICH's and Intel's Hydra).
pub(super) fn find(variables: &Variables<'_>, _: &Requested) -> Result<Option<Found>> {
    let names = if variables.first(&[OPEN_MPI.rank, OPEN_MPI.world_size]).is_some() {
        &OPEN_MPI
    } else if variables.is_set(PMI.rank) && !is_step_of_slurm(variables) {
        &PMI
    } else {
        return Ok(None);
    };
    let because = format!("{} or {} is", names.rank, names.world_size);
    let fix = "start the program with mpirun, or unset the variables of MPI";
    let rank = variables.require_number(names.rank, &because, fix)?;
    let world_size = variables.require_count(names.world_size, &because, fix)?;
    let host = master_host(variables, &["MASTER_ADDR"])?;
    let hints = Hints {
        local_rank: variables.number(names.local_rank)?,
        local_world_size: variables.count(names.local_world_size)?,
        node_rank: None,
        num_nodes: None,
        devices: None,
        one_machine: host.as_deref().is_none_or(is_loopback),
    };
    check_layout(rank, world_size, &hints)?;
    let topology = complete(rank, world_size, &hints, names)?;
    let origin = Origin {
        devices: match hints.local_world_size {
            Some(size) => format!("{}={size}", names.local_world_size),
            None => format!("{}={world_size}", names.world_size),
        },
        num_nodes: format!(
            "{}={world_size}, {} per node",
            names.world_size, topology.local_world_size
        ),
    };
    let job = variables.first(&JOB_IDS).map(|(_, id)| id);
    let port = variables.port("MASTER_PORT")?;
    if world_size == 1 && (host.is_none() || port.is_none()) {
        return Ok(Some(Found::Alone(ClusterKind::Mpi, origin)));
    }
    let cluster = Cluster {
        kind: ClusterKind::Mpi,
        master: MasterAddress {
            host: match host {
                Some(host) => host,
                None => first_host(variables, &topology)?,
            },
            port: match (port, &job) {
                (Some(port), _) => port,
                (None, Some(id)) => port_of(id),
                (None, None) => return Err(no_port()),
            },
        },
        topology,
        agent_store: false,
        restart_count: 0,
        job_id: job.unwrap_or_default(),
    };
    Ok(Some(Found::Rank(cluster, origin)))
}

/// `srun --mpi=pmi2` sets PMI's variables too, and Slurm's own say more.
fn is_step_of_slurm(variables: &Variables<'_>) -> bool {
    let equal = |pmi: &str, slurm: &[&str]| {
        variables.is_set(pmi) && variables.text(pmi) == variables.first(slurm).map(|(_, value)| value)
    };
    equal("PMI_RANK", &["SLURM_PROCID"]) && equal("PMI_SIZE", &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])
}

/// MPI numbers no nodes: their numbers follow if each has as many ranks, one node's behind the other's.
fn check_layout(rank: usize, world_size: usize, hints: &Hints) -> Result<()> {
    let (Some(local_rank), Some(local_world_size)) = (hints.local_rank, hints.local_world_size) else {
        return Ok(());
    };
    if world_size.is_multiple_of(local_world_size) && rank % local_world_size == local_rank % local_world_size
    {
        return Ok(());
    }
    Err(Error::Contradiction(format!(
        "rank {rank} of {world_size} is number {local_rank} of {local_world_size} on its node, so that nodes have different numbers of \
         ranks, or the ranks of a node are not one behind the other; start as many on each node, in order: \
         `mpirun --map-by ppr:{local_world_size}:node`"
    )))
}

fn first_host(variables: &Variables<'_>, topology: &Topology) -> Result<String> {
    if topology.num_nodes == 1 {
        return Ok("127.0.0.1".to_owned());
    }
    slurm::first_host(variables)?.ok_or_else(|| {
        missing(
            "MASTER_ADDR",
            &format!("MPI started ranks on {} nodes", topology.num_nodes),
            "set it on every rank to the name or the address of the node of rank 0, as with `mpirun -x MASTER_ADDR=node0`",
        )
    })
}

fn no_port() -> Error {
    missing(
        "MASTER_PORT",
        "this MPI gives the run no name from which a port could be made",
        "set it on every rank to a port that is free on the node of rank 0, such as 29400",
    )
}

/// A port from 15000 to 24999, which systems do not give to outgoing connections: 15000 + FNV-1a(id) mod 10000.
fn port_of(id: &str) -> u16 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    15000 + (hash % 10000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_fnv_1a() {
        // The published values of 64-bit FNV-1a for "" and "foobar".
        for (id, hash) in [("", 0xcbf2_9ce4_8422_2325_u64), ("foobar", 0x8594_4171_f739_67e8)] {
            assert_eq!(u64::from(port_of(id)), 15000 + hash % 10000);
        }
    }
}
