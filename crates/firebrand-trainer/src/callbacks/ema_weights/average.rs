use std::collections::BTreeMap;

use burn::tensor::{DType, FloatDType, TensorData};
use firebrand_core::{AnyTensor, Error, ParamInfo, ParamKind, ParamTable, ParamVisitor};

use crate::callbacks::View;

/// Averages of parameters and copies of buffers by path. A tied parameter stands under the path of the first of its set.
#[derive(Debug, Default)]
pub(super) struct Average {
    tensors: BTreeMap<String, AnyTensor>,
    /// What was read from a checkpoint and waits for a module that says on which device it belongs.
    loaded: BTreeMap<String, TensorData>,
}

impl Average {
    pub fn from_data(loaded: BTreeMap<String, TensorData>) -> Self {
        Self {
            tensors: BTreeMap::new(),
            loaded,
        }
    }

    /// Copies everything to the host.
    pub fn data(&self) -> BTreeMap<String, TensorData> {
        let tensors = self
            .tensors
            .iter()
            .map(|(path, tensor)| (path.clone(), tensor.clone().into_data()));
        tensors.chain(self.loaded.clone()).collect()
    }

    /// Takes the module's present weights in.
    pub fn update(&mut self, view: &View<'_>, decay: f64) {
        let tensors = &mut self.tensors;
        let table = view.table;
        visit(view, false, |index, path, value| {
            if (view.trained)(index) || tensors.contains_key(path) {
                let value = widen(value);
                let average = match tensors.remove(path) {
                    Some(average) => average.mul_scalar(decay).add(value.mul_scalar(1.0 - decay)),
                    None => value,
                };
                tensors.insert(path.to_owned(), average);
            }
        });
        // Only a twin has the last update of its running statistics in it, and statistics of its own.
        if table
            .entries()
            .iter()
            .any(|entry| entry.kind == ParamKind::Buffer)
        {
            visit(view, true, |_, path, value| {
                tensors.insert(path.to_owned(), value);
            });
        }
    }

    /// The values to use in place of the module's, in its dtypes.
    pub fn weights(&mut self, view: &View<'_>) -> Result<BTreeMap<String, AnyTensor>, Error> {
        self.place(view)?;
        let mut weights = BTreeMap::new();
        let tensors = &self.tensors;
        let mut take = |path: &str, value: &AnyTensor| {
            if let Some(average) = tensors.get(path) {
                let average = average.clone();
                let fits = value.is_float() && average.is_float();
                let average = if fits {
                    average.cast(FloatDType::from(value.dtype()))
                } else {
                    average
                };
                weights.insert(path.to_owned(), average);
            }
        };
        visit(view, false, |_, path, value| take(path, &value));
        visit(view, true, |_, path, value| take(path, &value));
        for entry in view.table.entries() {
            let first = entry.tied_to.and_then(|first| view.table.get(first));
            if let Some(value) = first.and_then(|first| weights.get(&first.path)).cloned() {
                weights.insert(entry.path.clone(), value);
            }
        }
        Ok(weights)
    }

    /// Puts what was read from a checkpoint beside the module's values.
    ///
    /// # Errors
    ///
    /// If it is of another module.
    pub fn place(&mut self, view: &View<'_>) -> Result<(), Error> {
        if self.loaded.is_empty() {
            return Ok(());
        }
        let mut mismatch = None;
        for buffers in [false, true] {
            visit(view, buffers, |_, path, value| {
                let Some(data) = self.loaded.remove(path) else {
                    return;
                };
                let (expected, found) = (value.shape().to_vec(), data.shape().to_vec());
                match AnyTensor::from_data(data, &value.device()) {
                    Some(tensor) if expected == found && tensor.is_float() == value.is_float() => {
                        self.tensors.insert(path.to_owned(), tensor);
                    }
                    _ => {
                        mismatch = Some(Error::ShapeMismatch {
                            path: path.to_owned(),
                            expected,
                            found,
                        })
                    }
                }
            });
        }
        let unknown = self.loaded.keys().next().map(|path| Error::State {
            what: "EmaWeights".to_owned(),
            reason: format!("it has an average of '{path}', which the module does not have"),
        });
        mismatch.or(unknown).map_or(Ok(()), Err)
    }
}

/// Averages of 16 bits would not move: `1 − decay` is below their resolution.
fn widen(value: AnyTensor) -> AnyTensor {
    match value.dtype() {
        DType::F16 | DType::BF16 => value.cast(FloatDType::F32),
        _ => value,
    }
}

/// Calls a function with each materialised parameter, the first of a tied set only, or with each buffer of the module in
/// validation mode.
fn visit(view: &View<'_>, buffers: bool, function: impl FnMut(usize, &str, AnyTensor)) {
    let kind = if buffers {
        ParamKind::Buffer
    } else {
        ParamKind::Parameter
    };
    let mut visitor = Values {
        table: view.table,
        kind,
        function,
    };
    if !buffers {
        view.module.visit_params(&mut visitor);
    } else if view
        .table
        .entries()
        .iter()
        .any(|entry| entry.kind == ParamKind::Buffer)
    {
        view.module.evaluation_twin().visit_params(&mut visitor);
    }
}

struct Values<'a, F> {
    table: &'a ParamTable,
    kind: ParamKind,
    function: F,
}

impl<F> Values<'_, F> {
    fn index(&self, info: &ParamInfo<'_>) -> Option<usize> {
        let index = self.table.index_of(info.id)?;
        let entry = self.table.get(index)?;
        (entry.kind == self.kind && entry.tied_to.is_none()).then_some(index)
    }
}

impl<F: FnMut(usize, &str, AnyTensor)> ParamVisitor for Values<'_, F> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        info.initialized && self.index(info).is_some()
    }

    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) {
        if let Some(index) = self.index(info) {
            (self.function)(index, info.path, value);
        }
    }
}
