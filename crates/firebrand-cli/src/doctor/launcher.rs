use std::net::ToSocketAddrs;
use std::sync::mpsc::channel;
use std::time::Duration;

use firebrand_launch::{Cluster, Launch, MasterAddress, Requested, detect};

use super::report::Report;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How long the name of a host may take to be looked up.
const RESOLVING: Duration = Duration::from_secs(5);

/// Variables of launchers, by how they begin.
const FAMILIES: [&str; 6] = [
    "TORCHELASTIC_",
    "SLURM_",
    "OMPI_COMM_WORLD_",
    "PMI_",
    "PMIX_",
    "PET_",
];

/// Those that have no family.
const NAMES: [&str; 12] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "NNODES",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
    "MPI_LOCALRANKID",
];

pub fn examine(report: &mut Report, lookup: Lookup<'_>) {
    report.section("Launcher");
    for name in NAMES {
        if let Some(value) = lookup(name) {
            report.fact(name, value);
        }
    }
    for family in FAMILIES {
        let count = std::env::vars_os()
            .filter(|(name, _)| name.to_string_lossy().starts_with(family))
            .count();
        if count > 0 {
            report.fact(format!("{family}*"), format!("{count} variables"));
        }
    }
    match detect(&Requested::default(), lookup) {
        Ok(launch) => {
            report.fact("a program here is", describe(&launch));
            if let Some(master) = master(&launch) {
                examine_master(report, &master);
            }
            examine_threads(report, &launch, lookup);
        }
        Err(error) => {
            report.fact("a program here is", "refused");
            report.problem(
                error.to_string(),
                "Set the variables as the launcher would, or unset them: `env -u NAME program`",
            );
        }
    }
    if lookup("SLURM_NTASKS").is_some_and(|tasks| tasks != "1" && !tasks.is_empty())
        && lookup("SLURM_STEP_ID").is_none()
        && lookup("SLURM_PROCID").is_none_or(|rank| rank == "0")
    {
        report.problem(
            "the job has several tasks (SLURM_NTASKS), but this process was not started by srun (SLURM_STEP_ID is not set)",
            "start the program with `srun program`: alone, it would wait for the other tasks",
        );
    }
}

fn describe(launch: &Launch) -> String {
    match launch {
        Launch::Single => "one process on its own; with devices(n), it starts n ranks itself".to_owned(),
        Launch::External(Cluster {
            kind,
            topology,
            master,
            restart_count,
            ..
        }) => format!(
            "rank {} of {}, started by {kind}: local rank {} of {}, node {} of {}, restart {restart_count}, rendezvous at {master}",
            topology.global_rank,
            topology.world_size,
            topology.local_rank,
            topology.local_world_size,
            topology.node_rank,
            topology.num_nodes,
        ),
        Launch::Spawn(plan) => format!(
            "the first rank of node {} of {}, told so by {}; it starts {} more",
            plan.topology_of_first.node_rank,
            plan.topology_of_first.num_nodes,
            plan.kind,
            plan.num_local - 1,
        ),
    }
}

fn master(launch: &Launch) -> Option<MasterAddress> {
    match launch {
        Launch::Single => None,
        Launch::External(cluster) => Some(cluster.master.clone()),
        Launch::Spawn(plan) => plan.master.clone(),
    }
}

fn examine_master(report: &mut Report, master: &MasterAddress) {
    // A resolver may take minutes, and cannot be stopped.
    let (tell, told) = channel();
    let target = (master.host.clone(), master.port);
    let spawned = std::thread::Builder::new().spawn(move || {
        let _ = tell.send(
            target
                .to_socket_addrs()
                .map(|found| found.map(|address| address.ip()).collect::<Vec<_>>()),
        );
    });
    let problem = match spawned.map(|_| told.recv_timeout(RESOLVING)) {
        Ok(Ok(Ok(addresses))) if !addresses.is_empty() => {
            let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            return report.fact(format!("addresses of {}", master.host), list.join(", "));
        }
        Ok(Ok(Ok(_))) => "has no address".to_owned(),
        Ok(Ok(Err(error))) => format!("cannot be resolved: {error}"),
        Ok(Err(_)) => format!("cannot be resolved within {} s", RESOLVING.as_secs()),
        Err(error) => format!("cannot be resolved: {error}"),
    };
    report.problem(
        format!("the host of rank 0, '{}', {problem}", master.host),
        "set MASTER_ADDR to a name that every node can resolve, or to the address of the node of rank 0",
    );
}

/// More threads than processors make every rank slower.
fn examine_threads(report: &mut Report, launch: &Launch, lookup: Lookup<'_>) {
    let ranks = match launch {
        Launch::Single => 1,
        Launch::External(cluster) => cluster.topology.local_world_size,
        Launch::Spawn(plan) => plan.num_local,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
        let value = lookup(name).filter(|value| !value.is_empty());
        report.fact(name, value.clone().unwrap_or_else(|| "not set".to_owned()));
        let Some(value) = value else { continue };
        match value.parse::<usize>() {
            Ok(threads) if threads.saturating_mul(ranks) > cores.max(ranks) => report.problem(
                format!("{name}={value} with {ranks} ranks on this node is more than its {cores} cores"),
                format!(
                    "set {name}={}, or unset it",
                    firebrand_launch::threads_per_rank(ranks)
                ),
            ),
            Ok(_) => {}
            // OpenMP takes a list, one number for each level.
            Err(_) if name == "OMP_NUM_THREADS" && value.contains(',') => {}
            Err(_) => report.problem(
                format!("{name}={value} is no number"),
                "set it to a number of threads, or unset it",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(pairs: &[(&str, &str)]) -> String {
        let mut report = Report::default();
        examine(&mut report, &|name| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        });
        report.to_string()
    }

    #[test]
    fn what_would_be_made_of_the_variables_is_said() {
        assert!(examined(&[]).contains("one process on its own"));
        let pod = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29400"),
        ];
        let text = examined(&pod);
        assert!(
            text.contains("rank 1 of 2") && text.contains("rendezvous at 127.0.0.1:29400"),
            "{text}"
        );
        assert!(text.contains("addresses of 127.0.0.1"), "{text}");
    }

    #[test]
    fn mistakes_are_problems_with_a_fix() {
        let text = examined(&[("WORLD_SIZE", "2")]);
        assert!(
            text.contains("RANK is not set") && text.contains("env -u"),
            "{text}"
        );
        let pod = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "no-such-host.invalid"),
            ("MASTER_PORT", "29400"),
        ];
        let text = examined(&pod);
        assert!(
            text.contains("the host of rank 0, 'no-such-host.invalid', cannot be resolved"),
            "{text}"
        );
        let text = examined(&[("RAYON_NUM_THREADS", "100000"), ("OMP_NUM_THREADS", "many")]);
        assert!(
            text.contains("RAYON_NUM_THREADS=100000 with 1 ranks")
                && text.contains("OMP_NUM_THREADS=many is no number"),
            "{text}"
        );
        let text = examined(&[
            ("SLURM_NTASKS", "2"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NNODES", "1"),
            ("SLURM_JOB_ID", "7"),
        ]);
        assert!(text.contains("was not started by srun"), "{text}");
    }
}
