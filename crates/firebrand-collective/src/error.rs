use std::fmt;
use std::time::Duration;

/// What came of an operation between ranks.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation between ranks could not be done.
///
/// One failure may end many operations, so that an error can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank died, left or reported an error.
    #[error("rank {rank} failed: {cause}")]
    RankFailed {
        /// The rank that failed first, among all ranks.
        rank: usize,
        /// What is known of why.
        cause: String,
    },
    /// The deadline passed.
    #[error("{operation} did not complete within {} s: still waiting for {}", .after.as_secs_f64(), Ranks(.waiting_for))]
    Timeout {
        /// What was waited for, such as `seq 41 all_reduce f32[200]`.
        operation: String,
        /// The ranks that have not arrived, among all ranks; empty if that is not known.
        waiting_for: Vec<usize>,
        /// The deadline.
        after: Duration,
    },
    /// Ranks called different operations.
    #[error("the ranks called different operations: {0}")]
    Mismatch(String),
    /// This rank gave up the group.
    #[error("the group was aborted: {0}")]
    Aborted(String),
    /// An argument that no rank can mean.
    #[error("{0}")]
    Argument(String),
    /// A rendezvous or a connection could not be made.
    #[error("{what}: {reason}")]
    Connect {
        /// What was being reached.
        what: String,
        /// What happened, and what to do.
        reason: String,
    },
    /// The peer could not prove that it knows the secret of the job, or this rank could not.
    #[error("{what}: the secret of the job is missing or differs; {hint}")]
    Secret {
        /// Who was being talked to.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A message that makes no sense.
    #[error("{peer} sent a message that makes no sense: {reason}")]
    Protocol {
        /// Who sent it.
        peer: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A key was not set before the deadline.
    #[error("the rendezvous store has no '{key}' after {} s; the rank that sets it has not come so far", .after.as_secs_f64())]
    Missing {
        /// The key.
        key: String,
        /// The deadline.
        after: Duration,
    },
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    System {
        /// What was asked for.
        what: String,
        /// Its answer, and what to do.
        reason: String,
    },
}

impl Error {
    /// An argument that no rank can mean.
    pub fn argument(text: impl Into<String>) -> Self {
        Self::Argument(text.into())
    }

    /// Which rank failed, and why, as others are to hear of it from this rank: the one that this error names, or this one.
    pub(crate) fn blame(&self, this_rank: usize) -> (usize, String) {
        match self {
            Self::RankFailed { rank, cause } => (*rank, cause.clone()),
            Self::Timeout {
                operation,
                waiting_for,
                after,
            } => match waiting_for[..] {
                [missing] => (
                    missing,
                    format!(
                        "it did not come to {operation} within {} s, and rank {this_rank} was still waiting for rank {missing} (is its \
                         process stopped, or is it busy with something that the others are not? FIREBRAND_TIMEOUT sets the limit)",
                        after.as_secs_f64()
                    ),
                ),
                _ => (this_rank, self.to_string()),
            },
            other => (this_rank, other.to_string()),
        }
    }

    /// What the operating system refused, with its answer.
    pub fn system(what: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self::System {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}

/// A list of ranks in words.
struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("other ranks"),
            [rank] => write!(f, "rank {rank}"),
            ranks => {
                let list: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(f, "ranks {}", list.join(", "))
            }
        }
    }
}
