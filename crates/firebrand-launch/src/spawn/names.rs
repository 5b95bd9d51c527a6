//! The variables that a rank is started with. They come first in detection, so that a rank that was started from within a
//! launcher's environment is what its parent says.

/// Who sets the variables: [`LAUNCHER_SPAWN`] or [`LAUNCHER_RUN`].
pub const LAUNCHER: &str = "FIREBRAND_LAUNCHER";
/// The first rank of the node.
pub const LAUNCHER_SPAWN: &str = "spawn";
/// `firebrand run`.
pub const LAUNCHER_RUN: &str = "run";

pub const RANK: &str = "FIREBRAND_RANK";
pub const WORLD_SIZE: &str = "FIREBRAND_WORLD_SIZE";
pub const LOCAL_RANK: &str = "FIREBRAND_LOCAL_RANK";
pub const LOCAL_WORLD_SIZE: &str = "FIREBRAND_LOCAL_WORLD_SIZE";
pub const NODE_RANK: &str = "FIREBRAND_NODE_RANK";
pub const NUM_NODES: &str = "FIREBRAND_NUM_NODES";

/// Where the rendezvous store listens, as HOST:PORT.
pub const MASTER: &str = "FIREBRAND_MASTER";
pub const RESTART_COUNT: &str = "FIREBRAND_RESTART_COUNT";
pub const RUN_ID: &str = "FIREBRAND_RUN_ID";

/// The process that started the rank, whose pipe is the standard input.
pub const PARENT: &str = "FIREBRAND_PARENT";
/// The file descriptor and the inode of the pipe whose end means that the parent is gone.
pub const LIFELINE: &str = "FIREBRAND_LIFELINE";

pub const SECRET: &str = "FIREBRAND_SECRET";
pub const SECRET_FILE: &str = "FIREBRAND_SECRET_FILE";
