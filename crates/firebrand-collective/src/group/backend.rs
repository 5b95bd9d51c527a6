use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::queue::{Allocate, QueuedGroup};
use super::single::Single;
use super::{GroupContext, ProcessGroup};
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
    let health = Arc::clone(&context.health);
    // Who waits for one that itself waits for a third hears of that one soon.
    meet(context, backend).map_err(|error| match error {
        Error::Timeout { .. } | Error::Missing { .. } | Error::Connect { .. } => {
            health.hearsay().unwrap_or(error)
        }
        error => error,
    })
}

fn meet(context: GroupContext, backend: Backend) -> Result<Arc<dyn ProcessGroup>> {
    let links = Links::connect(&context)?;
    let means = match backend {
        _ if context.global_ranks.len() == 1 => Means::on_the_heap("single", Single),
        Backend::Tcp => Means::tcp(&context)?,
        Backend::Auto | Backend::Shm => Means::by_node(&context, backend)?,
    };
    Ok(Arc::new(QueuedGroup::start(context, backend, means, links)?))
}

/// What a group moves bytes with.
pub(super) struct Means {
    pub name: &'static str,
    pub transport: Box<dyn Transport>,
    pub allocate: Allocate,
}

impl Means {
    fn on_the_heap(name: &'static str, transport: impl Transport + 'static) -> Self {
        Self {
            name,
            transport: Box::new(transport),
            allocate: Box::new(|dtype, len| Ok(Buffer::zeros(dtype, len))),
        }
    }

    fn tcp(context: &GroupContext) -> Result<Self> {
        Ok(Self::on_the_heap("tcp", TcpTransport::connect(context)?))
    }

    #[cfg(target_os = "linux")]
    fn by_node(context: &GroupContext, backend: Backend) -> Result<Self> {
        let in_arena = |name, transport: Box<dyn Transport>, arena: Arc<crate::shm::Arena>| Self {
            name,
            transport,
            allocate: Box::new(move |dtype, len| arena.allocate(dtype, len)),
        };
        let nodes = crate::node::node_of_each_rank(context)?;
        let num_nodes = nodes.iter().max().map_or(0, |last| last + 1);
        if num_nodes == 1 {
            let (transport, arena) = crate::shm::connect(context)?;
            return Ok(in_arena("shm", Box::new(transport), arena));
        }
        if backend == Backend::Shm {
            return Err(Error::argument(format!(
                "the group's ranks are on {num_nodes} nodes, which share no memory; use auto or tcp instead of shm"
            )));
        }
        if num_nodes == nodes.len() {
            return Self::tcp(context);
        }
        let (transport, arena) = crate::hierarchical::Hierarchical::connect(context, &nodes)?;
        Ok(in_arena("hierarchical", Box::new(transport), arena))
    }

    /// Shared memory and its hand-over are those of Linux.
    #[cfg(not(target_os = "linux"))]
    fn by_node(context: &GroupContext, backend: Backend) -> Result<Self> {
        if backend == Backend::Shm {
            return Err(Error::argument(
                "shared memory between ranks works on Linux alone; use auto or tcp",
            ));
        }
        Self::tcp(context)
    }
}
