use std::io;
use std::path::PathBuf;

/// A trace cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfilerError {
    /// The file cannot be made or written.
    #[error("cannot write the trace '{}'", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}
