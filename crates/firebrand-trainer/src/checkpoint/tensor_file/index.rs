use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use super::{TensorFile, read::MAX_HEADER};
use crate::checkpoint::{
    CheckpointError,
    durable::{parent_of, read_file},
    names::check_plain,
};

/// `*.safetensors.index.json`: which file of a sharded set holds which tensor, in Hugging Face's layout.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::checkpoint) struct ShardIndex {
    #[serde(default)]
    pub metadata: serde_json::Value,
    pub weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads an index; the files that it names must be plain names beside it.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let bytes = read_file(path, MAX_HEADER as u64)?;
        let index: Self = serde_json::from_slice(&bytes)
            .map_err(|error| CheckpointError::damaged(path, format!("it is no index of shards: {error}")))?;
        for file in index.shards() {
            check_plain("shard", file).map_err(|error| CheckpointError::damaged(path, error.to_string()))?;
        }
        Ok(index)
    }

    /// The names of the files, each once.
    pub fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }
}

/// Reads the tensors of all shards of an index. Each shard must hold exactly what the index says.
pub(in crate::checkpoint) fn read_sharded(
    index_path: &Path,
) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
    let index = ShardIndex::read(index_path)?;
    let mut open = Vec::new();
    // All headers are checked before the first tensor is read.
    for shard in index.shards() {
        let path = parent_of(index_path).join(shard);
        if !path.exists() {
            let reason = format!("the file is missing, and '{}' names it", index_path.display());
            return Err(CheckpointError::damaged(path, reason));
        }
        let file = TensorFile::open(&path)?;
        let found: BTreeSet<_> = file.names().collect();
        let listed = index.weight_map.iter().filter(|(_, file)| *file == shard);
        let listed: BTreeSet<_> = listed.map(|(name, _)| name.as_str()).collect();
        let names = |names: Vec<&&str>| names.iter().map(|name| (**name).to_owned()).collect::<Vec<_>>();
        let missing = names(listed.difference(&found).collect());
        let unknown = names(found.difference(&listed).collect());
        if !missing.is_empty() || !unknown.is_empty() {
            let context = format!("'{}' and '{}' disagree", path.display(), index_path.display());
            return Err(CheckpointError::Names {
                context,
                missing,
                unknown,
                unused: vec![],
            });
        }
        open.push(file);
    }
    let mut tensors = BTreeMap::new();
    for file in open {
        tensors.append(&mut file.read()?);
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::checkpoint::{shard_file, write_tensor_file};

    fn sharded(dir: &Path) -> std::path::PathBuf {
        let mut weight_map = BTreeMap::new();
        for shard in 0..2 {
            let file = shard_file("model", shard, 2);
            let tensors: BTreeMap<_, _> = (0..2)
                .map(|i| {
                    (
                        format!("layers.{shard}.{i}"),
                        TensorData::from([shard as f32, i as f32]),
                    )
                })
                .collect();
            write_tensor_file(&dir.join(&file), &tensors).unwrap();
            weight_map.extend(tensors.into_keys().map(|name| (name, file.clone())));
        }
        let index = dir.join("model.safetensors.index.json");
        let metadata = serde_json::json!({ "total_size": 32 });
        fs::write(
            &index,
            serde_json::to_vec(&ShardIndex { metadata, weight_map }).unwrap(),
        )
        .unwrap();
        index
    }

    #[test]
    fn shards_are_read_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = read_sharded(&sharded(dir.path())).unwrap();
        assert_eq!(tensors.len(), 4);
        assert_eq!(tensors["layers.1.0"], TensorData::from([1.0f32, 0.0]));
    }

    #[test]
    fn shards_that_disagree_with_the_index_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = sharded(dir.path());
        let original = fs::read_to_string(&path).unwrap();
        let refuse = |text: String, reason: &str| {
            fs::write(&path, text).unwrap();
            let error = read_sharded(&path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        refuse(
            original.replace("layers.0.0", "layers.0.7"),
            "missing: 'layers.0.7'; unknown: 'layers.0.0'",
        );
        refuse(
            original.replace("model-00001", "../model-00001"),
            "a plain name is needed",
        );
        refuse(
            original.replace("model-00001", "model-00009"),
            "the file is missing",
        );
        refuse("{}".into(), "no index of shards");
        refuse("weights".into(), "no index of shards");
    }
}
