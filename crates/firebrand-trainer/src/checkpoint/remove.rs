use std::fs;

use super::{
    CheckpointDir, CheckpointError, Pointer,
    dir::{REMOVED, delete},
    durable::sync_dir,
    error::IoContext,
    names,
};

/// Whether a checkpoint may be removed although a pointer stands for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// What `last` or `best` points to is kept.
    #[default]
    KeepPointedAt,
    /// It is removed, and the pointers with it.
    None,
}

impl CheckpointDir {
    /// Removes a checkpoint: it is renamed first, so that a half-deleted one is never taken for a whole.
    ///
    /// # Errors
    /// [`CheckpointError::Protected`] if a pointer stands for it; if it does not exist or cannot be removed.
    pub fn remove(&self, name: &str, protection: Protection) -> Result<(), CheckpointError> {
        names::check_checkpoint(name)?;
        let path = self.path_of(name);
        if !path.is_dir() {
            return Err(CheckpointError::foreign(
                path,
                "there is no such directory; it may be removed already",
            ));
        }
        let _lock = self.lock()?;
        match protection {
            Protection::KeepPointedAt => {
                for pointer in Pointer::ALL {
                    if self.pointer(pointer)?.as_deref() == Some(name) {
                        return Err(CheckpointError::Protected {
                            path,
                            pointer: pointer.file_name(),
                        });
                    }
                }
            }
            Protection::None => self.unpoint(name)?,
        }
        let hidden = self.root().join(format!("{REMOVED}{name}"));
        fs::rename(&path, &hidden).context("remove", &path)?;
        sync_dir(self.root())?;
        delete(&hidden).context("remove", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Snapshot;

    #[test]
    fn pointed_at_checkpoints_stay_unless_told() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        for name in ["a", "b", "c"] {
            dir.write(name, &Snapshot::default()).unwrap();
        }
        dir.point(Pointer::Last, "c").unwrap();
        dir.point(Pointer::Best, "b").unwrap();
        dir.remove("a", Protection::KeepPointedAt).unwrap();
        assert!(!dir.path_of("a").exists());
        for (name, pointer) in [("b", "`best`"), ("c", "`last`")] {
            let error = dir.remove(name, Protection::default()).unwrap_err().to_string();
            assert!(error.contains(pointer) && dir.path_of(name).exists(), "{error}");
        }
        dir.remove("b", Protection::None).unwrap();
        assert!(!dir.path_of("b").exists() && !temp.path().join("best").exists());
        assert_eq!(dir.pointer(Pointer::Last).unwrap().as_deref(), Some("c"));
    }

    #[test]
    fn nothing_outside_can_be_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path().join("checkpoints"));
        fs::create_dir_all(temp.path().join("checkpoints")).unwrap();
        fs::create_dir(temp.path().join("data")).unwrap();
        for name in ["../data", "..", ".", "", "absent"] {
            assert!(dir.remove(name, Protection::None).is_err(), "{name}");
        }
        assert!(temp.path().join("data").exists());
    }
}
