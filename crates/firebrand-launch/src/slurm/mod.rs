//! What Slurm writes into variables, and its requeueing.

mod node_list;
mod requeue;
mod tasks;

pub use node_list::{MAX_NODES, expand_node_list};
pub use requeue::{job_to_requeue, requeue};
pub(crate) use tasks::expand_tasks_per_node;

use crate::Result;
use crate::environment::Variables;

/// The port at which rank 0 of a job listens when `MASTER_PORT` is not set: 15000 + (job + 101 × step) mod 10000.
///
/// It is the same on every rank, differs between neighbouring jobs and between steps of one job, and lies below the ports
/// that systems give to outgoing connections (from 32768). For the first step of a job it is Lightning's formula.
pub fn port_of_job(job: u64, step: u64) -> u16 {
    let number = job % 10000 + 101 * (step % 10000);
    15000 + (number % 10000) as u16
}

/// The nodes of the step, or else of the job, if a variable lists them.
pub(crate) fn nodes(variables: &Variables<'_>) -> Result<Option<Vec<String>>> {
    variables
        .first(&["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"])
        .map(|(_, list)| expand_node_list(&list))
        .transpose()
}

/// The first of them.
pub(crate) fn first_host(variables: &Variables<'_>) -> Result<Option<String>> {
    Ok(nodes(variables)?.and_then(|nodes| nodes.into_iter().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_the_formula_and_stays_in_its_range() {
        assert_eq!(port_of_job(1_234_567, 0), 19567);
        assert_eq!(port_of_job(42, 0), 15042);
        assert_eq!(port_of_job(9999, 1), 15100);
        assert_ne!(port_of_job(7, 0), port_of_job(7, 1));
        for (job, step) in [(0, 0), (u64::MAX, u64::MAX), (9999, 4_294_967_290)] {
            assert!((15000..25000).contains(&port_of_job(job, step)));
        }
    }
}
