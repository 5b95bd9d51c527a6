//! Small messages over authenticated TCP connections: what the store and the monitor have in common.
//!
//! A client dials an [`Endpoint`] and blocks, always with a deadline. A server has one thread that polls: the [`Gate`] lets in
//! who knows the secret of the job, and each [`Connection`] sends and receives frames without blocking.

mod connection;
mod endpoint;
mod fields;
mod gate;
mod handshake;
mod listen;
mod poll;
mod timed;

pub(crate) use connection::{Connection, LENGTH};
pub(crate) use endpoint::{Endpoint, dial, pauses};
pub(crate) use fields::{Fields, Malformed};
pub(crate) use gate::{Gate, GateLimits};
pub(crate) use listen::{check_listener, listen};
pub(crate) use poll::{Alarm, Waker, alarm, poll};
pub(crate) use timed::{Timed, deadline};
