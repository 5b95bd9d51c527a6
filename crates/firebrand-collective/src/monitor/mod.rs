//! Whether the ranks are alive, apart from whether they make progress: who fails, dies or stops is known to all within seconds.
//!
//! ```text
//! rank 1 ──┐                     each line is one authenticated connection,
//! rank 2 ──┼── rank 0 (the hub)  with heartbeats both ways
//! rank 3 ──┘
//! ```
//!
//! A rank tells the hub of its failure, and the hub tells all. A connection that ends without a goodbye is a death; one that is
//! silent for too long is a process that is stopped or out of reach. One failure often brings about others, so that a death, and
//! what one rank says of another, counts only after a short grace in which the rank where it began may speak for itself.

mod handle;
mod hub;
mod join;
mod member;
mod message;
mod outbox;
mod pace;
#[cfg(test)]
mod tests;

pub use handle::{Monitor, MonitorContext};
