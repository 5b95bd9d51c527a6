use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    CheckpointError,
    durable::{FileEntry, hash_file, read_file, sha256},
    error::IoContext,
    json, names,
};

/// The name of the format.
const FORMAT: &str = "firebrand-checkpoint";
/// The version of the format that is written and read.
const VERSION: u64 = 1;
/// The Burn release whose module paths and layouts the tensors have.
const BURN_VERSION: &str = "0.22.1";
/// The longest manifest that is read: some hundred thousand files.
const MAX_MANIFEST: u64 = 64 << 20;
const CHECKSUM: &str = "checksum";

/// `manifest.json`: what a checkpoint consists of. It is written last, so a checkpoint without one is unfinished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    format: String,
    version: u64,
    /// The version of Firebrand that wrote the checkpoint.
    pub firebrand: String,
    /// The version of Burn that it was built with.
    pub burn: String,
    /// `epoch` of the state, if it has one.
    pub epoch: Option<u64>,
    /// `global_step` of the state, if it has one: optimizer updates so far.
    pub global_step: Option<u64>,
    /// Every other file of the checkpoint by name.
    pub files: BTreeMap<String, FileEntry>,
}

impl Manifest {
    /// A manifest of these files, with the counters that the state has at its top level.
    pub(super) fn new(state: &Value, files: BTreeMap<String, FileEntry>) -> Self {
        Self {
            format: FORMAT.into(),
            version: VERSION,
            firebrand: env!("CARGO_PKG_VERSION").into(),
            burn: BURN_VERSION.into(),
            epoch: state.get("epoch").and_then(Value::as_u64),
            global_step: state.get("global_step").and_then(Value::as_u64),
            files,
        }
    }

    /// The version of the format.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The file's content, with a checksum of itself.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let invalid = |error: serde_json::Error| CheckpointError::InvalidState {
            reason: error.to_string(),
        };
        let mut value = serde_json::to_value(self).map_err(invalid)?;
        let checksum = sha256(&json::to_bytes(&value)?);
        value[CHECKSUM] = Value::from(checksum);
        json::to_bytes(&value)
    }

    /// Reads the manifest of a directory and checks everything that it says about itself.
    pub(super) fn read(dir: &Path) -> Result<Self, CheckpointError> {
        check_directory(dir)?;
        let path = dir.join(names::MANIFEST);
        check_regular(&path)?;
        let damaged = |reason: String| CheckpointError::damaged(&path, reason);
        let bytes = read_file(&path, MAX_MANIFEST)?;
        let mut value: Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(format!("it is not JSON: {error}")))?;
        if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(damaged(format!("it is not of the format '{FORMAT}'")));
        }
        match value.get("version") {
            Some(version) if version.as_u64() == Some(VERSION) => {}
            Some(version) => {
                let found = version.to_string();
                return Err(CheckpointError::UnsupportedVersion {
                    path,
                    found,
                    supported: VERSION,
                });
            }
            None => return Err(damaged("it has no format version".into())),
        }
        let checksum = value.as_object_mut().and_then(|map| map.remove(CHECKSUM));
        let content = json::to_bytes(&value).map_err(|error| damaged(error.to_string()))?;
        if checksum.as_ref().and_then(Value::as_str) != Some(sha256(&content).as_str()) {
            return Err(damaged("its checksum differs: it was altered".into()));
        }
        let manifest: Self = serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?;
        for name in manifest.files.keys() {
            names::check_plain("file name", name).map_err(|error| damaged(error.to_string()))?;
        }
        let has = |name: &str| manifest.files.contains_key(name);
        for stem in [names::MODEL, names::OPTIMIZER] {
            if !has(&names::tensor_file(stem)) && !has(&names::index_file(stem)) {
                return Err(damaged(format!("it lists no '{}'", names::tensor_file(stem))));
            }
        }
        if !has(names::STATE) {
            return Err(damaged(format!("it lists no '{}'", names::STATE)));
        }
        Ok(manifest)
    }

    /// Checks that the files of which `wanted` approves are in the directory with the sizes and checksums listed here.
    pub(super) fn verify(&self, dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), CheckpointError> {
        let wanted: Vec<_> = self.files.iter().filter(|(name, _)| wanted(name)).collect();
        // Sizes first: most damage is found without reading gigabytes.
        for (name, entry) in &wanted {
            let path = dir.join(name);
            let size = check_regular(&path)?;
            if size != entry.size {
                let reason = format!("it has {size} bytes, and the manifest says {}", entry.size);
                return Err(CheckpointError::damaged(path, reason));
            }
        }
        for (name, entry) in wanted {
            let path = dir.join(name);
            if hash_file(&path)? != *entry {
                return Err(CheckpointError::damaged(
                    path,
                    "its checksum differs from the manifest's: it was altered",
                ));
            }
        }
        Ok(())
    }
}

/// Explains what is in the place of a checkpoint's directory.
fn check_directory(dir: &Path) -> Result<(), CheckpointError> {
    let foreign = |reason: &str| Err(CheckpointError::foreign(dir, reason));
    match fs::metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => foreign("there is nothing at this path"),
        Err(error) => Err(error).context("read", dir),
        Ok(metadata) if !metadata.is_dir() => {
            foreign("it is a file, and a checkpoint is a directory with a manifest.json")
        }
        Ok(_) if dir.join(names::MANIFEST).symlink_metadata().is_ok() => Ok(()),
        Ok(_) if fs::read_dir(dir).context("read", dir)?.next().is_none() => {
            foreign("the directory is empty")
        }
        Ok(_) => {
            foreign("the directory has no manifest.json: it holds something else, or its writing never ended")
        }
    }
}

/// The size of a file that must be one itself: a link could lead out of the checkpoint, a pipe never ends.
fn check_regular(path: &Path) -> Result<u64, CheckpointError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(metadata.len()),
        Ok(metadata) if metadata.is_symlink() => Err(CheckpointError::damaged(
            path,
            "it is a symbolic link, and a checkpoint holds its own files",
        )),
        Ok(_) => Err(CheckpointError::damaged(path, "it is not a regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CheckpointError::damaged(path, "the file is missing"))
        }
        Err(error) => Err(error).context("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn manifest() -> Manifest {
        let entry = FileEntry {
            size: 3,
            sha256: "0".repeat(64),
        };
        let files = ["model.safetensors", "optimizer.safetensors", "state.json"];
        Manifest::new(
            &json!({"epoch": 3, "global_step": 1200}),
            files
                .into_iter()
                .map(|name| (name.to_owned(), entry.clone()))
                .collect(),
        )
    }

    /// A manifest after a change that keeps its checksum right.
    fn read_changed(change: impl FnOnce(&mut Value)) -> Result<Manifest, CheckpointError> {
        let mut value = serde_json::to_value(manifest()).unwrap();
        change(&mut value);
        value[CHECKSUM] = json!(sha256(&json::to_bytes(&value).unwrap()));
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(names::MANIFEST), json::to_bytes(&value).unwrap()).unwrap();
        Manifest::read(dir.path())
    }

    #[test]
    fn it_comes_back_with_its_counters() {
        let read = read_changed(|_| {}).unwrap();
        assert_eq!(read, manifest());
        assert_eq!((read.epoch, read.global_step), (Some(3), Some(1200)));
    }

    #[test]
    fn contents_that_cannot_be_trusted_are_refused() {
        let refuse = |change: &dyn Fn(&mut Value), reason: &str| {
            let error = read_changed(change).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("manifest.json"),
                "{error}"
            );
        };
        refuse(&|value| value["version"] = json!(2), "format version 2");
        refuse(&|value| value["version"] = json!("1"), "format version \"1\"");
        refuse(&|value| value["format"] = json!("other"), "not of the format");
        refuse(
            &|value| value["files"] = json!({}),
            "lists no 'model.safetensors'",
        );
        for name in ["../model.safetensors", "/etc/passwd", ".hidden", "a/b", ""] {
            let entry = json!({"size": 3, "sha256": "0"});
            refuse(&|value| value["files"][name] = entry.clone(), "file name");
        }
        refuse(
            &|value| value["files"]["x"] = json!({"size": -1, "sha256": "0"}),
            "invalid",
        );
    }

    #[test]
    fn the_version_of_burn_is_the_one_that_is_linked() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
        match fs::read_to_string(&lock) {
            Ok(text) => assert!(text.contains(&format!("name = \"burn\"\nversion = \"{BURN_VERSION}\"\n"))),
            Err(error) => println!("skipped: {} cannot be read: {error}", lock.display()),
        }
    }
}
