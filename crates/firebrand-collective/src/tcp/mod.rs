//! TCP between the ranks of a group: the transport between nodes, and the links by which two ranks send to each other.
//!
//! Ranks find each other through the store: each listens at its own address ([`reception`]) and others dial it ([`dial`]). The
//! transport connects what its algorithms need before the first operation ([`mesh`]), and its listener is gone then. A
//! collective is one of three patterns over these [`wires`]: small buffers are gathered by all and reduced everywhere
//! ([`dissemination`]), large ones stream around a [`ring`], and a small broadcast goes down a tree.

mod dial;
mod dissemination;
mod ending;
mod flow;
mod hello;
mod links;
mod mesh;
mod pacing;
mod reception;
mod ring;
mod steps;
#[cfg(test)]
mod tests;
mod transport;
mod wire;
mod wires;

pub(crate) use links::Links;
pub(crate) use transport::TcpTransport;
