//! Where a run writes, and from where it goes on.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, CheckpointDir, Resume};
use crate::loggers::{LoggerError, RunDirectory};
use crate::{Error, TrainerConfig};

/// The checkpoint that `from` means for a trainer with these options; `None` only for [`Resume::Auto`].
pub(crate) fn find_checkpoint(config: &TrainerConfig, from: &Resume) -> Result<Option<Checkpoint>, Error> {
    if let Resume::Path(path) = from {
        let dir = CheckpointDir::new(path.parent().unwrap_or(Path::new(".")));
        return Ok(dir.resolve(from)?);
    }
    let parent = config.default_root_dir.join(&config.name);
    for run in newest_first(&parent) {
        let dir = CheckpointDir::new(run.join("checkpoints"));
        if *from == Resume::Auto {
            if let Some(checkpoint) = dir.resolve(from)? {
                return Ok(Some(checkpoint));
            }
        } else if !dir.list().unwrap_or_default().is_empty() {
            return Ok(dir.resolve(from)?);
        }
    }
    match from {
        Resume::Auto => Ok(None),
        _ => Err(Error::NothingToResume {
            from: from.to_string(),
            searched: parent,
        }),
    }
}

/// The runs of an experiment, the newest first.
fn newest_first(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let mut runs: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let run = RunDirectory::open(entry.path()).ok()?;
            Some((run.version(), run.path().to_owned()))
        })
        .collect();
    runs.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    runs.into_iter().map(|(_, path)| path).collect()
}

/// Keeps others from writing into a run while it lives.
pub(crate) struct RunLock(#[allow(dead_code)] File);

impl RunLock {
    /// Takes the run, or says that another process has it. Where the file system knows no locks, it is only a warning.
    pub(crate) fn take(run: &RunDirectory) -> Result<Self, Error> {
        let path = run.path().join(".lock");
        let file = File::create(&path).map_err(|source| LoggerError::io("create", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::RunInUse {
                    path: run.path().to_owned(),
                });
            }
            Err(TryLockError::Error(error)) => tracing::warn!("{} cannot be locked: {error}", path.display()),
        }
        Ok(Self(file))
    }
}

/// The run directory that a checkpoint lies in, if it lies in one.
pub(crate) fn run_of(checkpoint: &Checkpoint) -> Option<RunDirectory> {
    let checkpoints = checkpoint.path().parent()?;
    if checkpoints.file_name()? != "checkpoints" {
        return None;
    }
    RunDirectory::open(checkpoints.parent()?).ok()
}
