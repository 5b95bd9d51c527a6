use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, TensorData};
use firebrand_core::{AnyTensor, ErasedModule, ParamInfo, ParamMapper, ParamTable};

use crate::Error;

/// Checks that values by path are those of a module: every path there, none besides, shapes and kinds equal.
pub(super) fn check_weights(
    table: &ParamTable,
    weights: &BTreeMap<String, TensorData>,
    path: &Path,
) -> Result<(), Error> {
    let foreign = |reason: String| Err(foreign(path, reason));
    for entry in table.entries() {
        let Some(data) = weights.get(&entry.path) else {
            return foreign(format!("it has no value for '{}'", entry.path));
        };
        let (expected, found) = (entry.shape.to_vec(), data.shape().to_vec());
        if expected != found {
            return foreign(format!(
                "'{}' has the shape {expected:?} in the module and {found:?} in the checkpoint",
                entry.path
            ));
        }
    }
    match weights.keys().find(|name| table.index_of_path(name).is_none()) {
        Some(name) => foreign(format!(
            "it has a value for '{name}', which the module does not have"
        )),
        None => Ok(()),
    }
}

/// Checks values by path and gives them to the module; if they do not fit, it is unchanged.
pub(crate) fn load_weights(
    module: &mut dyn ErasedModule,
    table: &ParamTable,
    weights: BTreeMap<String, TensorData>,
    path: &Path,
    device: &Device,
) -> Result<(), Error> {
    check_weights(table, &weights, path)?;
    assign_weights(module, &tensors_of(weights, device), device);
    Ok(())
}

/// Why a checkpoint is not one of this module or run.
pub(super) fn foreign(path: &Path, reason: impl ToString) -> Error {
    Error::ForeignCheckpoint {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Gives the module values by path, each in the dtype of the one before; what is not named stays. Shapes were checked before.
pub(super) fn assign_weights(
    module: &mut dyn ErasedModule,
    weights: &BTreeMap<String, AnyTensor>,
    device: &Device,
) {
    // An update of running statistics that is still pending would come back over the value that is assigned: the twin settles it.
    drop(module.evaluation_twin());
    module.map_params(&mut Assign { weights, device });
}

struct Assign<'a> {
    weights: &'a BTreeMap<String, AnyTensor>,
    /// With autodiff for a module in training, without for its twin.
    device: &'a Device,
}

impl ParamMapper for Assign<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        self.weights.contains_key(info.path)
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
        let Some(new) = self.weights.get(info.path) else {
            return value;
        };
        let inner = self.device.clone().without_autodiff();
        let placed = new.clone().to_device(&inner);
        let placed = match value.is_float() {
            true => placed.cast(value.dtype().into()),
            false => placed,
        };
        placed.on_autodiff(self.device, requires_grad)
    }
}

/// Puts data on a device as rank-free tensors.
pub(super) fn tensors_of(
    weights: BTreeMap<String, TensorData>,
    device: &Device,
) -> BTreeMap<String, AnyTensor> {
    let inner = device.clone().without_autodiff();
    weights
        .into_iter()
        .filter_map(|(path, data)| AnyTensor::from_data(data, &inner).map(|tensor| (path, tensor)))
        .collect()
}
