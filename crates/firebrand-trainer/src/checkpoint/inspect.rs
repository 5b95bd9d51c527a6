use std::{collections::BTreeMap, path::Path, path::PathBuf};

use serde::Serialize;

use super::{
    Checkpoint, CheckpointError, FileEntry, names,
    read::locate,
    tensor_file::{TensorFile, TensorSummary},
};

/// What is in a checkpoint, without its data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The directory.
    pub path: PathBuf,
    /// The version of the checkpoint format.
    pub version: u64,
    /// The version of Firebrand that wrote it.
    pub firebrand: String,
    /// The version of Burn that it was built with.
    pub burn: String,
    /// The epoch that it was taken in, from 0.
    pub epoch: Option<u64>,
    /// The number of optimizer updates before it.
    pub global_step: Option<u64>,
    /// Every file but the manifest, by name.
    pub files: BTreeMap<String, FileEntry>,
    /// The sum of the sizes of the files, in bytes.
    pub num_bytes: u64,
    /// The tensors by the name that their files have in common: `model`, `optimizer`, `ema`; sorted by name.
    pub tensors: BTreeMap<String, Vec<TensorSummary>>,
    /// The top-level keys of the state.
    pub state_keys: Vec<String>,
    /// Files in the directory that do not belong to the checkpoint.
    pub unlisted: Vec<String>,
}

impl Checkpoint {
    /// Describes the checkpoint; of tensor files only the headers are read.
    pub fn summary(&self) -> Result<Summary, CheckpointError> {
        let manifest = self.manifest();
        let mut tensors = BTreeMap::new();
        let own = [names::MODEL, names::OPTIMIZER].map(str::to_owned);
        for stem in own.into_iter().chain(self.extra_stems()?) {
            let mut summaries = Vec::new();
            for file in self.files_of(&stem)? {
                summaries.extend(TensorFile::open(&self.path().join(file))?.summaries());
            }
            summaries.sort_by(|a, b| a.name.cmp(&b.name));
            tensors.insert(stem, summaries);
        }
        let state = self.state()?;
        let mut state_keys: Vec<_> = state
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect();
        state_keys.sort();
        Ok(Summary {
            path: self.path().to_owned(),
            version: manifest.version(),
            firebrand: manifest.firebrand.clone(),
            burn: manifest.burn.clone(),
            epoch: manifest.epoch,
            global_step: manifest.global_step,
            files: manifest.files.clone(),
            num_bytes: manifest.files.values().map(|entry| entry.size).sum(),
            tensors,
            state_keys,
            unlisted: self.unlisted()?,
        })
    }
}

/// Verifies and describes the checkpoint at a path, or behind a pointer file such as `checkpoints/last`.
pub fn inspect(path: impl AsRef<Path>) -> Result<Summary, CheckpointError> {
    Checkpoint::open(locate(path.as_ref())?)?.summary()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{CheckpointDir, Pointer, Snapshot};
    use burn::tensor::TensorData;
    use serde_json::json;

    #[test]
    fn it_lists_files_tensors_and_counters() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        let mut snapshot = Snapshot::default();
        snapshot
            .weights
            .insert("net.weight".into(), TensorData::from([[1.0f32, 2.0, 3.0]]));
        snapshot
            .optimizer
            .insert("net.weight.time".into(), TensorData::from([7i64]));
        snapshot.extra.insert("ema".into(), snapshot.weights.clone());
        snapshot.state = json!({"global_step": 1200, "epoch": 3, "callbacks": {}});
        let path = dir.write("x", &snapshot).unwrap().path;
        dir.point(Pointer::Last, "x").unwrap();
        std::fs::write(path.join("notes.txt"), "mine").unwrap();

        let summary = inspect(temp.path().join("last")).unwrap();
        assert_eq!(
            (summary.epoch, summary.global_step, summary.version),
            (Some(3), Some(1200), 1)
        );
        assert_eq!(
            summary.files.keys().collect::<Vec<_>>(),
            [
                "ema.safetensors",
                "model.safetensors",
                "optimizer.safetensors",
                "state.json"
            ]
        );
        assert_eq!(
            summary.tensors.keys().collect::<Vec<_>>(),
            ["ema", "model", "optimizer"]
        );
        let weight = &summary.tensors["model"][0];
        assert_eq!(
            (weight.name.as_str(), weight.dtype.as_str(), &*weight.shape),
            ("net.weight", "f32", &[1, 3][..])
        );
        assert_eq!(summary.tensors["optimizer"][0].dtype, "i64");
        assert_eq!(summary.state_keys, ["callbacks", "epoch", "global_step"]);
        assert_eq!(summary.unlisted, ["notes.txt"]);
        assert_eq!(inspect(path).unwrap(), summary);
    }
}
