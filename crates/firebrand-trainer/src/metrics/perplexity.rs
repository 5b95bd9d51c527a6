use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData, activation::log_softmax};
use firebrand_core::{Error, Metric};

use super::input;
use super::{Mean, MetricError};

const NAME: &str = "Perplexity";

/// The perplexity of a language model: `exp(Σ −ln p(token) / number of tokens)`.
///
/// The logarithms of the probabilities are taken on the device, in `f32` or wider whatever the dtype of the logits, and one
/// number for each token is read back and summed in `f64`. A token of probability 0 gives infinity.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::Perplexity;
///
/// let device = Device::flex();
/// let logits = Tensor::<3>::zeros([1, 2, 50], &device);
/// let tokens = Tensor::<2, Int>::from_ints([[7, 49]], &device);
/// // One row for each token.
/// let perplexity = Perplexity::new().update(&logits.flatten(0, 1), &tokens.flatten(0, 1))?;
/// assert!((perplexity.compute() - 50.0).abs() < 1e-4);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Perplexity {
    ignore_index: Option<i64>,
    nll: Mean,
}

impl Perplexity {
    /// Of no tokens yet; none are left out.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out rows with this target, such as padding. Default: none.
    #[must_use]
    pub fn ignore_index(mut self, token: i64) -> Self {
        self.ignore_index = Some(token);
        self
    }

    /// Counts the rows of `[tokens, vocabulary]` logits and `[tokens]` targets.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] if there is not one target for each row, [`MetricError::Class`] if a target is outside the
    /// vocabulary, [`MetricError::Value`] if the logits of a row are not numbers.
    pub fn update(mut self, logits: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
        let [rows, vocabulary] = logits.dims();
        input::logits_fit(NAME, logits.dims(), targets.dims(), None)?;
        let targets = input::classes(NAME, "targets", targets, vocabulary, self.ignore_index)?;
        if rows == 0 {
            return Ok(self);
        }
        // Rows to leave out look up class 0 and weigh nothing; an index outside the vocabulary would be undefined.
        let indices = targets.iter().map(|target| target.unwrap_or(0) as i64).collect();
        let logits = logits.clone().inner();
        let indices: Tensor<2, Int> =
            Tensor::from_data(TensorData::new(indices, [rows, 1]), &logits.device());
        let wide = if logits.dtype() == DType::F64 {
            FloatDType::F64
        } else {
            FloatDType::F32
        };
        let log_probabilities = log_softmax(logits.cast(wide), 1).gather(1, indices);
        let nll = input::floats(NAME, "log-probabilities of the targets", &log_probabilities.neg())?;
        let weights = targets.iter().map(|target| f64::from(target.is_some()));
        self.nll = self.nll.extend(
            NAME,
            "log-probabilities of the targets",
            nll.into_iter().zip(weights),
        )?;
        Ok(self)
    }
}

impl Metric for Perplexity {
    fn merge(&mut self, other: Self) {
        self.nll.merge(other.nll);
    }

    fn compute(&self) -> f64 {
        self.nll.compute().exp()
    }

    fn state(&self) -> Vec<f64> {
        self.nll.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.nll.load(NAME, state)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    const LOGITS: [[f64; 3]; 8] = [
        [2.0, 0.5, -1.0],
        [0.1, 1.5, 0.3],
        [0.2, 0.2, 0.2],
        [-0.5, 0.7, 2.2],
        [1.0, 1.0, -2.0],
        [0.0, 0.3, 0.1],
        [3.0, -1.0, 0.5],
        [0.4, 0.6, 0.9],
    ];

    fn batch(targets: [i64; 8], dtype: DType) -> (Tensor<2>, Tensor<1, Int>) {
        let device = Device::flex().autodiff();
        let logits = Tensor::<2>::from_data(TensorData::new(LOGITS.concat(), [8, 3]), (&device, dtype));
        (
            logits.require_grad(),
            Tensor::from_data(TensorData::new(targets.to_vec(), [8]), &device),
        )
    }

    #[test]
    fn as_scikit_learn_and_torchmetrics() {
        // numpy.exp(sklearn.metrics.log_loss(T, softmax(LOGITS, axis=1))); torchmetrics.functional.text.perplexity agrees.
        let (logits, targets) = batch([0, 1, 2, 2, 0, 1, 0, 1], DType::F64);
        let value = Perplexity::new().update(&logits, &targets).unwrap().compute();
        assert!((value - 1.853_865_352_402_679_4).abs() < 1e-14, "{value}");
        // torchmetrics: perplexity(LOGITS[None], T[None], ignore_index=-100).
        let (logits, targets) = batch([0, 1, -100, 2, 0, -100, 0, 1], DType::F64);
        let masked = Perplexity::new()
            .ignore_index(-100)
            .update(&logits, &targets)
            .unwrap();
        assert!((masked.compute() - 1.621_399_870_680_623_4).abs() < 1e-14);
        assert_eq!(masked.state()[1], 6.0);
    }

    #[test]
    fn logits_of_sixteen_bits_are_widened_first() {
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F16, 1e-3), (DType::BF16, 1e-2)] {
            let (logits, targets) = batch([0, 1, 2, 2, 0, 1, 0, 1], dtype);
            let value = Perplexity::new().update(&logits, &targets).unwrap().compute();
            assert!(
                (value - 1.853_865_352_402_679_4).abs() < tolerance,
                "{dtype:?}: {value}"
            );
        }
        // A sum of 2^17 exponentials overflows in f16.
        let device = Device::flex();
        let flat = Tensor::<2>::zeros([1, 1 << 17], &device).cast(FloatDType::F16);
        let value = Perplexity::new()
            .update(&flat, &Tensor::from_ints([3], &device))
            .unwrap()
            .compute();
        assert!((value / f64::from(1 << 17) - 1.0).abs() < 1e-5, "{value}");
    }

    #[test]
    fn what_is_ruled_out_is_infinitely_surprising_and_nothing_is_not_a_number() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.0, f32::NEG_INFINITY], [0.0, 0.0]], &device);
        let of = |targets: [i32; 2]| Perplexity::new().update(&logits, &Tensor::from_ints(targets, &device));
        assert_eq!(of([1, 0]).unwrap().compute(), f64::INFINITY);
        assert!((of([0, 1]).unwrap().compute() - 2.0_f64.sqrt()).abs() < 1e-6);
        assert!(matches!(
            of([0, 2]),
            Err(MetricError::Class { row: 1, class: 2, .. })
        ));
        assert!(Perplexity::new().compute().is_nan());
        let padding = Perplexity::new()
            .ignore_index(0)
            .update(&logits, &Tensor::from_ints([0, 0], &device));
        assert!(padding.unwrap().compute().is_nan());
        let broken = Tensor::<2>::from_floats([[0.0, 1.0], [0.0, f32::NAN]], &device);
        let error = Perplexity::new()
            .update(&broken, &Tensor::from_ints([0, 0], &device))
            .unwrap_err();
        assert!(matches!(error, MetricError::Value { index: 1, .. }), "{error}");
    }
}
