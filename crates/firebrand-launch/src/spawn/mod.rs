//! Starting the other ranks of a node as processes, watching them, and watching the process that started this one.

mod child;
mod children;
mod command;
mod end;
mod lifeline;
pub(crate) mod names;
mod options;
mod output;
mod parent;
mod prefix;
mod supervisor;

pub use children::{Child, Children};
pub use command::{rank_variables, threads_per_rank};
pub use end::ChildEnd;
pub use options::SpawnOptions;
pub use output::OutputStream;
pub use parent::{ParentWatch, adopt, exec};
