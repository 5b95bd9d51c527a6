use std::io;
use std::path::{Path, PathBuf};

use firebrand_core::BoxError;

/// Why a logger could not write, or a run directory not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoggerError {
    /// The operating system refused to read or write a file.
    #[error("cannot {operation} '{}': {source}{}", .path.display(), fix(.source))]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A log that a run wants to go on writing does not look like one.
    #[error("'{}' is damaged at line {line}: {reason}; move the file away to go on without its rows", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A metric has the name of a column that every row has.
    #[error("a metric cannot be called '{name}', which is a column of every log; log it under another name")]
    ReservedMetric {
        /// The name that was logged.
        name: String,
    },
    /// A path is no run directory.
    #[error("'{}' is no run directory: {reason}; give a directory `<root>/<name>/version_N`", .path.display())]
    NotARunDirectory {
        /// The path that was given.
        path: PathBuf,
        /// What it lacks.
        reason: &'static str,
    },
    /// A run's name cannot be the name of a directory.
    #[error("the run name '{name}' cannot name a directory; use one without path separators")]
    RunName {
        /// The name that was given.
        name: String,
    },
    /// Something was logged before [`Logger::begin`](super::Logger::begin) or after `finish`.
    #[error("the logger '{logger}' was used outside a run; call `begin` first")]
    NotBegun {
        /// The name of the logger.
        logger: &'static str,
    },
    /// A value has no form in the logger's file.
    #[error("cannot encode the {what}: {source}")]
    Encode {
        /// What was to be written.
        what: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// A logger of the user's own failed.
    #[error("the logger '{logger}' failed: {source}")]
    Other {
        /// The name of the logger.
        logger: &'static str,
        /// The cause.
        source: BoxError,
    },
}

impl LoggerError {
    /// An [`Io`](Self::Io) error: `operation` is a verb, as in "cannot *append to* 'metrics.csv'".
    #[must_use]
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            source,
        }
    }
}

fn fix(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free space on its file system",
        io::ErrorKind::FileTooLarge => "; raise the limit on the size of files",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; make it writable, or choose another root directory for the runs"
        }
        _ => "",
    }
}
