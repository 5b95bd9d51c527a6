use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::queue::{Allocate, QueuedGroup};
use super::single::Single;
use super::{GroupContext, ProcessGroup};
use crate::hierarchical::Hierarchical;
use crate::node::node_of_each_rank;
use crate::tcp::{Links, TcpTransport};
use crate::transport::Transport;
use crate::{Buffer, Error, Result};

/// How the ranks of a group move bytes between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Shared memory within a node, TCP between nodes, or both.
    #[default]
    Auto,
    /// Shared memory: all ranks are on one node.
    Shm,
    /// TCP, also within a node.
    Tcp,
}

impl Backend {
    /// The name, as `FIREBRAND_COLLECTIVE` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Shm, Self::Tcp]
            .into_iter()
            .find(|backend| backend.as_str() == text)
            .ok_or_else(|| {
                Error::argument(format!(
                    "'{text}' is no way to move bytes between ranks; choose auto, shm or tcp"
                ))
            })
    }
}

/// Makes the group of the ranks that a context describes. Every one of them calls it.
///
/// # Errors
///
/// If a rank does not come before the deadline or cannot be reached, if the secrets differ, or if shared memory is forced and the
/// ranks are on several nodes.
pub fn connect(context: GroupContext, backend: Backend) -> Result<Arc<dyn ProcessGroup>> {
    context.health.check()?;
    let size = context.global_ranks.len();
    if context.rank >= size {
        return Err(Error::argument(format!(
            "rank {} is not in a group of {size}",
            context.rank
        )));
    }
    let heap = || -> Allocate { Box::new(|dtype, len| Ok(Buffer::zeros(dtype, len))) };
    let links = Links::connect(&context)?;
    let (name, transport, allocate): (_, Box<dyn Transport>, Allocate) = if size == 1 {
        ("single", Box::new(Single), heap())
    } else if backend == Backend::Tcp {
        ("tcp", Box::new(TcpTransport::connect(&context)?), heap())
    } else {
        let nodes = node_of_each_rank(&context)?;
        let num_nodes = nodes.iter().max().map_or(0, |last| last + 1);
        match num_nodes {
            1 => {
                let (transport, arena) = crate::shm::connect(&context)?;
                (
                    "shm",
                    Box::new(transport),
                    Box::new(move |dtype, len| arena.allocate(dtype, len)),
                )
            }
            _ if backend == Backend::Shm => {
                return Err(Error::argument(format!(
                    "the group's ranks are on {num_nodes} nodes, which share no memory; use auto or tcp instead of shm"
                )));
            }
            _ if num_nodes == size => ("tcp", Box::new(TcpTransport::connect(&context)?), heap()),
            _ => {
                let (transport, arena) = Hierarchical::connect(&context, &nodes)?;
                (
                    "hierarchical",
                    Box::new(transport),
                    Box::new(move |dtype, len| arena.allocate(dtype, len)),
                )
            }
        }
    };
    let group = QueuedGroup::start(context, backend, name, transport, allocate, links)?;
    Ok(Arc::new(group))
}
