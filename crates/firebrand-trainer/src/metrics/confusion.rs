use burn::tensor::{Int, Tensor};
use firebrand_core::{Error, Metric};

use super::MetricError;
use super::counts::{Counts, ratio};
use super::input::{self, Classified};

const NAME: &str = "ConfusionMatrix";

/// How often each class was taken for each: rows are the right classes, columns the predicted ones.
///
/// The value is the share of the diagonal, the accuracy. The cells are logged as `name/row/column` up to
/// [`MAX_LOGGED_CLASSES`](Self::MAX_LOGGED_CLASSES) classes; of more, read them with [`count`](Self::count).
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::ConfusionMatrix;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 1, 0], &device);
/// let matrix = ConfusionMatrix::new(2).update(&logits, &targets)?;
/// assert_eq!((matrix.count(0, 0), matrix.count(0, 1)), (1, 1));
/// assert_eq!((matrix.count(1, 0), matrix.count(1, 1)), (0, 1));
/// assert_eq!(matrix.compute(), 2.0 / 3.0);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ConfusionMatrix {
    num_classes: usize,
    ignore_index: Option<i64>,
    /// Row-major, `num_classes` × `num_classes`.
    counts: Counts,
}

impl ConfusionMatrix {
    /// Up to this number of classes the cells are logged one by one.
    pub const MAX_LOGGED_CLASSES: usize = 32;

    /// For `num_classes` classes; no rows are left out. Memory: 8 bytes for each of `num_classes`² cells.
    pub fn new(num_classes: usize) -> Self {
        Self {
            num_classes,
            ignore_index: None,
            counts: Counts::default(),
        }
    }

    /// Leaves out rows with this target, such as padding. Default: none.
    #[must_use]
    pub fn ignore_index(mut self, class: i64) -> Self {
        self.ignore_index = Some(class);
        self
    }

    /// Counts the rows of `[samples, num_classes]` logits (or probabilities) and `[samples]` targets.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`], [`MetricError::Class`] or [`MetricError::Value`] if the batch does not fit,
    /// [`MetricError::Setting`] if there are no classes, or more than 11,585.
    pub fn update(mut self, logits: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
        let mut counts = self.cells()?;
        let batch = Classified::read(NAME, logits, targets, Some(self.num_classes), self.ignore_index)?;
        for (_, scores, target) in batch.rows() {
            counts[target * self.num_classes + input::arg_max(scores)] += 1;
        }
        self.counts.add(counts);
        Ok(self)
    }

    /// Counts `[samples]` predicted classes and `[samples]` targets.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub fn update_classes(
        mut self,
        predicted: &Tensor<1, Int>,
        targets: &Tensor<1, Int>,
    ) -> Result<Self, MetricError> {
        let mut counts = self.cells()?;
        let pairs = input::class_pairs(NAME, predicted, targets, self.num_classes, self.ignore_index)?;
        for (predicted, target) in pairs {
            counts[target * self.num_classes + predicted] += 1;
        }
        self.counts.add(counts);
        Ok(self)
    }

    fn cells(&self) -> Result<Vec<u64>, MetricError> {
        let cells = self.num_classes.checked_mul(self.num_classes);
        Ok(vec![0; input::num_counts(NAME, self.num_classes, cells)?])
    }

    /// The number of classes.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// How often the class `target` was predicted as `predicted`; 0 for what is no class.
    pub fn count(&self, target: usize, predicted: usize) -> u64 {
        if predicted >= self.num_classes {
            return 0;
        }
        let cell = target.saturating_mul(self.num_classes).saturating_add(predicted);
        self.counts
            .get()
            .and_then(|counts| counts.get(cell))
            .copied()
            .unwrap_or(0)
    }

    /// The number of rows that were counted.
    pub fn total(&self) -> u64 {
        self.counts.get().map_or(0, |counts| counts.iter().sum())
    }
}

impl Metric for ConfusionMatrix {
    fn merge(&mut self, other: Self) {
        self.counts
            .merge(other.counts, self.num_classes == other.num_classes);
    }

    fn compute(&self) -> f64 {
        let diagonal: u64 = (0..self.num_classes).map(|class| self.count(class, class)).sum();
        ratio(diagonal as f64, self.total() as f64, f64::NAN)
    }

    fn components(&self) -> Vec<(String, f64)> {
        let shown = if self.num_classes <= Self::MAX_LOGGED_CLASSES {
            self.counts.get()
        } else {
            None
        };
        let cells = shown.unwrap_or_default().iter().enumerate();
        cells
            .map(|(cell, count)| {
                (
                    format!("{}/{}", cell / self.num_classes, cell % self.num_classes),
                    *count as f64,
                )
            })
            .collect()
    }

    fn state(&self) -> Vec<f64> {
        self.counts.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        let cells = self.num_classes.checked_mul(self.num_classes);
        self.counts = Counts::from_state(NAME, state, cells, |_| Ok(()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn rows_are_targets_and_columns_predictions() {
        let device = Device::flex();
        let predicted = Tensor::<1, Int>::from_ints([0, 2, 1, 0, 2, 1], &device);
        let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 9], &device);
        let matrix = ConfusionMatrix::new(3)
            .ignore_index(9)
            .update_classes(&predicted, &targets)
            .unwrap();
        assert_eq!(matrix.state(), [2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0]);
        assert_eq!(
            (matrix.total(), matrix.count(1, 2), matrix.count(2, 1)),
            (5, 2, 1)
        );
        assert_eq!(
            (
                matrix.count(0, 3),
                matrix.count(3, 0),
                matrix.count(usize::MAX, 1)
            ),
            (0, 0, 0)
        );
        assert_eq!(matrix.compute(), 0.4);
        assert_eq!(matrix.components()[5], ("1/2".to_owned(), 2.0));
    }

    #[test]
    fn classes_and_sizes_are_checked() {
        let device = Device::flex();
        let ints = |values: [i32; 2]| Tensor::<1, Int>::from_ints(values, &device);
        let matrix = ConfusionMatrix::new(2);
        for (predicted, targets) in [([0, 2], [0, 1]), ([0, 1], [0, -1])] {
            let result = matrix.clone().update_classes(&ints(predicted), &ints(targets));
            assert!(matches!(
                result,
                Err(MetricError::Class {
                    row: 1,
                    num_classes: 2,
                    ..
                })
            ));
        }
        let one = Tensor::<1, Int>::from_ints([0], &device);
        assert!(matches!(
            matrix.update_classes(&one, &ints([0, 1])),
            Err(MetricError::Shape { .. })
        ));
        for num_classes in [0, 1 << 31, usize::MAX] {
            let result = ConfusionMatrix::new(num_classes).update_classes(&one, &one);
            assert!(
                matches!(
                    result,
                    Err(MetricError::Setting {
                        option: "num_classes",
                        ..
                    })
                ),
                "{num_classes}"
            );
        }
        let logits = Tensor::<2>::ones([1, 3], &device);
        let error = ConfusionMatrix::new(2)
            .update(&logits, &one)
            .unwrap_err()
            .to_string();
        assert!(error.contains("[1, 3], not [samples, 2]"), "{error}");
    }

    #[test]
    fn matrices_of_other_sizes_have_no_sum() {
        let one = Tensor::<1, Int>::from_ints([0], &Device::flex());
        let mut matrix = ConfusionMatrix::new(2).update_classes(&one, &one).unwrap();
        assert!(matrix.clone().load_state(&[1.0; 9]).is_err());
        matrix.merge(ConfusionMatrix::new(3).update_classes(&one, &one).unwrap());
        assert!(matrix.compute().is_nan() && matrix.components().is_empty());
        // For good: a sound state that is added later does not hide it.
        matrix.merge(ConfusionMatrix::new(2).update_classes(&one, &one).unwrap());
        assert!(matrix.compute().is_nan());
    }
}
