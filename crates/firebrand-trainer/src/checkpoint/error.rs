use std::{
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Why a checkpoint could not be written, found or read.
///
/// Each message names the file, the cause and what to do about it.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused an operation.
    #[error("cannot {action} '{}': {source}; {}", path.display(), Advice(source))]
    Io {
        /// What was attempted, as a verb: `write`, `read`, `rename`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file of a checkpoint is missing, cut short, altered or inconsistent.
    #[error("'{}' is damaged: {reason}; use another checkpoint, or restore the file from a copy", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The path holds something else than a checkpoint.
    #[error("'{}' is not a checkpoint: {reason}", path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
        /// What is there instead and what to do.
        reason: String,
    },
    /// The checkpoint was written in a format that this version does not know.
    #[error(
        "'{}' has the checkpoint format version {found}, and this program reads version {supported}; load it \
         with the version of Firebrand that wrote it, or a later one",
        path.display()
    )]
    UnsupportedVersion {
        /// The manifest.
        path: PathBuf,
        /// The version in it.
        found: String,
        /// The version that is read.
        supported: u64,
    },
    /// A tensor has an element type that cannot be stored or loaded.
    #[error("the tensor '{tensor}' in '{}' has the element type {dtype}: {reason}", path.display())]
    UnsupportedDType {
        /// The file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// The element type.
        dtype: String,
        /// Why it is refused and what to do.
        reason: &'static str,
    },
    /// The elements of a tensor could not be brought into host memory.
    #[error("cannot read the elements of the tensor '{tensor}': {reason}")]
    TensorAccess {
        /// The name of the tensor.
        tensor: String,
        /// What the backend reported.
        reason: String,
    },
    /// There is not enough memory for a tensor or a file.
    #[error(
        "not enough memory for {num_bytes} bytes of '{}'; free some, or load on a machine that has more",
        path.display()
    )]
    OutOfMemory {
        /// The file.
        path: PathBuf,
        /// The number of bytes that were asked for.
        num_bytes: u64,
    },
    /// A name cannot be used.
    #[error("the {what} '{name}' cannot be used: {reason}")]
    InvalidName {
        /// What is named: a checkpoint, an extra file, a tensor.
        what: &'static str,
        /// The name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The state cannot be stored such that it can be loaded again.
    #[error("the state of the checkpoint cannot be stored: {reason}")]
    InvalidState {
        /// The reason and what to do.
        reason: String,
    },
    /// A draft lacks a file that every checkpoint has.
    #[error("the checkpoint '{name}' has no {missing}; write it before `commit`")]
    Incomplete {
        /// The name of the checkpoint.
        name: String,
        /// The missing file.
        missing: String,
    },
    /// Another process keeps writing in the same directory.
    #[error(
        "another process has been writing checkpoints in '{}' for {} s; give each run its own directory",
        path.display(), waited.as_secs()
    )]
    Busy {
        /// The directory of the checkpoints.
        path: PathBuf,
        /// How long this process waited.
        waited: Duration,
    },
    /// A pointer (`last`, `best`) was asked for and does not exist.
    #[error(
        "there is no '{}': no checkpoint was marked so; give the path of a checkpoint, or resume with `auto`",
        path.display()
    )]
    NoPointer {
        /// The pointer file.
        path: PathBuf,
    },
    /// A checkpoint that `last` or `best` points to was to be removed.
    #[error("'{}' is not removed: `{pointer}` points to it; move the pointer first", path.display())]
    Protected {
        /// The checkpoint.
        path: PathBuf,
        /// The name of the pointer.
        pointer: &'static str,
    },
    /// The names of tensors on two sides of a conversion differ.
    #[error(
        "{context}{}{}{}",
        Names("; missing: ", missing),
        Names("; unknown: ", unknown),
        Names("; unused: ", unused)
    )]
    Names {
        /// What was converted.
        context: String,
        /// Names that are needed and were not found.
        missing: Vec<String>,
        /// Names that are there and that nothing takes.
        unknown: Vec<String>,
        /// Rules that no name matched.
        unused: Vec<String>,
    },
    /// A rule of a name map cannot be applied.
    #[error("the name map cannot be applied: {reason}")]
    Mapping {
        /// The rule, the name and what is wrong.
        reason: String,
    },
    /// The thread that writes checkpoints panicked during a write or could not be started.
    #[error("the checkpoint '{name}' was not written: the writing thread failed: {reason}")]
    WriterFailed {
        /// The name of the checkpoint.
        name: String,
        /// What the thread reported.
        reason: String,
    },
}

impl CheckpointError {
    pub(super) fn damaged(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.into(),
            reason: reason.into(),
        }
    }

    /// Names the place where a file was to end up instead of the temporary one that is about to vanish.
    pub(super) fn relocated(mut self, temporary: &Path, target: &Path) -> Self {
        if let Self::Io { path, .. }
        | Self::Damaged { path, .. }
        | Self::UnsupportedDType { path, .. }
        | Self::OutOfMemory { path, .. } = &mut self
            && let Ok(rest) = path.strip_prefix(temporary)
        {
            *path = if rest.as_os_str().is_empty() {
                target.to_owned()
            } else {
                target.join(rest)
            };
        }
        self
    }

    pub(super) fn foreign(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::NotACheckpoint {
            path: path.into(),
            reason: reason.into(),
        }
    }
}

/// Adds what was done, and to which path, to an error of the operating system.
pub(super) trait IoContext<T> {
    fn context(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, CheckpointError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: impl Into<PathBuf>) -> Result<T, CheckpointError> {
        self.map_err(|source| CheckpointError::Io {
            action,
            path: path.into(),
            source,
        })
    }
}

/// What a user can do about an error of the operating system.
struct Advice<'a>(&'a io::Error);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space or choose another directory; earlier checkpoints are untouched"
            }
            io::ErrorKind::PermissionDenied => "check the owner and the permissions of the directory",
            io::ErrorKind::ReadOnlyFilesystem => {
                "the file system is mounted read-only: choose another directory"
            }
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::NotADirectory => "a part of the path is a file: choose another directory",
            _ => "check the path and the device that it is on",
        })
    }
}

/// A list of names behind a heading, shortened; nothing if it is empty.
struct Names<'a>(&'static str, &'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let Self(heading, names) = self;
        if names.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect();
        write!(f, "{heading}{}", shown.join(", "))?;
        match names.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_path_the_cause_and_the_fix() {
        let full = Err::<(), _>(io::Error::from(io::ErrorKind::StorageFull)).context("write", "runs/model");
        let text = full.unwrap_err().to_string();
        assert!(
            text.contains("cannot write 'runs/model'") && text.contains("free some space"),
            "{text}"
        );
    }

    #[test]
    fn long_lists_of_names_are_shortened() {
        let error = CheckpointError::Names {
            context: "cannot import".into(),
            missing: (0..25).map(|i| format!("layer{i}")).collect(),
            unknown: vec!["x".into()],
            unused: vec![],
        };
        let text = error.to_string();
        assert!(
            text.contains("'layer19' and 5 more; unknown: 'x'") && !text.contains("unused"),
            "{text}"
        );
    }
}
