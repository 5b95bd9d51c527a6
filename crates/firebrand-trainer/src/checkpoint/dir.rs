use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{CheckpointError, durable::sync_dir, error::IoContext, names};

/// What the names of unfinished files start with.
pub(super) const TEMPORARY: &str = ".tmp-";
/// What the name of a checkpoint starts with while its successor of the same name takes its place.
pub(super) const REPLACED: &str = ".replaced-";
/// What the name of a checkpoint starts with while it is being deleted.
pub(super) const REMOVED: &str = ".removed-";
const LOCK: &str = ".lock";
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// A directory of checkpoints: `<run>/checkpoints/`.
///
/// Methods that change it exclude each other, across threads and processes, by a lock on a hidden file. They first
/// put in order what a process that was killed left behind.
///
/// ```
/// use firebrand_trainer::checkpoint::{CheckpointDir, Pointer, Resume, Snapshot};
/// # let run = tempfile::tempdir()?;
///
/// let checkpoints = CheckpointDir::new(run.path().join("checkpoints"));
/// let mut snapshot = Snapshot::default();
/// snapshot.state = serde_json::json!({ "epoch": 3, "global_step": 1200 });
/// checkpoints.write("epoch=003-step=001200", &snapshot)?;
/// checkpoints.point(Pointer::Last, "epoch=003-step=001200")?;
///
/// let checkpoint = checkpoints.resolve(&Resume::Auto)?.expect("one was written");
/// assert_eq!(checkpoint.snapshot()?, snapshot);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CheckpointDir {
    root: PathBuf,
}

impl CheckpointDir {
    /// The checkpoints in `root`, which is created by the first write.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the checkpoint of this name is or would be.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where a checkpoint is while it is being replaced.
    pub(super) fn replaced_path(&self, name: &str) -> PathBuf {
        self.root.join(format!("{REPLACED}{name}"))
    }

    /// Waits for other writers, then clears up after dead ones.
    pub(super) fn lock(&self) -> Result<DirectoryLock, CheckpointError> {
        let path = self.root.join(LOCK);
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .context("open the lock file", &path)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIMEOUT => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(CheckpointError::Busy {
                        path: self.root.clone(),
                        waited: LOCK_TIMEOUT,
                    });
                }
                Err(TryLockError::Error(error)) => {
                    // Without a lock nobody can tell a dead writer's files from those of a living one.
                    tracing::warn!(path = %path.display(), %error, "the file system has no locks: leftovers stay");
                    return Ok(DirectoryLock(None));
                }
            }
        }
        self.settle()?;
        Ok(DirectoryLock(Some(file)))
    }

    /// Finishes or undoes what writers left that died: nobody else is writing.
    fn settle(&self) -> Result<(), CheckpointError> {
        let mut changed = false;
        for entry in fs::read_dir(&self.root).context("read", &self.root)? {
            let entry = entry.context("read", &self.root)?;
            let path = entry.path();
            let file_name = entry.file_name();
            let Some(file_name) = file_name.to_str() else {
                continue;
            };
            let replaced = file_name
                .strip_prefix(REPLACED)
                .filter(|name| names::check_checkpoint(name).is_ok());
            let outcome = if file_name.starts_with(TEMPORARY) || file_name.starts_with(REMOVED) {
                delete(&path)
            } else if let Some(name) = replaced {
                let home = self.path_of(name);
                if home.symlink_metadata().is_ok() {
                    delete(&path)
                } else {
                    fs::rename(&path, home)
                }
            } else {
                continue;
            };
            changed = true;
            if let Err(error) = outcome {
                tracing::warn!(path = %path.display(), %error, "a leftover of an earlier run could not be cleared");
            }
        }
        if changed { sync_dir(&self.root) } else { Ok(()) }
    }
}

/// Deletes a file or a directory with all that is in it.
pub(super) fn delete(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// Holds others off while it lives. The kernel releases it when the process dies.
#[derive(Debug)]
pub(super) struct DirectoryLock(#[expect(dead_code, reason = "its `Drop` is the point")] Option<File>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_dead_writers_are_put_in_order() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        for path in [
            ".tmp-abc",
            ".removed-a",
            ".replaced-kept",
            "kept",
            ".replaced-back",
            "epoch=000",
        ] {
            fs::create_dir(temp.path().join(path)).unwrap();
            fs::write(temp.path().join(path).join("content"), path).unwrap();
        }
        fs::write(temp.path().join(".tmp-file"), "x").unwrap();
        fs::write(temp.path().join(".user"), "x").unwrap();
        drop(dir.lock().unwrap());
        let mut left: Vec<_> = fs::read_dir(temp.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".lock", ".user", "back", "epoch=000", "kept"]);
        assert_eq!(
            fs::read_to_string(dir.path_of("back").join("content")).unwrap(),
            ".replaced-back"
        );
        assert_eq!(
            fs::read_to_string(dir.path_of("kept").join("content")).unwrap(),
            "kept"
        );
    }

    #[test]
    fn a_second_writer_waits_for_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        let lock = dir.lock().unwrap();
        let (sender, receiver) = crossbeam_channel::bounded(1);
        thread::scope(|scope| {
            scope.spawn(|| sender.send(dir.lock().map(drop)).unwrap());
            assert!(
                receiver.recv_timeout(Duration::from_millis(100)).is_err(),
                "both hold the lock"
            );
            drop(lock);
            receiver.recv_timeout(Duration::from_secs(30)).unwrap().unwrap();
        });
    }
}
