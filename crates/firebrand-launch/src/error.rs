use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::MasterAddress;

/// What came of launching or joining ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// Why ranks could not be started or brought together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable of the environment has a value that it cannot have.
    #[error("{name}={value} is not {expected}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What it takes.
        expected: String,
    },
    /// Options and environment, or variables among themselves, contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// Another rank could not be started.
    #[error("{what}: {reason}")]
    Spawn {
        /// What was tried.
        what: String,
        /// The answer of the system.
        reason: String,
    },
    /// The first rank cannot listen where the others look for it.
    #[error("rank 0 cannot listen on {address}: {reason}")]
    Port {
        /// Where.
        address: SocketAddr,
        /// Why, and what to do.
        reason: String,
    },
    /// The host of the first rank cannot be reached.
    #[error("the first rank is to be found at {address}: {reason}")]
    Master {
        /// Where.
        address: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// A secret is needed and was not given.
    #[error(
        "{0} need a secret that keeps strangers out: set FIREBRAND_SECRET to the same long random text for every rank, or \
         FIREBRAND_SECRET_FILE to a file with it that only you can read"
    )]
    NoSecret(String),
    /// What went wrong between ranks.
    #[error(transparent)]
    Ranks(#[from] firebrand_collective::Error),
}

impl Error {
    pub(crate) fn variable(name: &str, value: &str, expected: &str) -> Self {
        Self::Variable {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        }
    }

    pub(crate) fn spawn(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::Spawn {
            what: what.into(),
            reason: reason.to_string(),
        }
    }

    pub(crate) fn port(address: SocketAddr, error: &io::Error) -> Self {
        let fix = match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use; set MASTER_PORT to a free one on every node",
            io::ErrorKind::AddrNotAvailable => {
                "the address is not of this machine; MASTER_ADDR must name the node of rank 0, as its own interfaces have it"
            }
            _ => "choose another address or port with MASTER_ADDR and MASTER_PORT",
        };
        Self::Port {
            address,
            reason: format!("{error}; {fix}"),
        }
    }

    pub(crate) fn host(master: &MasterAddress, error: &dyn fmt::Display) -> Self {
        Self::Master {
            address: format!("{}:{}", master.host, master.port),
            reason: format!("the name cannot be resolved: {error}; MASTER_ADDR must name the node of rank 0"),
        }
    }

    pub(crate) fn no_way(address: SocketAddr, error: &io::Error) -> Self {
        Self::Master {
            address: address.to_string(),
            reason: format!("this machine has no way there: {error}"),
        }
    }

    pub(crate) fn no_secret(of: &str) -> Self {
        Self::NoSecret(of.to_owned())
    }
}
