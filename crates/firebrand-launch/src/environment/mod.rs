//! Which launcher started this process, told from its environment variables: one file per launcher.

mod agreement;
mod cluster;
mod kubernetes;
mod manual;
mod mpi;
mod own;
mod place;
mod slurm_step;
#[cfg(test)]
mod tests;
mod torchrun;
mod variables;
mod with_rank;

pub use cluster::{Cluster, ClusterKind, Launch, MasterAddress, Requested, SpawnPlan};
pub(crate) use variables::{Variables, bad, shown};

use crate::{Error, Result};

/// What a launcher's variables say.
pub(crate) enum Found {
    /// A rank, and from which variables the numbers of processes per node and of nodes are, for messages.
    Rank(Cluster, Origin),
    /// The first process of a node, which starts the others.
    Plan(SpawnPlan),
    /// The launcher started one process and gave it nothing to meet others at.
    Alone(ClusterKind, Origin),
}

/// Looks for the variables of one launcher.
type Find = fn(&Variables<'_>, &Requested) -> Result<Option<Found>>;

/// From where two numbers are, such as `LOCAL_WORLD_SIZE=2`.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub devices: String,
    pub num_nodes: String,
}

/// Finds out how this process becomes a rank. `variable` looks up an environment variable; in a program it is
/// [`environment_variable`].
///
/// The first of these counts: variables of Firebrand itself (a rank that was started by the first one of its node, or by
/// `firebrand run`), torchrun, MPI, a step of Slurm, Kubeflow, `RANK` and `WORLD_SIZE`, an Indexed Job of Kubernetes, `NODE_RANK`
/// for machines that are started by hand; otherwise the program starts what it was asked for itself. A variable with an
/// empty value counts as not set.
///
/// # Errors
///
/// If a variable is missing or has a value that it cannot have, or what was asked for contradicts what the launcher did.
pub fn detect(requested: &Requested, variable: &dyn Fn(&str) -> Option<String>) -> Result<Launch> {
    for (name, count) in [("devices", requested.devices), ("num_nodes", requested.num_nodes)] {
        if count == Some(0) {
            return Err(Error::Contradiction(format!(
                "{name}(0) was asked for, but a run has at least one; ask for 1 or more"
            )));
        }
    }
    let variables = Variables::new(variable);
    // Further ones are not asked when one has found something: its variables may be leftovers of what started the launcher.
    let launchers: [Find; 8] = [
        own::find,
        torchrun::find,
        mpi::find,
        slurm_step::find,
        kubernetes::find_kubeflow,
        with_rank::find,
        kubernetes::find_indexed_job,
        manual::find,
    ];
    for find in launchers {
        if let Some(found) = find(&variables, requested)? {
            return agreement::check(requested, found);
        }
    }
    let local_world_size = requested.devices.unwrap_or(1);
    if local_world_size == 1 {
        return Ok(Launch::Single);
    }
    let plan = SpawnPlan::new(ClusterKind::Spawned, local_world_size, 0, 1, None);
    Ok(Launch::Spawn(plan))
}

/// A variable of this process. What is no UTF-8 is replaced, so that it becomes an error that names the variable.
pub fn environment_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
