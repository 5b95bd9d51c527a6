//! Starting the other ranks of a node by running this program again, and watching over them.

mod child;
mod children;
mod command;

pub use child::watch_parent;
pub use children::{Children, Exit};
pub use command::threads_per_rank;
