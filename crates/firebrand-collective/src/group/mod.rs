//! Process groups: the interface, and the one implementation over whatever moves the bytes.

mod backend;
mod process_group;
mod queue;
mod single;

pub use backend::{Backend, connect};
pub use process_group::{GroupContext, ProcessGroup};
