use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use burn::tensor::TensorData;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    CheckpointDir, CheckpointError, Snapshot,
    dir::{DirectoryLock, TEMPORARY, delete},
    durable::{self, FileEntry, create_file, sync_dir},
    error::IoContext,
    json,
    manifest::Manifest,
    names,
    tensor_file::{ShardIndex, write_tensor_file},
};

/// What a write left on the device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Written {
    /// The name of the checkpoint.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// The sum of the sizes of its files, without the manifest.
    pub num_bytes: u64,
    /// From the creation of the draft until everything was on the device.
    pub duration: Duration,
}

impl CheckpointDir {
    /// Writes a checkpoint, which appears as a whole or not at all, and replaces one of the same name.
    ///
    /// Equal snapshots give equal bytes. When this returns, the checkpoint survives a power failure.
    ///
    /// # Errors
    /// If a file cannot be written; what was written is removed then, and the earlier checkpoints are untouched.
    pub fn write(&self, name: &str, snapshot: &Snapshot) -> Result<Written, CheckpointError> {
        let mut draft = self.draft(name)?;
        draft.write_tensors(names::MODEL, &snapshot.weights)?;
        draft.write_tensors(names::OPTIMIZER, &snapshot.optimizer)?;
        for (stem, tensors) in &snapshot.extra {
            draft.write_tensors(stem, tensors)?;
        }
        draft.write_state(&snapshot.state)?;
        draft.commit()
    }

    /// Begins a checkpoint that is written file by file, by several processes if need be.
    ///
    /// The directory is locked until the draft is committed or dropped.
    pub fn draft(&self, name: &str) -> Result<Draft<'_>, CheckpointError> {
        names::check_checkpoint(name)?;
        let start = Instant::now();
        fs::create_dir_all(self.root()).context("create the directory", self.root())?;
        let lock = self.lock()?;
        let temporary = durable::temporary_dir(self.root(), TEMPORARY)?;
        Ok(Draft {
            dir: self,
            name: name.to_owned(),
            files: BTreeMap::new(),
            state: Value::Null,
            start,
            temporary,
            _lock: lock,
        })
    }
}

/// A checkpoint that is being written in a hidden directory; dropping it removes that.
#[derive(Debug)]
pub struct Draft<'a> {
    dir: &'a CheckpointDir,
    name: String,
    files: BTreeMap<String, FileEntry>,
    state: Value,
    start: Instant,
    // Fields are dropped in this order: the directory is removed before others may write.
    temporary: TempDir,
    _lock: DirectoryLock,
}

impl Draft<'_> {
    /// The hidden directory. Other ranks write their shards here, with [`write_tensor_file`].
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Writes `<stem>.safetensors`. The stems `model` and `optimizer` belong to every checkpoint.
    pub fn write_tensors(
        &mut self,
        stem: &str,
        tensors: &BTreeMap<String, TensorData>,
    ) -> Result<(), CheckpointError> {
        names::check_stem(stem)?;
        let file = names::tensor_file(stem);
        self.check_new(&file)?;
        let entry =
            write_tensor_file(&self.path().join(&file), tensors).map_err(|error| self.outside(error))?;
        self.record(&file, entry)
    }

    /// Writes `<stem>.safetensors.index.json` for shards that [`record`](Self::record) took in.
    ///
    /// `weight_map` gives the file of each tensor, and `total_size` is the number of bytes of all tensors together.
    pub fn write_index(
        &mut self,
        stem: &str,
        weight_map: BTreeMap<String, String>,
        total_size: u64,
    ) -> Result<(), CheckpointError> {
        names::check_stem(stem)?;
        if let Some(missing) = weight_map.values().find(|file| !self.files.contains_key(*file)) {
            return Err(CheckpointError::Incomplete {
                name: self.name.clone(),
                missing: missing.clone(),
            });
        }
        let index = ShardIndex {
            metadata: serde_json::json!({ "total_size": total_size }),
            weight_map,
        };
        let invalid = |error: serde_json::Error| CheckpointError::InvalidState {
            reason: error.to_string(),
        };
        self.write_json(
            &names::index_file(stem),
            &serde_json::to_value(index).map_err(invalid)?,
        )
    }

    /// Writes `state.json`.
    pub fn write_state(&mut self, state: &Value) -> Result<(), CheckpointError> {
        self.write_json(names::STATE, state)?;
        self.state = state.clone();
        Ok(())
    }

    /// Takes in a file that was written into [`path`](Self::path) by other means, such as another rank's shard.
    pub fn record(&mut self, file: &str, entry: FileEntry) -> Result<(), CheckpointError> {
        names::check_plain("file name", file)?;
        self.check_new(file)?;
        self.files.insert(file.to_owned(), entry);
        Ok(())
    }

    /// Makes the checkpoint visible under its name.
    pub fn commit(self) -> Result<Written, CheckpointError> {
        let written_as = |stem| {
            [names::tensor_file(stem), names::index_file(stem)]
                .iter()
                .any(|file| self.files.contains_key(file))
        };
        let missing = [names::MODEL, names::OPTIMIZER]
            .into_iter()
            .find(|stem| !written_as(stem));
        let missing = missing.map(names::tensor_file);
        let state = (!self.files.contains_key(names::STATE)).then(|| names::STATE.to_owned());
        if let Some(missing) = missing.or(state) {
            return Err(CheckpointError::Incomplete {
                name: self.name,
                missing,
            });
        }
        let num_bytes = self.files.values().map(|entry| entry.size).sum();
        let manifest = Manifest::new(&self.state, self.files.clone()).to_bytes()?;
        create_file(&self.path().join(names::MANIFEST), |file| {
            Ok(file.write_all(&manifest)?)
        })
        .map_err(|error| self.outside(error))?;
        sync_dir(self.path()).map_err(|error| self.outside(error))?;
        let path = self.dir.path_of(&self.name);
        self.publish(&path)?;
        let Self {
            dir,
            name,
            start,
            temporary,
            _lock,
            ..
        } = self;
        // The directory has its final name, so there is nothing left to remove on drop.
        let _ = temporary.keep();
        sync_dir(dir.root())?;
        let replaced = dir.replaced_path(&name);
        if replaced.symlink_metadata().is_ok()
            && let Err(error) = delete(&replaced)
        {
            tracing::warn!(path = %replaced.display(), %error, "a replaced checkpoint could not be deleted");
        }
        Ok(Written {
            name,
            path,
            num_bytes,
            duration: start.elapsed(),
        })
    }

    /// Renames the draft. One of the same name waits under a hidden name meanwhile, where `settle` and
    /// [`CheckpointDir::list`] find it if this process dies in between.
    fn publish(&self, path: &Path) -> Result<(), CheckpointError> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_dir() => Err(CheckpointError::foreign(
                path,
                "a file is in the way of the checkpoint; move it away",
            )),
            Ok(_) => {
                let replaced = self.dir.replaced_path(&self.name);
                fs::rename(path, &replaced).context("replace", path)?;
                fs::rename(self.path(), path).map_err(|error| {
                    if let Err(error) = fs::rename(&replaced, path) {
                        tracing::warn!(path = %replaced.display(), %error, "the earlier checkpoint is kept here");
                    }
                    CheckpointError::Io { action: "rename a finished checkpoint to", path: path.to_owned(), source: error }
                })
            }
            Err(_) => fs::rename(self.path(), path).context("rename a finished checkpoint to", path),
        }
    }

    fn write_json(&mut self, file: &str, value: &Value) -> Result<(), CheckpointError> {
        self.check_new(file)?;
        let bytes = json::to_bytes(value)?;
        let entry = create_file(&self.path().join(file), |file| Ok(file.write_all(&bytes)?))
            .map_err(|error| self.outside(error))?;
        self.record(file, entry)
    }

    fn check_new(&self, file: &str) -> Result<(), CheckpointError> {
        // Names that differ in case only are one file on some systems.
        if file == names::MANIFEST || self.files.keys().any(|other| other.eq_ignore_ascii_case(file)) {
            let reason = "the checkpoint has a file of this name already";
            return Err(CheckpointError::InvalidName {
                what: "file name",
                name: file.to_owned(),
                reason,
            });
        }
        Ok(())
    }

    fn outside(&self, error: CheckpointError) -> CheckpointError {
        error.relocated(self.path(), &self.dir.path_of(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_dropped_draft_leaves_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        let mut draft = dir.draft("epoch=000-step=000001").unwrap();
        draft.write_state(&json!({})).unwrap();
        let path = draft.path().to_owned();
        assert!(path.join("state.json").exists());
        let error = draft.commit().unwrap_err().to_string();
        assert!(error.contains("has no model.safetensors"), "{error}");
        assert!(!path.exists() && dir.list().unwrap().is_empty());
    }

    #[test]
    fn names_that_would_leave_the_directory_or_collide_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        for name in ["", "..", "a/b", ".x", "last", "best"] {
            assert!(dir.draft(name).is_err(), "{name}");
        }
        let mut draft = dir.draft("x").unwrap();
        draft.write_tensors("ema", &BTreeMap::new()).unwrap();
        for stem in ["ema", "EMA", "model-00001-of-00002", "../ema"] {
            assert!(draft.write_tensors(stem, &BTreeMap::new()).is_err(), "{stem}");
        }
        assert!(
            draft
                .record(
                    "manifest.json",
                    FileEntry {
                        size: 0,
                        sha256: String::new()
                    }
                )
                .is_err()
        );
    }

    #[test]
    fn a_file_in_the_way_is_not_destroyed() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("notes"), "mine").unwrap();
        let error = CheckpointDir::new(temp.path())
            .write("notes", &Snapshot::default())
            .unwrap_err();
        assert!(error.to_string().contains("in the way"), "{error}");
        assert_eq!(fs::read_to_string(temp.path().join("notes")).unwrap(), "mine");
    }

    #[cfg(unix)]
    #[test]
    fn others_may_read_what_the_user_lets_them() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        let path = dir.write("x", &Snapshot::default()).unwrap().path;
        let plain = temp.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }
}
