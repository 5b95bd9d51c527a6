use std::io;
use std::net::SocketAddr;

use crate::MasterAddress;

/// What came of finding out about ranks, or of starting them.
pub type Result<T> = std::result::Result<T, Error>;

/// Why this process could not find its place among the ranks, or could not start the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable cannot have its value.
    #[error("the environment variable {name}={value} {problem}; {fix}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value, cut if it is long.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        fix: String,
    },
    /// An environment variable that has to be there is not.
    #[error("the environment variable {name} is not set, but {because}; {fix}")]
    Missing {
        /// The variable.
        name: String,
        /// Why it has to be there.
        because: String,
        /// What to do.
        fix: String,
    },
    /// Two things that cannot both be meant; the text names both and what to do.
    #[error("{0}")]
    Contradiction(String),
    /// A list of nodes that Slurm would not write.
    #[error("the node list '{list}' makes no sense: {reason}")]
    NodeList {
        /// The list, cut if it is long.
        list: String,
        /// Where and what.
        reason: String,
    },
    /// A job could not be put back into the queue.
    #[error("job {job} could not be requeued: {reason}")]
    Requeue {
        /// The job.
        job: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// The first rank cannot listen where the others look for it.
    #[error("rank 0 cannot listen on {address}: {reason}")]
    Port {
        /// Where.
        address: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The first rank cannot be found.
    #[error("rank 0 is to be found at {address}: {reason}")]
    Master {
        /// Where.
        address: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// What went wrong between ranks.
    #[error("{0}")]
    Ranks(String),
    /// A rank that this process started did not end well after this process was done.
    #[error("rank {rank} did not end well after this one was done: {cause}; its own output says more")]
    Child {
        /// The rank.
        rank: usize,
        /// How it ended.
        cause: String,
        /// Its exit code, as a shell gives it.
        exit_code: u8,
    },
    /// The operating system refused something, or a process did not do what it had to.
    #[error("{what}: {reason}")]
    System {
        /// What was asked for.
        what: String,
        /// Its answer, and what to do.
        reason: String,
    },
}

impl From<firebrand_collective::Error> for Error {
    fn from(error: firebrand_collective::Error) -> Self {
        Self::Ranks(error.to_string())
    }
}

impl Error {
    pub(crate) fn port(address: SocketAddr, error: &io::Error) -> Self {
        let fix = match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use; set MASTER_PORT to a free one on every node",
            io::ErrorKind::AddrNotAvailable => {
                "the address is not of this machine; MASTER_ADDR must name the node of rank 0, as its own interfaces have it"
            }
            _ => "choose another address or port with MASTER_ADDR and MASTER_PORT",
        };
        Self::Port {
            address: address.to_string(),
            reason: format!("{error}; {fix}"),
        }
    }

    pub(crate) fn host(master: &MasterAddress, error: &dyn std::fmt::Display) -> Self {
        Self::Master {
            address: master.to_string(),
            reason: format!("the name cannot be resolved: {error}; MASTER_ADDR must name the node of rank 0"),
        }
    }

    pub(crate) fn no_way(address: SocketAddr, error: &io::Error) -> Self {
        Self::Master {
            address: address.to_string(),
            reason: format!("this machine has no way there: {error}"),
        }
    }

    pub(crate) fn system(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::System {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}
