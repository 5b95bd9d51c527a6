use std::collections::BTreeMap;

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor, TensorData};
use firebrand_core::{AnyTensor, StepContext};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::world::World;

use super::evaluate::{Evaluation, EvaluationBatch, step_failed};

/// The predictions for every sample, in the order of the data, each once. Tensors lie on the host.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Predictions {
    tensors: BTreeMap<String, AnyTensor>,
}

impl Predictions {
    /// The tensor that `predict_step` returned without a name, with the samples along its first axis.
    ///
    /// `None` if there is none, or if it has another rank or kind.
    pub fn tensor<const D: usize, K: Basic>(&self) -> Option<Tensor<D, K>> {
        self.named(firebrand_core::Prediction::DEFAULT_NAME)
    }

    /// The tensor with a name.
    pub fn named<const D: usize, K: Basic>(&self, name: &str) -> Option<Tensor<D, K>> {
        self.tensors.get(name)?.clone().typed()
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The elements by name.
    pub fn into_data(self) -> BTreeMap<String, TensorData> {
        self.tensors
            .into_iter()
            .map(|(name, tensor)| (name, tensor.into_data()))
            .collect()
    }
}

/// What one loader's batches gave so far.
#[derive(Default)]
struct Parts {
    tensors: BTreeMap<String, Vec<AnyTensor>>,
    samples: Vec<usize>,
}

impl Evaluation<'_> {
    /// Predicts, and returns the predictions of each loader. What a step logs is left out.
    pub(crate) fn predict(&mut self) -> Result<Vec<Predictions>, Error> {
        let module = self.module;
        let mut parts: Vec<Parts> = self.loaders.iter().map(|_| Parts::default()).collect();
        let mut each = |batch: EvaluationBatch, step: &mut StepContext| {
            let prediction = module
                .predict_step(batch.batch, step)
                .map_err(|source| step_failed(step, source))?;
            let found = prediction.num_samples();
            if found != Some(batch.num_samples) {
                return Err(Error::PredictionLength {
                    expected: batch.num_samples,
                    found: found.map_or_else(|| "different numbers of".to_owned(), |found| found.to_string()),
                    batch_index: step.batch_index(),
                });
            }
            let Some(parts) = parts.get_mut(step.loader_index()) else {
                return Ok(());
            };
            if batch.samples.len() == batch.num_samples {
                parts.samples.extend(batch.samples);
            }
            let host = Device::flex();
            for (name, data) in prediction.into_data() {
                if let Some(tensor) = AnyTensor::from_data(data, &host) {
                    parts.tensors.entry(name).or_default().push(tensor);
                }
            }
            Ok(())
        };
        self.pass(&mut each, &mut |_, _, _| Ok(()))?;
        let parts = parts.into_iter().map(|parts| parts.over(self.world));
        parts.map(|parts| parts.map(Parts::join)).collect()
    }
}

/// The elements of one tensor, as ranks exchange them.
#[derive(Serialize, Deserialize)]
struct Piece {
    name: String,
    data: TensorData,
}

impl Parts {
    /// The parts of all ranks, in their order, on every rank.
    fn over(self, world: &World) -> Result<Self, Error> {
        if world.size() == 1 {
            return Ok(self);
        }
        let pieces = self.tensors.into_iter().filter_map(|(name, parts)| {
            let data = AnyTensor::concat(parts)?.into_data();
            Some(Piece { name, data })
        });
        let mine: (Vec<Piece>, Vec<usize>) = (pieces.collect(), self.samples);
        let mut whole = Self::default();
        for (pieces, samples) in world.gather(mine)? {
            whole.samples.extend(samples);
            for Piece { name, data } in pieces {
                if let Some(tensor) = AnyTensor::from_data(data, &Device::flex()) {
                    whole.tensors.entry(name).or_default().push(tensor);
                }
            }
        }
        Ok(whole)
    }

    /// One tensor for each name, its rows in the order of the data.
    fn join(self) -> Predictions {
        let rows = rows_in_order(&self.samples);
        let tensors = self.tensors.into_iter().filter_map(|(name, parts)| {
            let tensor = AnyTensor::concat(parts)?;
            let sorted = match &rows {
                Some(rows) if rows.len() == tensor.shape().to_vec().first().copied()? => {
                    tensor.select_rows(rows)
                }
                _ => tensor,
            };
            Some((name, sorted))
        });
        Predictions {
            tensors: tensors.collect(),
        }
    }
}

/// Which row comes first, second, … in the order of the data; `None` if they are in it already, as without shuffling.
fn rows_in_order(samples: &[usize]) -> Option<Vec<usize>> {
    if samples.is_sorted() {
        return None;
    }
    let mut rows: Vec<usize> = (0..samples.len()).collect();
    rows.sort_by_key(|row| samples.get(*row));
    Some(rows)
}
