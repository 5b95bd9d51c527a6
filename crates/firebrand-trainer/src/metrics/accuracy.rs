use burn::tensor::{FloatDType, Int, Tensor};
use firebrand_core::{Error, Metric};

use super::MetricError;
use super::counts::{Counts, ratio};
use super::input::{self, Classified};

const NAME: &str = "Accuracy";

/// The share of rows whose highest logit is that of the right class, as a tensor of one element on the device.
///
/// For a quick look at a batch, `step.log("train_acc", accuracy(logits, targets)?)`: nothing is read back, so that logging
/// does not wait for the device. `logits` are `[samples, classes]`, `targets` `[samples]`. Not-a-number when there are no
/// rows. What would need the numbers is not checked here: a class out of range counts as wrong, and which class has the
/// highest of equal logits, or of logits that are not numbers, is the backend's choice. [`Accuracy`] is strict.
///
/// # Errors
///
/// [`MetricError::Shape`] if there is not one target for each row.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_trainer::metrics::accuracy;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.1, 0.9], [0.8, 0.2]], &device);
/// let targets = Tensor::<1, Int>::from_ints([1, 1], &device);
/// assert_eq!(accuracy(logits, targets)?.into_scalar::<f32>(), 0.5);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
pub fn accuracy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Result<Tensor<1>, MetricError> {
    let [rows, _] = logits.dims();
    input::logits_fit("accuracy", logits.dims(), targets.dims(), None)?;
    let logits = logits.inner();
    if rows == 0 {
        return Ok(Tensor::from_floats([f32::NAN], &logits.device()));
    }
    let targets = targets.inner().to_device(&logits.device());
    let predicted = logits.argmax(1).reshape([rows]).cast(targets.dtype());
    // Counted as integers: a half-precision sum of ones stops growing at 2048 or 256.
    let correct = predicted.equal(targets).int().sum().cast(FloatDType::F32);
    Ok(correct.div_scalar(rows as f64))
}

/// The share of samples whose right class is among the `top_k` highest logits.
///
/// Of equal logits the one with the lower class counts as higher, as in an arg-max.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::Accuracy;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], &device);
/// let targets = Tensor::<1, Int>::from_ints([1, 0], &device);
/// assert_eq!(Accuracy::new().update(&logits, &targets)?.compute(), 0.5);
/// assert_eq!(Accuracy::new().top_k(2).update(&logits, &targets)?.compute(), 1.0);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Accuracy {
    top_k: usize,
    ignore_index: Option<i64>,
    /// Correct, all.
    counts: Counts,
}

impl Default for Accuracy {
    fn default() -> Self {
        Self::new()
    }
}

impl Accuracy {
    /// The highest logit must be that of the right class; no rows are left out.
    pub fn new() -> Self {
        Self {
            top_k: 1,
            ignore_index: None,
            counts: Counts::default(),
        }
    }

    /// Counts a sample as correct if the right class is among the `k` highest logits. Default 1.
    #[must_use]
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = k;
        self
    }

    /// Leaves out rows with this target, such as padding. Default: none.
    #[must_use]
    pub fn ignore_index(mut self, class: i64) -> Self {
        self.ignore_index = Some(class);
        self
    }

    /// Counts the rows of `[samples, classes]` logits (or probabilities) and `[samples]` targets.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] if there is not one target for each row, [`MetricError::Class`] if a target is no class,
    /// [`MetricError::Value`] if a logit is not a number, [`MetricError::Setting`] if `top_k` is 0 or more than there
    /// are classes.
    pub fn update(mut self, logits: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
        let num_classes = logits.dims()[1];
        if self.top_k == 0 || self.top_k > num_classes {
            return Err(MetricError::Setting {
                metric: NAME,
                option: "top_k",
                value: self.top_k.to_string(),
                fix: format!("it is from 1 to the number of classes, {num_classes}"),
            });
        }
        let batch = Classified::read(NAME, logits, targets, None, self.ignore_index)?;
        let (mut correct, mut all) = (0, 0);
        for (_, scores, target) in batch.rows() {
            let own = scores[target];
            let before = scores[..target].iter().filter(|score| **score >= own).count();
            let after = scores[target..].iter().filter(|score| **score > own).count();
            correct += u64::from(before + after < self.top_k);
            all += 1;
        }
        self.counts.add(vec![correct, all]);
        Ok(self)
    }
}

impl Metric for Accuracy {
    fn merge(&mut self, other: Self) {
        self.counts.merge(other.counts, self.top_k == other.top_k);
    }

    fn compute(&self) -> f64 {
        match self.counts.get() {
            Some(&[correct, all]) => ratio(correct as f64, all as f64, f64::NAN),
            _ => f64::NAN,
        }
    }

    fn state(&self) -> Vec<f64> {
        self.counts.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.counts = Counts::from_state(NAME, state, Some(2), |counts| {
            let consistent = counts[0] <= counts[1];
            consistent
                .then_some(())
                .ok_or_else(|| format!("{} of {} are correct", counts[0], counts[1]))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn batch(logits: &[f32], classes: usize, targets: &[i64]) -> (Tensor<2>, Tensor<1, Int>) {
        let device = Device::flex().autodiff();
        let logits = TensorData::new(logits.to_vec(), [logits.len() / classes, classes]);
        (
            Tensor::<2>::from_data(logits, &device).require_grad(),
            Tensor::<1, Int>::from_data(TensorData::new(targets.to_vec(), [targets.len()]), &device),
        )
    }

    #[test]
    fn ties_go_to_the_lower_class() {
        let (logits, targets) = batch(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 3, &[0, 1, 2]);
        for (k, value) in [(1, 1.0 / 3.0), (2, 2.0 / 3.0), (3, 1.0)] {
            assert_eq!(
                Accuracy::new()
                    .top_k(k)
                    .update(&logits, &targets)
                    .unwrap()
                    .compute(),
                value
            );
        }
    }

    #[test]
    fn ignored_rows_may_hold_anything() {
        let (logits, targets) = batch(&[0.0, 1.0, f32::NAN, f32::NAN, 1.0, 0.0], 2, &[1, -100, 1]);
        let metric = Accuracy::new()
            .ignore_index(-100)
            .update(&logits, &targets)
            .unwrap();
        assert_eq!(metric.state(), [1.0, 2.0]);
        let class = Accuracy::new().update(&logits, &targets).unwrap_err().to_string();
        assert!(
            class.contains("row 1 of the targets holds the class -100"),
            "{class}"
        );
        let nan = Accuracy::new()
            .ignore_index(1)
            .update(&logits, &targets.clone().abs().mul_scalar(0));
        assert!(
            nan.unwrap_err()
                .to_string()
                .contains("element 2 of the logits is NaN")
        );
    }

    #[test]
    fn bad_input_is_an_error_with_the_fix() {
        let (logits, targets) = batch(&[0.0, 1.0, 1.0, 0.0], 2, &[1, 0, 1]);
        let shape = Accuracy::new().update(&logits, &targets).unwrap_err().to_string();
        assert!(shape.contains("targets have the shape [3], not [2]"), "{shape}");
        assert!(accuracy(logits.clone(), targets.clone()).is_err());
        let two = targets.narrow(0, 0, 2);
        for k in [0, 3] {
            let error = Accuracy::new().top_k(k).update(&logits, &two).unwrap_err();
            assert!(
                matches!(error, MetricError::Setting { option: "top_k", .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn the_function_counts_exactly_and_keeps_no_graph() {
        let rows = 5000;
        let logits: Vec<f32> = (0..rows)
            .flat_map(|row| [0.0, if row % 2 == 0 { 1.0 } else { -1.0 }])
            .collect();
        let (logits, targets) = batch(&logits, 2, &vec![1; rows]);
        let share = accuracy(logits.clone().cast(FloatDType::F16), targets.clone()).unwrap();
        assert_eq!((share.is_autodiff(), share.dims()), (false, [1]));
        assert_eq!(share.into_scalar::<f32>(), 0.5);
        assert_eq!(Accuracy::new().update(&logits, &targets).unwrap().compute(), 0.5);
    }

    #[test]
    fn a_state_of_another_metric_is_refused() {
        let mut metric = Accuracy::new();
        for state in [
            &[1.0][..],
            &[3.0, 2.0],
            &[-1.0, 2.0],
            &[0.5, 2.0],
            &[1.0, f64::INFINITY],
        ] {
            assert!(metric.load_state(state).is_err(), "{state:?}");
        }
        assert!(metric.compute().is_nan());
    }
}
