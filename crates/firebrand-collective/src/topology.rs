/// Who this process is among the ranks of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// This process's number among all, from 0.
    pub global_rank: usize,
    /// The number of processes.
    pub world_size: usize,
    /// This process's number among those of its node, from 0.
    pub local_rank: usize,
    /// The number of processes on this node.
    pub local_world_size: usize,
    /// This node's number, from 0.
    pub node_rank: usize,
    /// The number of nodes.
    pub num_nodes: usize,
}

impl Topology {
    /// One process.
    pub fn single() -> Self {
        Self {
            global_rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            node_rank: 0,
            num_nodes: 1,
        }
    }

    /// Whether this is the process that writes and prints for all: global rank 0.
    pub fn is_global_zero(&self) -> bool {
        self.global_rank == 0
    }
}
