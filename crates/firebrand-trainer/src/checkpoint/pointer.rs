use std::{fmt, fs, io, path::Path};

use super::{
    CheckpointDir, CheckpointError,
    dir::TEMPORARY,
    durable::{create_file, parent_of, read_file, replace_file, sync_dir},
    error::IoContext,
    manifest::Manifest,
    names,
};

/// A name that stands for one checkpoint: a file in the directory of the checkpoints that holds the other's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pointer {
    /// `checkpoints/last`: the newest one that was saved.
    Last,
    /// `checkpoints/best`: the best one by the monitored metric.
    Best,
}

impl Pointer {
    /// All pointers.
    pub const ALL: [Self; 2] = [Self::Last, Self::Best];

    /// The name of its file.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Best => "best",
        }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}

impl CheckpointDir {
    /// Lets `last` or `best` stand for a checkpoint of this directory, replacing the file as a whole.
    ///
    /// # Errors
    /// If there is no such checkpoint, or if the file cannot be written; the pointer is unchanged then.
    pub fn point(&self, pointer: Pointer, name: &str) -> Result<(), CheckpointError> {
        names::check_checkpoint(name)?;
        // What a pointer names exists: a reader may rely on it.
        Manifest::read(&self.path_of(name))?;
        let _lock = self.lock()?;
        let path = self.root().join(pointer.file_name());
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            return Err(CheckpointError::foreign(
                path,
                "a directory is in the way of the pointer; move it away",
            ));
        }
        replace_file(&path, TEMPORARY, |file| {
            create_file(file, |file| Ok(file.write_all(format!("{name}\n").as_bytes())?))
        })
    }

    /// The name of the checkpoint that a pointer stands for, or `None` if there is no such pointer.
    ///
    /// # Errors
    /// If the file exists and is not a pointer.
    pub fn pointer(&self, pointer: Pointer) -> Result<Option<String>, CheckpointError> {
        read_pointer(&self.root().join(pointer.file_name()))
    }

    /// Removes the pointers that stand for a checkpoint.
    pub(super) fn unpoint(&self, name: &str) -> Result<(), CheckpointError> {
        for pointer in Pointer::ALL {
            if self.pointer(pointer)?.as_deref() == Some(name) {
                let path = self.root().join(pointer.file_name());
                fs::remove_file(&path).context("remove", &path)?;
            }
        }
        sync_dir(self.root())
    }
}

/// Reads a pointer file; `None` if there is none, or a checkpoint's directory in its place.
pub(super) fn read_pointer(path: &Path) -> Result<Option<String>, CheckpointError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("read", path),
        Ok(metadata) if metadata.is_dir() => return Ok(None),
        Ok(_) => {}
    }
    let damaged = |reason: String| CheckpointError::damaged(path, reason);
    let text = String::from_utf8(read_file(path, 1024)?)
        .map_err(|_| damaged("it is not the text of a pointer".into()))?;
    let name = text.trim_end_matches(['\n', '\r']);
    names::check_checkpoint(name).map_err(|error| {
        damaged(format!(
            "it names no checkpoint of '{}': {error}",
            parent_of(path).display()
        ))
    })?;
    Ok(Some(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Snapshot;

    #[test]
    fn it_is_a_line_of_text_that_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        assert_eq!(dir.pointer(Pointer::Last).unwrap(), None);
        for name in ["epoch=000-step=000001", "epoch=000-step=000002"] {
            dir.write(name, &Snapshot::default()).unwrap();
            dir.point(Pointer::Last, name).unwrap();
            assert_eq!(dir.pointer(Pointer::Last).unwrap().as_deref(), Some(name));
            assert_eq!(
                fs::read_to_string(temp.path().join("last")).unwrap(),
                format!("{name}\n")
            );
        }
        assert_eq!(dir.pointer(Pointer::Best).unwrap(), None);
    }

    #[test]
    fn it_never_names_what_is_not_there() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        assert!(dir.point(Pointer::Best, "epoch=000-step=000001").is_err());
        assert!(dir.point(Pointer::Best, "../elsewhere").is_err());
        assert!(!temp.path().join("best").exists());
    }

    #[test]
    fn damaged_pointers_are_named() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        for content in [&b""[..], b"../x", b"a\nb", b"\xff\xfe", &[b'x'; 2000]] {
            fs::write(temp.path().join("last"), content).unwrap();
            let error = dir.pointer(Pointer::Last).unwrap_err().to_string();
            assert!(error.contains("last' is damaged"), "{error}");
        }
    }
}
