use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use burn::tensor::TensorData;
use serde_json::Value;

use super::{
    CheckpointDir, CheckpointError, Pointer, Snapshot,
    dir::REPLACED,
    durable::{parent_of, read_file},
    error::IoContext,
    manifest::Manifest,
    names,
    pointer::read_pointer,
    tensor_file::{ShardIndex, TensorFile, read_sharded},
};

/// The longest `state.json` that is read.
const MAX_STATE: u64 = 1 << 30;

/// A checkpoint on disk whose files are those that were written.
///
/// Reading one executes nothing. [`open`](Self::open) checks all sizes and checksums before anything but the
/// manifest is parsed; the methods then check each file's own structure.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint in a directory and verifies every file of it.
    ///
    /// Files in the directory that the manifest does not list are never read; a warning names them.
    ///
    /// # Errors
    /// If the path is no checkpoint, if its format is unknown, or if a file is missing, cut short or altered.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let path = path.into();
        let manifest = Manifest::read(&path)?;
        manifest.verify(&path, |_| true)?;
        let checkpoint = Self { path, manifest };
        let unlisted = checkpoint.unlisted()?;
        if !unlisted.is_empty() {
            tracing::warn!(path = %checkpoint.path.display(), files = ?unlisted, "files beside the checkpoint's are ignored");
        }
        Ok(checkpoint)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of checkpoints that it is in: where a resumed run goes on writing.
    pub fn siblings(&self) -> CheckpointDir {
        CheckpointDir::new(parent_of(&self.path))
    }

    /// What its manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads everything.
    pub fn snapshot(&self) -> Result<Snapshot, CheckpointError> {
        let mut extra = BTreeMap::new();
        for stem in self.extra_stems()? {
            let tensors = self.tensors(&stem)?;
            extra.insert(stem, tensors);
        }
        Ok(Snapshot {
            weights: self.weights()?,
            optimizer: self.optimizer()?,
            extra,
            state: self.state()?,
        })
    }

    /// Reads the parameters and buffers by path.
    pub fn weights(&self) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        self.tensors(names::MODEL)
    }

    /// Reads the optimizer's tensors by name.
    pub fn optimizer(&self) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        self.tensors(names::OPTIMIZER)
    }

    /// Reads one of the further tensor files, such as `ema`; `None` if the checkpoint has none of this name.
    pub fn extra(&self, stem: &str) -> Result<Option<BTreeMap<String, TensorData>>, CheckpointError> {
        if self.extra_stems()?.contains(stem) {
            self.tensors(stem).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Reads the state.
    pub fn state(&self) -> Result<Value, CheckpointError> {
        let path = self.path.join(names::STATE);
        let bytes = read_file(&path, MAX_STATE)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::damaged(path, format!("it is not JSON: {error}")))
    }

    /// The tensor files of a stem: one, or its shards.
    pub(super) fn files_of(&self, stem: &str) -> Result<Vec<String>, CheckpointError> {
        let index = names::index_file(stem);
        if !self.manifest.files.contains_key(&index) {
            return Ok(vec![names::tensor_file(stem)]);
        }
        let path = self.path.join(index);
        let shards: Vec<_> = ShardIndex::read(&path)?
            .shards()
            .into_iter()
            .map(str::to_owned)
            .collect();
        // Only what the manifest lists was verified.
        match shards
            .iter()
            .find(|shard| !self.manifest.files.contains_key(*shard))
        {
            Some(shard) => Err(CheckpointError::damaged(
                path,
                format!("the manifest does not list its shard '{shard}'"),
            )),
            None => Ok(shards),
        }
    }

    /// The stems of the tensor files that are neither the model's nor the optimizer's.
    pub(super) fn extra_stems(&self) -> Result<BTreeSet<String>, CheckpointError> {
        let files = self.manifest.files.keys();
        let mut shards = BTreeSet::new();
        for stem in files
            .clone()
            .filter(|file| names::is_index(file))
            .filter_map(|file| names::stem_of(file))
        {
            shards.extend(self.files_of(stem)?);
        }
        let own = [names::MODEL, names::OPTIMIZER];
        let stems = files
            .filter(|file| !shards.contains(*file))
            .filter_map(|file| names::stem_of(file));
        Ok(stems
            .filter(|stem| !own.contains(stem))
            .map(str::to_owned)
            .collect())
    }

    /// Visible entries of the directory that the manifest does not list.
    pub(super) fn unlisted(&self) -> Result<Vec<String>, CheckpointError> {
        let mut unlisted = Vec::new();
        for entry in fs::read_dir(&self.path).context("read", &self.path)? {
            let name = entry
                .context("read", &self.path)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if name != names::MANIFEST && !name.starts_with('.') && !self.manifest.files.contains_key(&name) {
                unlisted.push(name);
            }
        }
        unlisted.sort();
        Ok(unlisted)
    }

    fn tensors(&self, stem: &str) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        self.files_of(stem)?;
        let index = names::index_file(stem);
        if self.manifest.files.contains_key(&index) {
            read_sharded(&self.path.join(index))
        } else {
            TensorFile::open(&self.path.join(names::tensor_file(stem)))?.read()
        }
    }
}

/// Reads weights alone, for inference or as a start for training.
///
/// `path` is a checkpoint (of which only the model's files are verified and read), a pointer such as
/// `checkpoints/best`, a `.safetensors` file from anywhere, or a Hugging Face `*.safetensors.index.json` with its
/// shards beside it. The last two carry no checksums, so only their structure is checked.
pub fn open_weights(path: impl AsRef<Path>) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
    let path = locate(path.as_ref())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() || !path.exists() {
        let manifest = Manifest::read(&path)?;
        // The index, if there is one, says which files are the model's; it is verified before it is read.
        let index = names::index_file(names::MODEL);
        manifest.verify(&path, |file| {
            file == index || file == names::tensor_file(names::MODEL)
        })?;
        let checkpoint = Checkpoint { path, manifest };
        let files = checkpoint.files_of(names::MODEL)?;
        checkpoint
            .manifest
            .verify(&checkpoint.path, |file| files.iter().any(|own| own == file))?;
        checkpoint.weights()
    } else if name.ends_with(".index.json") {
        read_sharded(&path)
    } else if name.ends_with(".safetensors") {
        TensorFile::open(&path)?.read()
    } else {
        let reason = "it is a file; weights are in a checkpoint's directory, a '.safetensors' file or a \
                      '.safetensors.index.json' file";
        Err(CheckpointError::foreign(path, reason))
    }
}

/// Where a path leads: through a pointer file, and to the hidden place of a checkpoint that was being replaced.
pub(super) fn locate(path: &Path) -> Result<PathBuf, CheckpointError> {
    let is_pointer = Pointer::ALL
        .iter()
        .any(|pointer| path.file_name().is_some_and(|name| name == pointer.file_name()));
    let target = if is_pointer { read_pointer(path)? } else { None };
    let path = target.map_or_else(|| path.to_owned(), |name| parent_of(path).join(name));
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let replaced = parent_of(&path).join(format!("{REPLACED}{name}"));
            Ok(if replaced.is_dir() { replaced } else { path })
        }
        _ => Ok(path),
    }
}
