use std::ffi::OsString;

use firebrand_collective::{Secret, Topology};
use firebrand_launch::{Cluster, ClusterKind, MasterAddress, SpawnOptions, environment_variable};

use super::args::{RunArgs, Usage};
use super::program::find_program;

/// What is the same for all starts of a run.
pub struct Job {
    nproc_per_node: usize,
    nnodes: usize,
    node_rank: usize,
    /// Where rank 0 listens, if that was said.
    pub endpoint: Option<MasterAddress>,
    id: String,
    options: SpawnOptions,
}

impl Job {
    pub fn new(args: &RunArgs) -> anyhow::Result<Self> {
        if args.node_rank >= args.nnodes {
            return Err(usage(format!(
                "--node-rank {} is not below --nnodes {}; nodes are numbered from 0",
                args.node_rank, args.nnodes
            )));
        }
        if args.nnodes > 1 && args.rdzv_endpoint.is_none() {
            return Err(usage(format!(
                "--nnodes {} needs --rdzv-endpoint HOST:PORT, the same on all nodes: the name or address of node 0 and a free port",
                args.nnodes
            )));
        }
        let secret = match Secret::from_environment(environment_variable)? {
            Some(secret) => secret,
            None if args.nnodes == 1 => Secret::random()?,
            None => {
                return Err(usage(
                    "several nodes need a secret that all of them know: set FIREBRAND_SECRET to the same random text on each, such as \
                     that of `openssl rand -hex 32`, or FIREBRAND_SECRET_FILE to a file that holds it"
                        .to_owned(),
                ));
            }
        };
        // Before anything is started, since it would not be there at a restart either.
        let mut command = vec![find_program(&args.command)?.into_os_string()];
        command.extend(args.command.iter().skip(1).cloned());
        let mut arguments: Vec<OsString> = vec!["exec-rank".into(), "--".into()];
        arguments.append(&mut command);
        let this = std::env::current_exe()?;
        Ok(Self {
            nproc_per_node: args.nproc_per_node,
            nnodes: args.nnodes,
            node_rank: args.node_rank,
            endpoint: args.rdzv_endpoint.clone(),
            id: args.rdzv_id.clone(),
            options: SpawnOptions::program(this, arguments)
                .secret(&secret)
                .grace(args.failure_grace)
                .variables_of_rank(variables),
        })
    }

    /// The ranks of this node at the start with a number.
    pub fn ranks(&self, master: &MasterAddress, restart_count: u32) -> Vec<Cluster> {
        let ranks = (0..self.nproc_per_node).map(|local_rank| Cluster {
            kind: ClusterKind::FirebrandRun,
            topology: Topology {
                global_rank: self.node_rank * self.nproc_per_node + local_rank,
                world_size: self.nnodes * self.nproc_per_node,
                local_rank,
                local_world_size: self.nproc_per_node,
                node_rank: self.node_rank,
                num_nodes: self.nnodes,
            },
            master: master.clone(),
            agent_store: false,
            restart_count,
            job_id: self.id.clone(),
        });
        ranks.collect()
    }

    /// How they are started.
    pub fn options(&self, restart_count: u32) -> SpawnOptions {
        let options = self.options.clone();
        match restart_count {
            0 => options,
            // Whatever the first start began with, a later one goes on from the newest checkpoint.
            _ => options.variable("FIREBRAND_RESUME", "auto"),
        }
    }
}

/// What programs of other frameworks look at, besides Firebrand's own variables.
fn variables(cluster: &Cluster) -> Vec<(OsString, OsString)> {
    let topology = &cluster.topology;
    let numbers = [
        ("RANK", topology.global_rank),
        ("WORLD_SIZE", topology.world_size),
        ("LOCAL_RANK", topology.local_rank),
        ("LOCAL_WORLD_SIZE", topology.local_world_size),
        ("NODE_RANK", topology.node_rank),
        ("GROUP_RANK", topology.node_rank),
        ("GROUP_WORLD_SIZE", topology.num_nodes),
        ("MASTER_PORT", usize::from(cluster.master.port)),
    ];
    let mut variables: Vec<(OsString, OsString)> = numbers
        .iter()
        .map(|(name, number)| ((*name).into(), number.to_string().into()))
        .collect();
    variables.push(("MASTER_ADDR".into(), cluster.master.host.clone().into()));
    variables
}

fn usage(text: String) -> anyhow::Error {
    Usage(text).into()
}
