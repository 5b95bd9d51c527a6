use super::place::require_master;
use super::variables::{Variables, bad, missing};
use super::{ClusterKind, Found, Requested, SpawnPlan};
use crate::{Error, Result};

const HOSTS: [&str; 2] = ["PET_MASTER_ADDR", "MASTER_ADDR"];
const PORTS: [&str; 2] = ["PET_MASTER_PORT", "MASTER_PORT"];

/// A pod of Kubeflow's PyTorchJob or Trainer, whose `PET_*` variables are torchrun's arguments. Without torchrun the pod's one
/// process starts the others of its node itself.
pub(super) fn find_kubeflow(variables: &Variables<'_>, requested: &Requested) -> Result<Option<Found>> {
    if variables.first(&["PET_NNODES", "PET_NODE_RANK"]).is_none() {
        return Ok(None);
    }
    let num_nodes = number_of_nodes(variables)?;
    let node_rank = match variables.first_number(&["PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK"])? {
        Some((name, rank)) if rank >= num_nodes => {
            return Err(bad(
                name,
                &rank.to_string(),
                &format!("is not below PET_NNODES={num_nodes}"),
                "nodes are numbered from 0; set both as Kubeflow would",
            ));
        }
        Some((_, rank)) => rank,
        None if num_nodes == 1 => 0,
        None => {
            return Err(missing(
                "PET_NODE_RANK",
                &format!("PET_NNODES={num_nodes} is"),
                "set it to the number of this pod, from 0",
            ));
        }
    };
    let local_world_size = processes_per_node(variables, requested)?;
    if let Some(nodes) = requested.num_nodes
        && nodes != num_nodes
    {
        return Err(Error::Contradiction(format!(
            "num_nodes({nodes}) was asked for, but Kubeflow started {num_nodes} (PET_NNODES={num_nodes}); remove one"
        )));
    }
    let master = match num_nodes {
        1 => None,
        _ => Some(require_master(
            variables,
            &HOSTS,
            &PORTS,
            "there are several nodes (PET_NNODES)",
        )?),
    };
    let plan = SpawnPlan::new(
        ClusterKind::Kubeflow,
        local_world_size,
        node_rank,
        num_nodes,
        master,
    );
    Ok(Some(Found::Plan(plan.named(variables.text("PET_RDZV_ID")))))
}

/// torchrun also takes a range, `1:4`, for runs that grow and shrink.
fn number_of_nodes(variables: &Variables<'_>) -> Result<usize> {
    let Some(value) = variables.text("PET_NNODES") else {
        return Ok(1);
    };
    match value.split_once(':') {
        Some((least, most)) if least != most => Err(bad(
            "PET_NNODES",
            &value,
            "is a range, and a run has a fixed number of nodes",
            "set both ends to the same number, or start the program with torchrun",
        )),
        Some((least, _)) => match least.parse() {
            Ok(nodes) if nodes > 0 => Ok(nodes),
            _ => Err(bad(
                "PET_NNODES",
                &value,
                "is not a number of nodes",
                "set it to 1 or more",
            )),
        },
        None => variables.require_count("PET_NNODES", "PET_NODE_RANK is", "set it to the number of pods"),
    }
}

/// `auto`, `gpu` and `cpu` leave the number to the program.
fn processes_per_node(variables: &Variables<'_>, requested: &Requested) -> Result<usize> {
    let open = |value: &String| matches!(value.as_str(), "auto" | "gpu" | "cpu");
    if variables.text("PET_NPROC_PER_NODE").as_ref().is_none_or(open) {
        return Ok(requested.devices.unwrap_or(1));
    }
    let count = variables.require_count("PET_NPROC_PER_NODE", "PET_NNODES is", "set it to 1")?;
    match requested.devices {
        Some(devices) if devices != count => Err(Error::Contradiction(format!(
            "devices({devices}) was asked for, but Kubeflow wants {count} on each node (PET_NPROC_PER_NODE={count}); remove one"
        ))),
        _ => Ok(count),
    }
}

/// A pod of an Indexed Job whose program was told the number of nodes. Its number is that of the node.
///
/// The index alone means nothing: such jobs are also used for many runs that have nothing to do with each other.
pub(super) fn find_indexed_job(variables: &Variables<'_>, requested: &Requested) -> Result<Option<Found>> {
    let Some(node_rank) = variables.number("JOB_COMPLETION_INDEX")? else {
        return Ok(None);
    };
    let local_world_size = requested.devices.unwrap_or(1);
    let (name, num_nodes) = match (
        super::manual::number_of_nodes(variables, requested)?,
        variables.count("WORLD_SIZE")?,
    ) {
        (Some(nodes), Some(world_size)) if world_size != nodes * local_world_size => {
            return Err(bad(
                "WORLD_SIZE",
                &world_size.to_string(),
                &format!("is not the product of {nodes} nodes and devices({local_world_size})"),
                "unset it: it follows from both",
            ));
        }
        (Some(nodes), _) => ("num_nodes", nodes),
        (None, Some(world_size)) if world_size.is_multiple_of(local_world_size) => {
            ("WORLD_SIZE / devices", world_size / local_world_size)
        }
        (None, Some(world_size)) => {
            return Err(bad(
                "WORLD_SIZE",
                &world_size.to_string(),
                &format!("is not a multiple of devices({local_world_size})"),
                "set it to the number of processes of all pods",
            ));
        }
        (None, None) => return Ok(None),
    };
    if num_nodes == 1 {
        return Ok(None);
    }
    if node_rank >= num_nodes {
        return Err(bad(
            "JOB_COMPLETION_INDEX",
            &node_rank.to_string(),
            &format!("is not below {name} = {num_nodes}"),
            "give the job as many completions as nodes",
        ));
    }
    let because = "the job has several pods (JOB_COMPLETION_INDEX and the number of nodes are set)";
    let plan = SpawnPlan::new(
        ClusterKind::IndexedJob,
        local_world_size,
        node_rank,
        num_nodes,
        Some(require_master(
            variables,
            &["MASTER_ADDR"],
            &["MASTER_PORT"],
            because,
        )?),
    );
    Ok(Some(Found::Plan(plan.named(variables.text("JOB_NAME")))))
}
