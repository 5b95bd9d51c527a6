use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use burn::tensor::TensorData;
use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use super::dtype;
use crate::checkpoint::{
    CheckpointError,
    durable::{FileEntry, create_file},
};

/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// Writes tensors into a new safetensors file and returns once it is on the device.
///
/// The bytes depend on the tensors alone: ordered by alignment and name, nothing else in the header than
/// `{"format": "pt"}`, which Python's readers expect.
///
/// # Errors
/// If the file exists or cannot be written, or if a tensor is quantised, which safetensors has no type for.
pub fn write_tensor_file(
    path: &Path,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<FileEntry, CheckpointError> {
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, data) in tensors {
        if name == METADATA {
            let reason = "safetensors keeps this name for itself";
            return Err(CheckpointError::InvalidName {
                what: "tensor name",
                name: name.clone(),
                reason,
            });
        }
        let dtype = dtype::to_file(data.dtype()).ok_or_else(|| CheckpointError::UnsupportedDType {
            path: path.to_owned(),
            tensor: name.clone(),
            dtype: data.dtype().name().to_owned(),
            reason: "quantised tensors are not stored; dequantise it or leave it out of the checkpoint",
        })?;
        entries.push((name, dtype, data));
    }
    // The order of the `safetensors` crate: wide elements first, so that each is aligned to its width.
    entries.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let header = header(&entries).map_err(|reason| CheckpointError::damaged(path, reason))?;
    create_file(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (name, _, data) in &entries {
            file.write_all(&dtype::host_bytes(name, data)?)?;
        }
        Ok(())
    })
}

/// The header, padded so that the elements start at a multiple of eight.
fn header(entries: &[(&String, Dtype, &TensorData)]) -> Result<Vec<u8>, String> {
    let mut start = 0;
    let mut infos = Vec::with_capacity(entries.len());
    for (name, dtype, data) in entries {
        let shape = data.shape().to_vec();
        let end = start + shape.iter().product::<usize>() * dtype.bitsize() / 8;
        infos.push((
            (*name).clone(),
            TensorInfo {
                dtype: *dtype,
                shape,
                data_offsets: (start, end),
            },
        ));
        start = end;
    }
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(|error| error.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > super::read::MAX_HEADER {
        return Err(format!(
            "its header would be longer than {} bytes",
            super::read::MAX_HEADER
        ));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors() -> BTreeMap<String, TensorData> {
        BTreeMap::from([
            ("a".to_owned(), TensorData::from([true, false, true])),
            ("b".to_owned(), TensorData::from([[1.0f32, 2.0]])),
            ("c".to_owned(), TensorData::from([3.0f64])),
            ("d".to_owned(), TensorData::from([4i32])),
        ])
    }

    #[test]
    fn the_safetensors_crate_writes_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let tensors = tensors();
        let entry = write_tensor_file(&path, &tensors).unwrap();
        let views = tensors.iter().map(|(name, data)| {
            let dtype = dtype::to_file(data.dtype()).unwrap();
            let view = safetensors::tensor::TensorView::new(dtype, data.shape().to_vec(), data.bytes());
            (name.clone(), view.unwrap())
        });
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let reference = safetensors::serialize(views, Some(metadata)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), reference);
        assert_eq!(entry.size, reference.len() as u64);
    }

    #[test]
    fn a_quantised_tensor_is_refused_by_name() {
        use burn::tensor::quantization::QuantScheme;
        let data = TensorData::quantized(vec![1i8, 2], [2], QuantScheme::default(), &[1.0], None);
        let dir = tempfile::tempdir().unwrap();
        let tensors = BTreeMap::from([("lora.base".to_owned(), data)]);
        let error = write_tensor_file(&dir.path().join("x"), &tensors)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'lora.base'") && error.contains("dequantise"),
            "{error}"
        );
    }

    #[test]
    fn the_name_of_the_metadata_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = BTreeMap::from([(METADATA.to_owned(), TensorData::from([1.0f32]))]);
        assert!(write_tensor_file(&dir.path().join("x"), &tensors).is_err());
    }
}
