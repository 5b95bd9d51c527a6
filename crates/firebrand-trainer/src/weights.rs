//! Weights of a module in and out, without a trainer.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, TensorData};
use firebrand_core::{LightningModule, erase, restore_type};
use firebrand_strategy::PrepareOptions;

use crate::Error;
use crate::checkpoint::open_weights;
use crate::fit::{evaluation_module, load_weights};

/// Every parameter and buffer of a module by path, on the host: what a checkpoint holds, and what
/// [`checkpoint::pytorch`](crate::checkpoint::pytorch) exports. It draws parameters that are still lazy.
pub fn weights_of<M: LightningModule>(module: &M) -> BTreeMap<String, TensorData> {
    crate::fit::weights_of(erase(module.clone()).as_ref())
}

/// A module with weights by path, such as [`checkpoint::pytorch::import_file`](crate::checkpoint::pytorch::import_file) gives,
/// in float32, ready for inference on `device` or for a fit.
///
/// # Errors
///
/// If a path is missing, unknown or of another shape; it is named.
pub fn with_weights<M: LightningModule>(
    module: M,
    weights: BTreeMap<String, TensorData>,
    device: &Device,
) -> Result<M, Error> {
    loaded(module, weights, device, Path::new("weights"))
}

/// A module with the weights of a checkpoint, or of a `.safetensors` file with the module's own paths, ready for inference on
/// `device`: in validation mode, in float32, and without a trainer. Nothing of the optimizer is read.
///
/// # Errors
///
/// If the checkpoint is damaged or of another module.
pub fn load_from_checkpoint<M: LightningModule>(
    path: impl AsRef<Path>,
    module: M,
    device: &Device,
) -> Result<M, Error> {
    let path = path.as_ref();
    loaded(module, open_weights(path)?, device, path)
}

fn loaded<M: LightningModule>(
    module: M,
    weights: BTreeMap<String, TensorData>,
    device: &Device,
    path: &Path,
) -> Result<M, Error> {
    let prepare = PrepareOptions {
        device: device.clone().autodiff(),
        precision: Default::default(),
        seed: 0,
    };
    let (mut module, table) = evaluation_module(erase(module), &prepare)?;
    let plain = device.clone().without_autodiff();
    load_weights(module.as_mut(), &table, weights, path, &plain)?;
    restore_type(module).ok_or(Error::ForeignCheckpoint {
        path: path.to_owned(),
        reason: "the module came back as another type".to_owned(),
    })
}
