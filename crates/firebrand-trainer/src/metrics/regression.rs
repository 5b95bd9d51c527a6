use burn::tensor::Tensor;
use firebrand_core::{Error, Metric};

use super::{Mean, MetricError, input};

/// The mean of `f(prediction − target)` over all elements, in `f64`.
fn of_differences<const D: usize>(
    mean: Mean,
    metric: &'static str,
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
    f: fn(f64) -> f64,
) -> Result<Mean, MetricError> {
    input::same_shape(
        metric,
        ("predictions", predictions.dims()),
        ("targets", targets.dims()),
    )?;
    let predictions = input::floats(metric, "predictions", predictions)?;
    let targets = input::floats(metric, "targets", targets)?;
    let differences = predictions
        .into_iter()
        .zip(targets)
        .map(|(prediction, target)| prediction - target);
    mean.extend(
        metric,
        "differences of predictions and targets",
        differences.map(|d| (f(d), 1.0)),
    )
}

/// The mean squared error, `Σ (prediction − target)² / n` over all elements, or its root.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::MeanSquaredError;
///
/// let device = Device::flex();
/// let predictions = Tensor::<2>::from_floats([[1.0], [5.0]], &device);
/// let targets = Tensor::<2>::from_floats([[1.0], [1.0]], &device);
/// assert_eq!(MeanSquaredError::new().update(&predictions, &targets)?.compute(), 8.0);
/// assert_eq!(MeanSquaredError::new().root().update(&predictions, &targets)?.compute(), 8.0_f64.sqrt());
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeanSquaredError {
    root: bool,
    squares: Mean,
}

impl MeanSquaredError {
    const NAME: &str = "MeanSquaredError";

    /// Of nothing yet; not the root.
    pub fn new() -> Self {
        Self::default()
    }

    /// The root of the mean (RMSE), in the unit of the targets. It is taken once, over everything that was counted.
    #[must_use]
    pub fn root(mut self) -> Self {
        self.root = true;
        self
    }

    /// Counts every element of `predictions` and `targets`, which have one shape.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] if the shapes differ; [`MetricError::Value`] if a difference is not a number.
    pub fn update<const D: usize>(
        mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<Self, MetricError> {
        self.squares = of_differences(self.squares, Self::NAME, predictions, targets, |d| d * d)?;
        Ok(self)
    }
}

impl Metric for MeanSquaredError {
    fn merge(&mut self, other: Self) {
        self.squares.merge(other.squares);
        if self.root != other.root {
            self.squares.spoil();
        }
    }

    fn compute(&self) -> f64 {
        let mean = self.squares.compute();
        if self.root { mean.sqrt() } else { mean }
    }

    fn state(&self) -> Vec<f64> {
        self.squares.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.squares.load(Self::NAME, state)
    }
}

/// The mean absolute error, `Σ |prediction − target| / n` over all elements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeanAbsoluteError {
    differences: Mean,
}

impl MeanAbsoluteError {
    const NAME: &str = "MeanAbsoluteError";

    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts every element of `predictions` and `targets`, which have one shape.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] if the shapes differ; [`MetricError::Value`] if a difference is not a number.
    pub fn update<const D: usize>(
        mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<Self, MetricError> {
        self.differences = of_differences(self.differences, Self::NAME, predictions, targets, f64::abs)?;
        Ok(self)
    }
}

impl Metric for MeanAbsoluteError {
    fn merge(&mut self, other: Self) {
        self.differences.merge(other.differences);
    }

    fn compute(&self) -> f64 {
        self.differences.compute()
    }

    fn state(&self) -> Vec<f64> {
        self.differences.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.differences.load(Self::NAME, state)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::*;

    #[test]
    fn a_column_against_a_row_is_an_error_not_a_broadcast() {
        let device = Device::flex();
        let column = Tensor::<2>::ones([3, 1], &device);
        let row = Tensor::<2>::ones([1, 3], &device);
        let error = MeanSquaredError::new()
            .update(&column, &row)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("targets") && error.contains("[1, 3]") && error.contains("[3, 1]"),
            "{error}"
        );
        assert!(MeanAbsoluteError::new().update(&column, &row).is_err());
    }

    #[test]
    fn predictions_and_targets_may_differ_in_dtype() {
        let device = Device::flex();
        let predictions = Tensor::<1>::from_floats([1.5, -2.0], &device).cast(FloatDType::BF16);
        let targets = Tensor::<1>::from_floats([1.0, 2.0], &device).cast(FloatDType::F64);
        let squared = MeanSquaredError::new().update(&predictions, &targets).unwrap();
        assert_eq!(squared.compute(), (0.25 + 16.0) / 2.0);
        let absolute = MeanAbsoluteError::new().update(&predictions, &targets).unwrap();
        assert_eq!(absolute.compute(), 2.25);
    }

    #[test]
    fn a_root_and_a_mean_have_no_common_value() {
        let device = Device::flex();
        let (ones, twos) = (
            Tensor::<1>::ones([2], &device),
            Tensor::<1>::full([2], 2.0, &device),
        );
        let mut squared = MeanSquaredError::new().update(&ones, &twos).unwrap();
        squared.merge(MeanSquaredError::new().root());
        assert!(squared.compute().is_nan());
        let mut loaded = MeanSquaredError::new();
        loaded.load_state(&squared.state()).unwrap();
        assert!(loaded.compute().is_nan());
    }
}
