use firebrand_collective::Topology;

use super::place::{Names, check, master_host};
use super::variables::{Variables, bad, missing};
use super::{Cluster, ClusterKind, Found, MasterAddress, Origin, Requested};
use crate::slurm::{self, port_of_job};
use crate::{Error, Result};

const NAMES: Names = Names {
    rank: "SLURM_PROCID",
    world_size: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_world_size: "SLURM_TASKS_PER_NODE",
    node_rank: "SLURM_NODEID",
    num_nodes: "SLURM_NNODES",
};

const NTASKS: [&str; 2] = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"];
const TASKS_OF_STEP: &str = "SLURM_STEP_TASKS_PER_NODE";
const TASKS_OF_JOB: &str = "SLURM_TASKS_PER_NODE";
const NUM_NODES: [&str; 3] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"];

const BECAUSE: &str = "SLURM_NTASKS is";
const FIX: &str = "start the program with srun, or unset SLURM_NTASKS";

/// A task that `srun` started.
///
/// A shell within a job, which is called `bash` or `interactive`, has Slurm's variables too but is no rank of anything.
pub(super) fn find(variables: &Variables<'_>, requested: &Requested) -> Result<Option<Found>> {
    let Some(world_size) = variables.first_count(&NTASKS)? else {
        return Ok(None);
    };
    let is_shell = |name: String| matches!(name.as_str(), "bash" | "interactive");
    if variables.text("SLURM_JOB_NAME").is_some_and(is_shell) {
        return Ok(None);
    }
    let by_srun = variables.is_set("SLURM_STEP_ID");
    if !by_srun && world_size == 1 {
        // The batch script itself, in a job of one task: it may start ranks of its own.
        return Ok(None);
    }
    let topology = topology(variables, world_size)?;
    if !by_srun
        && topology.global_rank == 0
        && let Some(devices) = requested.devices
        && devices != topology.local_world_size
    {
        return Err(Error::Contradiction(format!(
            "devices({devices}) was asked for, but the job has {world_size} tasks, {} on this node (SLURM_NTASKS), and nothing started \
             them (SLURM_STEP_ID is not set); start the program with srun, or give the job one task per node",
            topology.local_world_size,
        )));
    }
    let origin = Origin {
        devices: format!("SLURM_NTASKS={world_size}, SLURM_NNODES={}", topology.num_nodes),
        num_nodes: format!("SLURM_NNODES={}", topology.num_nodes),
    };
    let job = variables.first(&["SLURM_JOB_ID", "SLURM_JOBID"]);
    let step = variables.job_number("SLURM_STEP_ID")?.unwrap_or(0);
    let cluster = Cluster {
        kind: ClusterKind::Slurm,
        master: MasterAddress {
            host: host(variables, &topology)?,
            port: match (variables.port("MASTER_PORT")?, &job) {
                (Some(port), _) => port,
                (None, Some((name, _))) => port_of_job(variables.job_number(name)?.unwrap_or(0), step),
                (None, None) => {
                    return Err(missing(
                        "SLURM_JOB_ID",
                        BECAUSE,
                        "set MASTER_PORT on every rank instead",
                    ));
                }
            },
        },
        topology,
        agent_store: false,
        restart_count: variables.restarts("SLURM_RESTART_COUNT")?,
        job_id: job.map_or_else(String::new, |(_, id)| format!("{id}.{step}")),
    };
    Ok(Some(Found::Rank(cluster, origin)))
}

fn host(variables: &Variables<'_>, topology: &Topology) -> Result<String> {
    if let Some(host) = master_host(variables, &["MASTER_ADDR"])? {
        return Ok(host);
    }
    match slurm::first_host(variables)? {
        Some(host) => Ok(host),
        None if topology.num_nodes == 1 => Ok("127.0.0.1".to_owned()),
        None => Err(missing(
            "SLURM_NODELIST",
            BECAUSE,
            "set MASTER_ADDR on every rank instead",
        )),
    }
}

fn topology(variables: &Variables<'_>, world_size: usize) -> Result<Topology> {
    let node_rank = variables.require_number("SLURM_NODEID", BECAUSE, FIX)?;
    let per_node = tasks_per_node(variables, world_size)?;
    let num_nodes = match (variables.first_count(&NUM_NODES)?, &per_node) {
        (Some(count), _) => count,
        (None, Some(counts)) => counts.len(),
        (None, None) => match slurm::nodes(variables)? {
            Some(nodes) => nodes.len(),
            None => return Err(missing("SLURM_NNODES", BECAUSE, FIX)),
        },
    };
    let local_world_size = match per_node {
        Some(counts) => *counts.get(node_rank).ok_or_else(|| {
            bad(
                "SLURM_NODEID",
                &node_rank.to_string(),
                &format!("is not below the {} nodes of {TASKS_OF_JOB}", counts.len()),
                FIX,
            )
        })?,
        None if world_size.is_multiple_of(num_nodes) => world_size / num_nodes,
        None => {
            return Err(missing(
                TASKS_OF_JOB,
                &format!("{world_size} tasks do not divide evenly among {num_nodes} nodes"),
                FIX,
            ));
        }
    };
    let topology = Topology {
        global_rank: variables.require_number("SLURM_PROCID", BECAUSE, FIX)?,
        world_size,
        local_rank: variables.require_number("SLURM_LOCALID", BECAUSE, FIX)?,
        local_world_size,
        node_rank,
        num_nodes,
    };
    check(topology, &NAMES)
}

/// The number of tasks on each node. The step's own are what they are; those of the job count only if they fit the step.
fn tasks_per_node(variables: &Variables<'_>, world_size: usize) -> Result<Option<Vec<usize>>> {
    let Some((name, value)) = variables.first(&[TASKS_OF_STEP, TASKS_OF_JOB]) else {
        return Ok(None);
    };
    let counts = slurm::expand_tasks_per_node(&value)
        .map_err(|problem| bad(name, &value, &problem, "Slurm writes it like 2(x3),1"))?;
    let sum: usize = counts.iter().sum();
    if sum == world_size {
        return Ok(Some(counts));
    }
    if name == TASKS_OF_JOB && variables.is_set("SLURM_STEP_ID") {
        return Ok(None);
    }
    Err(bad(
        name,
        &value,
        &format!("makes {sum} tasks, not the {world_size} of SLURM_NTASKS"),
        "start the program with srun, which sets both",
    ))
}
