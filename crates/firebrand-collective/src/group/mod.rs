//! Process groups: the interface, and the one implementation over whatever moves the bytes.

mod backend;
mod bytes;
mod process_group;
mod queue;
mod single;

pub use backend::{Backend, connect};
pub use bytes::broadcast_bytes;
pub use process_group::{GroupContext, ProcessGroup};
