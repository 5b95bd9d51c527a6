use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::lifeline::Lifeline;
use super::names;
use super::options::SpawnOptions;
use crate::Result;
use crate::environment::{Cluster, ClusterKind};

/// Variables by which libraries choose their number of threads.
const THREADS: [&str; 2] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

/// The variables that make a process the rank that [`detect`](crate::detect) reads from them: a cluster of the kind
/// [`Spawned`](ClusterKind::Spawned) or [`FirebrandRun`](ClusterKind::FirebrandRun).
pub fn rank_variables(cluster: &Cluster) -> Vec<(String, String)> {
    let launcher = match cluster.kind {
        ClusterKind::FirebrandRun => names::LAUNCHER_RUN,
        _ => names::LAUNCHER_SPAWN,
    };
    let topology = &cluster.topology;
    [
        (names::LAUNCHER, launcher.to_owned()),
        (names::RANK, topology.global_rank.to_string()),
        (names::WORLD_SIZE, topology.world_size.to_string()),
        (names::LOCAL_RANK, topology.local_rank.to_string()),
        (names::LOCAL_WORLD_SIZE, topology.local_world_size.to_string()),
        (names::NODE_RANK, topology.node_rank.to_string()),
        (names::NUM_NODES, topology.num_nodes.to_string()),
        (names::MASTER, cluster.master.to_string()),
        (names::RESTART_COUNT, cluster.restart_count.to_string()),
        (names::RUN_ID, cluster.job_id.clone()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// How many threads each of several ranks on this node should use: the processors that this process may use, divided.
pub fn threads_per_rank(local_world_size: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / local_world_size.max(1)).max(1)
}

/// The command that starts a rank.
pub(super) fn command(cluster: &Cluster, options: &SpawnOptions, lifeline: &Lifeline) -> Result<Command> {
    let mut command = Command::new(&options.program);
    command
        .args(&options.args)
        // A terminal's Ctrl+C goes to a whole process group: the ranks take it from the one that started them.
        .process_group(0)
        .stdin(lifeline.stdin()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .envs(rank_variables(cluster))
        .env(names::PARENT, std::process::id().to_string())
        .env(names::LIFELINE, lifeline.place()?.to_string());
    let threads = threads_per_rank(cluster.topology.local_world_size).to_string();
    for name in THREADS {
        if std::env::var_os(name).is_none_or(|value| value.is_empty()) {
            command.env(name, &threads);
        }
    }
    let own: Vec<(OsString, OsString)> = (options.rank_variables)(cluster);
    command.envs(own).envs(options.variables.iter().cloned());
    Ok(command)
}
