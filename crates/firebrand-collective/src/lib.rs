//! Collective communication between the ranks of a training run: a [`ProcessGroup`] reduces, gathers and exchanges
//! [`Buffer`]s, and a [`Store`] lets the ranks find each other.
//!
//! Nothing here knows of tensors or models. Every operation returns a [`Work`] at once and runs beside the caller; the work
//! owns the buffer and gives it back from [`wait`](Work::wait). Every wait has a deadline, and a peer that dies or leaves ends
//! what waits for it with an error that names it.

mod auth;
mod buffer;
mod control;
mod dtype;
mod error;
mod group;
mod health;
#[cfg(target_os = "linux")]
mod hierarchical;
mod monitor;
#[cfg(target_os = "linux")]
mod node;
mod reduce;
mod secret;
#[cfg(target_os = "linux")]
mod shm;
mod store;
mod tcp;
mod topology;
mod transport;
mod work;

pub use buffer::{Buffer, Memory};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use group::{Backend, GroupContext, ProcessGroup, broadcast_bytes, connect};
pub use health::Health;
pub use monitor::{Monitor, MonitorContext};
pub use reduce::{ReduceOp, reduce_into, scale};
pub use secret::Secret;
pub use store::{
    MAX_KEY, MAX_VALUE, MemoryStore, PrefixStore, Store, StoreLimits, StoreServer, TcpStore, TorchStore,
};
pub use topology::Topology;
pub use work::{Completion, Work};
