//! How ranks come together: who serves the store, what they say to each other there, and how it ends.

mod address;
mod family;
mod finish;
mod knock;
mod notice;
mod options;
mod place;
mod program;
mod session;
mod threads;

pub use finish::{end_children, finish_children, has_children};
pub use options::JoinOptions;
pub use session::Session;
pub use threads::{ThreadRanks, Ticket};
