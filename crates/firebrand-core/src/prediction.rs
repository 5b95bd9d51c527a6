use std::collections::BTreeMap;

use burn::tensor::kind::Basic;
use burn::tensor::{Tensor, TensorData};

use crate::AnyTensor;

/// What `predict_step` gives for one batch: one or several tensors whose first axis is the sample.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrand_core::Prediction;
///
/// let device = Device::flex();
/// let classes = Tensor::<1>::ones([8], &device);
/// let scores = Tensor::<2>::ones([8, 10], &device);
/// let prediction = Prediction::from(classes).with("scores", scores);
/// assert_eq!(prediction.num_samples(), Some(8));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    tensors: BTreeMap<String, AnyTensor>,
}

impl Prediction {
    /// The name of the tensor that was given without one.
    pub const DEFAULT_NAME: &'static str = "prediction";

    /// Without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor whose first axis is the sample.
    #[must_use]
    pub fn with<const D: usize, K: Basic>(mut self, name: impl Into<String>, tensor: Tensor<D, K>) -> Self {
        self.tensors.insert(name.into(), AnyTensor::from(tensor));
        self
    }

    /// The number of samples, if all tensors agree on it.
    pub fn num_samples(&self) -> Option<usize> {
        let mut counts = self
            .tensors
            .values()
            .map(|tensor| tensor.shape().to_vec().first().copied());
        let first = counts.next()??;
        counts.all(|count| count == Some(first)).then_some(first)
    }

    /// Copies the tensors to the host.
    pub fn into_data(self) -> BTreeMap<String, TensorData> {
        self.tensors
            .into_iter()
            .map(|(name, tensor)| (name, tensor.inner().into_data()))
            .collect()
    }
}

impl<const D: usize, K: Basic> From<Tensor<D, K>> for Prediction {
    fn from(tensor: Tensor<D, K>) -> Self {
        Self::new().with(Self::DEFAULT_NAME, tensor)
    }
}
