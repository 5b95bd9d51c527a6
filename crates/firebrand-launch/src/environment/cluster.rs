use std::fmt;
use std::str::FromStr;

use firebrand_collective::Topology;

/// What a program asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    /// How many processes per node; none leaves it to the launcher, and means one without a launcher.
    pub devices: Option<usize>,
    /// How many nodes; none leaves it to the launcher, and means one without a launcher.
    pub num_nodes: Option<usize>,
}

/// How this process becomes a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// It is the only one.
    Single,
    /// Somebody has started all ranks, and this is one of them.
    External(Cluster),
    /// It is the first of its node, and starts the others itself.
    Spawn(SpawnPlan),
}

/// A rank that somebody has started: who it is, and where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Who started it.
    pub kind: ClusterKind,
    /// Who this process is.
    pub topology: Topology,
    /// Where the rendezvous store listens.
    pub master: MasterAddress,
    /// Whether torchrun's agent serves PyTorch's own store there. Otherwise global rank 0 serves Firebrand's.
    pub agent_store: bool,
    /// How often the run was started again. Keys in the store carry it, so that a rank never meets what an earlier start left.
    pub restart_count: u32,
    /// The launcher's name for the run.
    pub job_id: String,
}

/// Who starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterKind {
    /// The first rank of the node, with [`Children::spawn`](crate::Children::spawn).
    Spawned,
    /// `firebrand run`.
    FirebrandRun,
    /// PyTorch's torchrun.
    Torchrun,
    /// mpirun, mpiexec.
    Mpi,
    /// srun.
    Slurm,
    /// Whoever sets `PET_*`: Kubeflow's PyTorchJob and Trainer.
    Kubeflow,
    /// An Indexed Job of Kubernetes.
    IndexedJob,
    /// Whoever sets `RANK` and `WORLD_SIZE`.
    Variables,
    /// A person, once per machine, with `NODE_RANK`.
    Manual,
}

/// What the first process of a node starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnPlan {
    /// Who started this process.
    pub kind: ClusterKind,
    /// Who this process is: the first rank of its node.
    pub topology_of_first: Topology,
    /// How many ranks this node has, this process among them; all nodes have as many.
    pub num_local: usize,
    /// Where global rank 0 serves the store. None with one node: then it takes a free port.
    pub master: Option<MasterAddress>,
    /// How often the run was started again.
    pub restart_count: u32,
    /// The launcher's name for the run.
    pub job_id: String,
}

impl SpawnPlan {
    pub(super) fn new(
        kind: ClusterKind,
        num_local: usize,
        node_rank: usize,
        num_nodes: usize,
        master: Option<MasterAddress>,
    ) -> Self {
        Self {
            kind,
            topology_of_first: Topology {
                global_rank: node_rank * num_local,
                world_size: num_nodes * num_local,
                local_rank: 0,
                local_world_size: num_local,
                node_rank,
                num_nodes,
            },
            num_local,
            master,
            restart_count: 0,
            job_id: String::new(),
        }
    }

    pub(super) fn named(mut self, job_id: Option<String>) -> Self {
        self.job_id = job_id.unwrap_or_default();
        self
    }

    /// The ranks that this process starts, the other ones of its node, which meet at a store that global rank 0 serves.
    pub fn others(&self, master: &MasterAddress) -> Vec<Cluster> {
        let others = (1..self.num_local).map(|local_rank| Cluster {
            kind: ClusterKind::Spawned,
            topology: Topology {
                global_rank: self.topology_of_first.global_rank + local_rank,
                local_rank,
                ..self.topology_of_first.clone()
            },
            master: master.clone(),
            agent_store: false,
            restart_count: self.restart_count,
            job_id: self.job_id.clone(),
        });
        others.collect()
    }
}

impl ClusterKind {
    /// What messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawned => "the first rank",
            Self::FirebrandRun => "firebrand run",
            Self::Torchrun => "torchrun",
            Self::Mpi => "MPI",
            Self::Slurm => "Slurm",
            Self::Kubeflow => "Kubeflow",
            Self::IndexedJob => "the Indexed Job",
            Self::Variables => "whoever set RANK and WORLD_SIZE",
            Self::Manual => "whoever set NODE_RANK",
        }
    }
}

impl fmt::Display for ClusterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A host, by name or address, and a port.
///
/// ```
/// use firebrand_launch::MasterAddress;
/// let master: MasterAddress = "[::1]:29400".parse()?;
/// assert_eq!((master.host.as_str(), master.port), ("::1", 29400));
/// assert_eq!(master.to_string(), "[::1]:29400");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl MasterAddress {
    /// Whether the host is this machine and no other, by its name alone.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for MasterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for MasterAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shape = || format!("'{text}' is not HOST:PORT, such as node0:29400 or [::1]:29400");
        let (host, port) = text.rsplit_once(':').ok_or_else(shape)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(shape)?,
            // An IPv6 address without brackets has no port that could be told from it.
            None if host.contains(':') => return Err(shape()),
            None => host,
        };
        let port: u16 = port.parse().map_err(|_| shape())?;
        if host.is_empty() || port == 0 || host.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(shape());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_none_are_refused() {
        for text in [
            "",
            "host",
            "host:",
            ":1",
            "host:0",
            "host:99999",
            "::1:5",
            "[::1:5",
            "a b:5",
            "host:-1",
        ] {
            assert!(text.parse::<MasterAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (host, expected) in [
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("::1", true),
            ("10.0.0.1", false),
            ("localhost.example", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}
