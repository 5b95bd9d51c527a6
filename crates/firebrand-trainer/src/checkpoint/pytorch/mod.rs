//! Weights in PyTorch's names and layout, as safetensors files that `load_state_dict` takes.

mod layout;
mod name_map;
#[cfg(test)]
mod parity;
mod pattern;
mod rules;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path};

use burn::tensor::TensorData;

use super::{CheckpointError, dir::TEMPORARY, durable::replace_file, open_weights, write_tensor_file};

pub use name_map::NameMap;
pub use rules::LayerKind;

/// Writes weights by Burn's paths into a safetensors file with PyTorch's names and layout.
///
/// In Python: `model.load_state_dict(safetensors.torch.load_file(path))`. An existing file is replaced as a whole.
///
/// # Errors
/// Those of [`NameMap::export`], and if the file cannot be written.
pub fn export_file(
    path: impl AsRef<Path>,
    weights: BTreeMap<String, TensorData>,
    map: &NameMap,
) -> Result<(), CheckpointError> {
    let tensors = map.export(weights)?;
    replace_file(path.as_ref(), TEMPORARY, |file| write_tensor_file(file, &tensors))
}

/// Reads weights by Burn's paths from a safetensors file, or sharded set, with PyTorch's names and layout.
///
/// `paths` are those of the module, all of which must be there.
///
/// # Errors
/// Those of [`NameMap::import`] and of [`open_weights`].
pub fn import_file<P: Into<String>>(
    path: impl AsRef<Path>,
    paths: impl IntoIterator<Item = P>,
    map: &NameMap,
) -> Result<BTreeMap<String, TensorData>, CheckpointError> {
    map.import(open_weights(path)?, paths)
}
