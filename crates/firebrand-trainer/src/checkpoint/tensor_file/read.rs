use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use burn::tensor::{DType, Shape, TensorData};
use safetensors::tensor::Metadata;
use serde::Serialize;

use super::dtype;
use crate::checkpoint::{CheckpointError, durable::open_regular, error::IoContext};

/// The longest header that is read and written, which is the limit of the `safetensors` crate.
pub(super) const MAX_HEADER: usize = 100_000_000;

/// The name, the element type and the shape of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TensorSummary {
    /// The path of the parameter or the name of the state.
    pub name: String,
    /// The element type as Burn spells it: `f32`, `bf16`, `i64`.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<usize>,
}

/// An open safetensors file whose header fits its length.
#[derive(Debug)]
pub(in crate::checkpoint) struct TensorFile {
    path: PathBuf,
    file: File,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    num_bytes: usize,
}

impl TensorFile {
    /// Reads the header; no size in it is believed before it agrees with the length of the file.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::damaged(path, reason);
        let (mut file, len) = open_regular(path)?;
        if len < 8 {
            return Err(damaged(format!(
                "it has {len} bytes, and a safetensors file has at least 8"
            )));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).context("read", path)?;
        let header_len = u64::from_le_bytes(length);
        if header_len > (len - 8).min(MAX_HEADER as u64) {
            return Err(damaged(format!(
                "it announces a header of {header_len} bytes and is {len} bytes long: it is cut short, or not a \
                 safetensors file"
            )));
        }
        let mut header = vec![0; header_len as usize];
        file.read_exact(&mut header).context("read", path)?;
        // This checks that the tensors cover the data without gaps and that dtype × shape gives each one's length.
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| damaged(format!("its header is invalid: {error}")))?;
        let expected = 8 + header_len + metadata.data_len() as u64;
        if expected != len {
            return Err(damaged(format!(
                "it is {len} bytes long, and its header describes {expected}"
            )));
        }
        let mut entries = Vec::new();
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else {
                continue;
            };
            let dtype = dtype::from_file(info.dtype).ok_or_else(|| CheckpointError::UnsupportedDType {
                path: path.to_owned(),
                tensor: name.clone(),
                dtype: info.dtype.to_string(),
                reason: "Burn has no such type; convert the file first",
            })?;
            let num_bytes = info.data_offsets.1 - info.data_offsets.0;
            entries.push(Entry {
                name,
                dtype,
                shape: info.shape.clone(),
                num_bytes,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            entries,
        })
    }

    /// The names of the tensors, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// What is in the file.
    pub fn summaries(&self) -> impl Iterator<Item = TensorSummary> {
        self.entries.iter().map(|entry| TensorSummary {
            name: entry.name.clone(),
            dtype: entry.dtype.name().to_owned(),
            shape: entry.shape.clone(),
        })
    }

    /// Reads all tensors, front to back.
    pub fn read(mut self) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
        let path = &self.path;
        let data_len: u64 = self.entries.iter().map(|entry| entry.num_bytes as u64).sum();
        let end = self.file.seek(SeekFrom::End(0)).context("read", path)?;
        self.file
            .seek(SeekFrom::Start(end.saturating_sub(data_len)))
            .context("read", path)?;
        let mut tensors = BTreeMap::new();
        for entry in self.entries {
            let mut bytes = dtype::allocate(entry.dtype, entry.num_bytes).ok_or_else(|| {
                CheckpointError::OutOfMemory {
                    path: path.clone(),
                    num_bytes: entry.num_bytes as u64,
                }
            })?;
            self.file.read_exact(&mut bytes).context("read", path)?;
            if entry.dtype.is_bool() && bytes.iter().any(|&byte| byte > 1) {
                let reason = format!(
                    "the Boolean tensor '{}' holds bytes other than 0 and 1",
                    entry.name
                );
                return Err(CheckpointError::damaged(path, reason));
            }
            let data = TensorData::try_from_bytes(bytes, Shape::from(entry.shape), entry.dtype)
                .map_err(|error| CheckpointError::damaged(path, format!("'{}': {error}", entry.name)))?;
            tensors.insert(entry.name, data);
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with this header and so many bytes after it.
    fn file(header: &str, data_len: usize) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data_len, 2);
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[track_caller]
    fn assert_refused(header: &str, data_len: usize, reason: &str) {
        let (_dir, path) = file(header, data_len);
        let error = TensorFile::open(&path)
            .and_then(TensorFile::read)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(reason) && error.contains("x.safetensors"),
            "{error}"
        );
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let entry = |dtype: &str, shape: &str, end: usize| {
            format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
        };
        assert_refused(&entry("F32", "[2]", 8), 7, "its header describes");
        assert_refused(&entry("F32", "[2]", 8), 9, "its header describes");
        assert_refused(&entry("F32", "[3]", 8), 8, "invalid");
        assert_refused(&entry("F64", "[2]", 8), 8, "invalid");
        assert_refused(&entry("F32", "[4611686018427387904, 4]", 0), 0, "overflow");
        assert_refused(&entry("F32", "[-1]", 4), 4, "header is invalid");
        assert_refused(&entry("X7", "[1]", 4), 4, "header is invalid");
        assert_refused(&entry("F8_E4M3", "[4]", 4), 4, "convert the file first");
        assert_refused(&entry("BOOL", "[4]", 4), 4, "other than 0 and 1");
        assert_refused("[1, 2]", 0, "header is invalid");
        assert_refused("not json", 0, "header is invalid");
        assert_refused("", 0, "header is invalid");
        let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
        assert_refused(overlap, 6, "invalid offset");
    }

    #[test]
    fn a_huge_announced_header_allocates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        for announced in [u64::MAX, u64::MAX - 8, 1 << 40, 9] {
            let mut bytes = announced.to_le_bytes().to_vec();
            bytes.extend([b' '; 8]);
            std::fs::write(&path, bytes).unwrap();
            let error = TensorFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("header of {announced} bytes")), "{error}");
        }
        std::fs::write(&path, [1; 7]).unwrap();
        assert!(
            TensorFile::open(&path)
                .unwrap_err()
                .to_string()
                .contains("at least 8")
        );
    }

    #[test]
    fn a_file_without_tensors_is_fine() {
        let (_dir, path) = file("{}", 0);
        assert!(TensorFile::open(&path).unwrap().read().unwrap().is_empty());
    }
}
