use burn::tensor::Tensor;
use firebrand_core::{Error, Metric};

use super::input::{self, NOT_A_NUMBER};
use super::{MetricError, counts::ratio};

const NAME: &str = "Mean";

/// The weighted mean of numbers: `Σ weight·value / Σ weight`, summed in `f64`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::Mean;
///
/// let device = Device::flex();
/// let rewards = Tensor::<1>::from_floats([1.0, 2.0, 6.0], &device);
/// let mean = Mean::new().update(&rewards)?.add(8.0, 3.0)?;
/// assert_eq!(mean.compute(), (1.0 + 2.0 + 6.0 + 3.0 * 8.0) / 6.0);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts every element of `values`, each with the weight 1.
    ///
    /// # Errors
    ///
    /// [`MetricError::Value`] if an element is not a number.
    pub fn update<const D: usize>(self, values: &Tensor<D>) -> Result<Self, MetricError> {
        let values = input::floats(NAME, "values", values)?;
        self.extend(NAME, "values", values.into_iter().map(|value| (value, 1.0)))
    }

    /// Counts every element of `values` with the weight at the same place in `weights`: a mask, or a number of tokens.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] if the shapes differ; [`MetricError::Value`] if a value with a weight other than 0 is not
    /// a number, or if a weight is negative or not finite.
    pub fn update_weighted<const D: usize>(
        self,
        values: &Tensor<D>,
        weights: &Tensor<D>,
    ) -> Result<Self, MetricError> {
        input::same_shape(NAME, ("values", values.dims()), ("weights", weights.dims()))?;
        let values = input::floats(NAME, "values", values)?;
        let weights = input::floats(NAME, "weights", weights)?;
        self.extend(NAME, "values", values.into_iter().zip(weights))
    }

    /// Counts one number of the host.
    ///
    /// # Errors
    ///
    /// As [`update_weighted`](Self::update_weighted).
    pub fn add(self, value: f64, weight: f64) -> Result<Self, MetricError> {
        self.extend(NAME, "values", [(value, weight)].into_iter())
    }

    /// Counts pairs of a value and its weight on behalf of `metric`.
    pub(super) fn extend(
        mut self,
        metric: &'static str,
        input: &'static str,
        pairs: impl Iterator<Item = (f64, f64)>,
    ) -> Result<Self, MetricError> {
        // A batch is summed by itself first: long runs then add numbers of like size.
        let mut batch = Self::default();
        for (index, (value, weight)) in pairs.enumerate() {
            if !weight.is_finite() || weight < 0.0 {
                let fix = "a weight is a finite number, 0 or more";
                return Err(MetricError::Value {
                    metric,
                    input: "weights",
                    index,
                    value: weight,
                    fix,
                });
            }
            // What a mask leaves out may hold anything: 0 × ∞ must not spoil the sum.
            if weight == 0.0 {
                continue;
            }
            if value.is_nan() {
                return Err(MetricError::Value {
                    metric,
                    input,
                    index,
                    value,
                    fix: NOT_A_NUMBER,
                });
            }
            batch.sum += weight * value;
            batch.weight += weight;
        }
        self.merge(batch);
        Ok(self)
    }

    /// Makes the value not-a-number for good: what was merged has no common mean.
    pub(super) fn spoil(&mut self) {
        self.sum = f64::NAN;
    }

    /// Takes over a state on behalf of `metric`.
    pub(super) fn load(&mut self, metric: &'static str, state: &[f64]) -> Result<(), Error> {
        let refuse = |reason: String| Error::State {
            what: format!("the metric {metric}"),
            reason,
        };
        let &[sum, weight] = state else {
            return Err(refuse(format!(
                "it has {} numbers, not the sum and the weight",
                state.len()
            )));
        };
        if !weight.is_finite() || weight < 0.0 {
            return Err(refuse(format!("{weight} is not a sum of weights")));
        }
        *self = Self { sum, weight };
        Ok(())
    }
}

impl Metric for Mean {
    fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.weight += other.weight;
    }

    fn compute(&self) -> f64 {
        ratio(self.sum, self.weight, f64::NAN)
    }

    fn state(&self) -> Vec<f64> {
        vec![self.sum, self.weight]
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.load(NAME, state)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn a_mask_hides_what_is_not_a_number() {
        let device = Device::flex();
        let values = Tensor::<2>::from_floats([[1.0, f32::NAN], [f32::INFINITY, 4.0]], &device);
        let mask = Tensor::<2>::from_floats([[1.0, 0.0], [0.0, 3.0]], &device);
        assert_eq!(
            Mean::new().update_weighted(&values, &mask).unwrap().compute(),
            13.0 / 4.0
        );
        let error = Mean::new().update(&values).unwrap_err().to_string();
        assert!(error.contains("element 1 of the values is NaN"), "{error}");
    }

    #[test]
    fn nothing_has_no_mean_and_bad_weights_are_refused() {
        assert!(Mean::new().compute().is_nan());
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                Mean::new().add(1.0, weight),
                Err(MetricError::Value { .. })
            ));
        }
    }

    #[test]
    fn sums_are_kept_in_double_precision_for_every_dtype() {
        let device = Device::flex().autodiff();
        for dtype in [
            FloatDType::F32,
            FloatDType::F64,
            FloatDType::F16,
            FloatDType::BF16,
        ] {
            // 4096 ones: a half-precision sum stops at 2048 (f16) or 256 (bf16).
            let ones = Tensor::<1>::ones([4096], &device).cast(dtype).require_grad();
            let mean = Mean::new().update(&ones).unwrap();
            assert_eq!(mean.state(), [4096.0, 4096.0], "{dtype:?}");
        }
        let tiny = Mean::new().add(1.0, 1.0).unwrap().add(1e-12, 1.0).unwrap();
        assert_eq!(tiny.state()[0], 1.0 + 1e-12);
    }

    #[test]
    fn a_foreign_state_changes_nothing() {
        let mut mean = Mean::new().add(2.0, 1.0).unwrap();
        for state in [&[1.0][..], &[1.0, -1.0], &[1.0, f64::NAN], &[1.0, 2.0, 3.0]] {
            assert!(mean.load_state(state).is_err());
            assert_eq!(mean.compute(), 2.0);
        }
    }
}
