use std::collections::BTreeMap;

use burn::tensor::kind::Basic;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use firebrand_core::{AnyTensor, ErasedModule, SeedStream, Stage, StepContext, StepInfo, seed_from};

use crate::Error;
use crate::data::{AnyLoader, EpochRequest};
use crate::options::Limit;
use crate::progress::ProgressReporter;

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

/// Predicts every batch of every loader, one after the other.
#[allow(clippy::too_many_arguments)] // One call site; the parts of a trainer, borrowed apart.
pub(crate) fn predict(
    module: &dyn ErasedModule,
    loaders: &[AnyLoader],
    limit: Limit,
    seed: u64,
    device: &Device,
    dtype: FloatDType,
    progress: &mut ProgressReporter,
) -> Result<Vec<Predictions>, Error> {
    let mut all = Vec::with_capacity(loaders.len());
    for (loader_index, loader) in loaders.iter().enumerate() {
        let request = EpochRequest::evaluate(seed, 0);
        let limit = limit.of(loader.num_batches(&request)?);
        let mut parts: BTreeMap<String, Vec<AnyTensor>> = BTreeMap::new();
        let mut order = Vec::new();
        progress.begin_stage("predict", limit, 0);
        for (batch_index, loaded) in loader.epoch(&request.limit_batches(limit), device)?.enumerate() {
            let loaded = loaded?;
            let batch_index = batch_index as u64;
            device.seed(seed_from(
                seed,
                SeedStream::Step,
                Stage::Predict.as_str(),
                &[loader_index as u64, batch_index],
            ));
            let mut step = StepContext::new(StepInfo {
                batch_index,
                loader_index,
                ..StepInfo::first(Stage::Predict, device.clone())
            });
            let batch = loaded.batch.to_device(device).to_dtype(dtype);
            let prediction =
                module
                    .predict_step(batch, &mut step)
                    .map_err(|source| Error::EvaluationStep {
                        step: "predict_step",
                        loader_index,
                        batch_index,
                        source,
                    })?;
            let found = prediction.num_samples();
            if found != Some(loaded.num_samples) {
                return Err(Error::PredictionLength {
                    expected: loaded.num_samples,
                    found: found.map_or_else(|| "different numbers of".to_owned(), |found| found.to_string()),
                    batch_index,
                });
            }
            if loaded.samples.len() == loaded.num_samples {
                order.extend(loaded.samples);
            }
            let host = Device::flex();
            for (name, data) in prediction.into_data() {
                if let Some(tensor) = AnyTensor::from_data(data, &host) {
                    parts.entry(name).or_default().push(tensor);
                }
            }
            progress.advance(1);
        }
        progress.end_stage();
        let rows = rows_in_order(&order);
        let tensors = parts.into_iter().filter_map(|(name, parts)| {
            let tensor = AnyTensor::concat(parts)?;
            let sorted = match &rows {
                Some(rows) if rows.len() == tensor.shape().to_vec().first().copied()? => {
                    tensor.select_rows(rows)
                }
                _ => tensor,
            };
            Some((name, sorted))
        });
        all.push(Predictions {
            tensors: tensors.collect(),
        });
    }
    Ok(all)
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
