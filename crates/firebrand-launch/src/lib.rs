//! Who this process is among the ranks of a run, and how the others come to be.
//!
//! [`detect`] reads the environment variables of launchers and says which of three things a program is: the only process, one
//! of many that somebody has started, or the first of its node that starts the others itself.
//!
//! ```
//! use firebrand_launch::{Launch, Requested, detect};
//!
//! let variables = |name: &str| match name {
//!     "RANK" => Some("1".to_owned()),
//!     "WORLD_SIZE" => Some("2".to_owned()),
//!     "MASTER_ADDR" => Some("10.0.0.5".to_owned()),
//!     "MASTER_PORT" => Some("29400".to_owned()),
//!     _ => None,
//! };
//! let Launch::External(cluster) = detect(&Requested::default(), &variables)? else {
//!     unreachable!("RANK and WORLD_SIZE are set");
//! };
//! assert_eq!(cluster.topology.global_rank, 1);
//! assert_eq!(cluster.master.to_string(), "10.0.0.5:29400");
//! # Ok::<(), firebrand_launch::Error>(())
//! ```
//!
//! [`Children`] starts and supervises the other ranks of a node: each runs the same program, calls [`adopt`] first of all, and
//! ends when its parent does, however that came about. [`ThreadRanks`] are ranks within one process.

mod environment;
mod error;
mod join;
pub mod slurm;
mod spawn;

pub use environment::{
    Cluster, ClusterKind, Launch, MasterAddress, Requested, SpawnPlan, detect, environment_variable,
};
pub use error::{Error, Result};
pub use join::{JoinOptions, Session, ThreadRanks, Ticket, end_children, finish_children, has_children};
pub use spawn::{
    Child, ChildEnd, Children, OutputStream, ParentWatch, SpawnOptions, adopt, exec, rank_variables,
    threads_per_rank,
};
