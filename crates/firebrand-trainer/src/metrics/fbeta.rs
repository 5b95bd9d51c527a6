use burn::tensor::{Int, Tensor};
use firebrand_core::{Error, Metric};

use super::MetricError;
use super::class_counts::{Average, ClassCounts, Score};

/// The share of the predictions of a class that are right: `tp / (tp + fp)`.
///
/// A class that was never predicted has the precision 0 (`zero_division=0` of scikit-learn and torchmetrics).
#[derive(Debug, Clone, PartialEq)]
pub struct Precision(ClassCounts);

impl Precision {
    /// For `num_classes` classes.
    pub fn new(num_classes: usize) -> Self {
        Self(ClassCounts::new(Score::Precision, num_classes))
    }
}

/// The share of the samples of a class that were found: `tp / (tp + fn)`.
///
/// A class that is nowhere the target has the recall 0 (`zero_division=0` of scikit-learn and torchmetrics).
#[derive(Debug, Clone, PartialEq)]
pub struct Recall(ClassCounts);

impl Recall {
    /// For `num_classes` classes.
    pub fn new(num_classes: usize) -> Self {
        Self(ClassCounts::new(Score::Recall, num_classes))
    }
}

/// The weighted harmonic mean of precision and recall, `(1 + β²)·tp / ((1 + β²)·tp + β²·fn + fp)`; β = 1 gives F1.
///
/// A class that was neither predicted nor the target has the score 0 (`zero_division=0` of scikit-learn and
/// torchmetrics); [`Average::Macro`] leaves it out.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::{Average, FBeta};
///
/// let device = Device::flex();
/// let predicted = Tensor::<1, Int>::from_ints([0, 1, 1, 1], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 0, 1, 1], &device);
/// let f1 = FBeta::f1(2).average(Average::Class(1)).update_classes(&predicted, &targets)?;
/// assert_eq!(f1.compute(), 0.8);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct FBeta(ClassCounts);

impl FBeta {
    /// For `num_classes` classes; recall counts `beta` times as much as precision.
    pub fn new(beta: f64, num_classes: usize) -> Self {
        Self(ClassCounts::new(Score::FBeta(beta), num_classes))
    }

    /// F1: precision and recall count alike.
    pub fn f1(num_classes: usize) -> Self {
        Self::new(1.0, num_classes)
    }
}

/// What the three scores share: their options, and a metric that is their counts.
macro_rules! class_score {
    ($($name:ident),+) => {$(
        impl $name {
            /// How the scores of the classes become one value. Default [`Average::Macro`].
            #[must_use]
            pub fn average(mut self, average: Average) -> Self {
                self.0.average = average;
                self
            }

            /// Leaves out rows with this target, such as padding. Default: none.
            #[must_use]
            pub fn ignore_index(mut self, class: i64) -> Self {
                self.0.ignore_index = Some(class);
                self
            }

            /// Logs the score of each class as well, as `name/class`. Default: only the value.
            #[must_use]
            pub fn per_class(mut self) -> Self {
                self.0.per_class = true;
                self
            }

            /// Counts the rows of `[samples, num_classes]` logits (or probabilities) and `[samples]` targets. Of equal
            /// logits the one with the lower class is taken.
            ///
            /// # Errors
            ///
            /// [`MetricError::Shape`], [`MetricError::Class`] or [`MetricError::Value`] if the batch does not fit,
            /// [`MetricError::Setting`] if an option makes no sense.
            pub fn update(self, logits: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
                Ok(Self(self.0.update(stringify!($name), logits, targets)?))
            }

            /// Counts `[samples]` predicted classes and `[samples]` targets, as where a threshold decides.
            ///
            /// # Errors
            ///
            /// As [`update`](Self::update).
            pub fn update_classes(
                self,
                predicted: &Tensor<1, Int>,
                targets: &Tensor<1, Int>,
            ) -> Result<Self, MetricError> {
                Ok(Self(self.0.update_classes(stringify!($name), predicted, targets)?))
            }

            /// The score of each class, from 0; empty when nothing was counted.
            pub fn scores(&self) -> Vec<f64> {
                self.0.scores()
            }
        }

        impl Metric for $name {
            fn merge(&mut self, other: Self) {
                self.0.merge(other.0);
            }

            fn compute(&self) -> f64 {
                self.0.compute()
            }

            fn components(&self) -> Vec<(String, f64)> {
                self.0.components()
            }

            fn state(&self) -> Vec<f64> {
                self.0.state()
            }

            fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
                self.0.load_state(stringify!($name), state)
            }
        }
    )+};
}

class_score!(Precision, Recall, FBeta);

#[cfg(test)]
#[path = "fbeta_tests.rs"]
mod tests;
