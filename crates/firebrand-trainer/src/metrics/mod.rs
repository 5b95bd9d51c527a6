//! Metrics that mean the same for any batch size and any number of ranks.
//!
//! Every metric here is its own mergeable state, and all have one form: build it with its options, `update` it with the tensors
//! of a batch, log it. The trainer merges what the batches and the ranks logged, and takes the value once, at the end of the
//! epoch; in a loop of one's own, [`Metric::merge`](firebrand_core::Metric::merge) or another `update` does the same.
//!
//! ```
//! # use burn::tensor::{Device, Int, Tensor};
//! # use firebrand_trainer::metrics::MetricError;
//! use firebrand_core::Metric;
//! use firebrand_trainer::metrics::{Accuracy, Average, FBeta};
//!
//! # fn main() -> Result<(), MetricError> {
//! # let device = Device::flex();
//! let logits = Tensor::<2>::from_floats([[2.0, 0.1, 0.3], [0.2, 0.1, 0.9], [0.0, 0.4, 0.3]], &device);
//! let targets = Tensor::<1, Int>::from_ints([0, 2, 2], &device);
//!
//! // In a step: step.log_metric("val_f1", FBeta::f1(3).update(&logits, &targets)?);
//! let batch = FBeta::f1(3).average(Average::Macro).per_class().update(&logits, &targets)?;
//! assert_eq!(batch.scores(), [1.0, 0.0, 2.0 / 3.0]);
//! assert_eq!(batch.compute(), (1.0 + 0.0 + 2.0 / 3.0) / 3.0);
//!
//! // In a loop of one's own: one metric for all batches, or one for each, merged.
//! let mut all = Accuracy::new().top_k(2).update(&logits, &targets)?;
//! all.merge(Accuracy::new().top_k(2).update(&logits, &targets)?);
//! assert_eq!(all.compute(), 1.0);
//! # Ok(())
//! # }
//! ```
//!
//! | metric | value | [components](firebrand_core::Metric::components) |
//! |---|---|---|
//! | [`Accuracy`] | share of samples that are right, among the top k | |
//! | [`ConfusionMatrix`] | share of the diagonal | the cells, `row/column` |
//! | [`Precision`], [`Recall`], [`FBeta`] | by [`Average`]: macro, micro, weighted, of one class | the classes, on request |
//! | [`Auroc`] | area under the ROC curve, exact or binned, binary or one against the rest | the classes, on request |
//! | [`MeanSquaredError`] | mean of squares, or its root | |
//! | [`MeanAbsoluteError`] | mean of absolute differences | |
//! | [`Perplexity`] | exponential of the mean negative log-likelihood of a token | |
//! | [`Mean`] | weighted mean of any numbers | |
//!
//! What holds for all of them:
//!
//! - Counts are whole numbers and sums are `f64`, whatever the dtype of the tensors: `f64`, `f32`, `f16` or `bf16`. Tensors with
//!   a graph may be given as they are; nothing is kept of it.
//! - Logits are `[samples, classes]` and targets `[samples]`; reshape sequences and images to one row for each prediction.
//! - `update` reads each tensor back once, which waits for the device. That is of no weight in an evaluation step; in
//!   a training step prefer [`accuracy`], which stays on the device.
//! - A batch that does not fit is a [`MetricError`]: shapes that differ, a class out of range, a score that is not a number.
//! - The value of nothing is not-a-number; so is, for good, what comes of merging metrics with different options.

mod accuracy;
mod auroc;
mod class_counts;
mod confusion;
mod counts;
mod error;
mod fbeta;
mod input;
mod mean;
mod perplexity;
mod regression;

pub use accuracy::{Accuracy, accuracy};
pub use auroc::Auroc;
pub use class_counts::Average;
pub use confusion::ConfusionMatrix;
pub use error::MetricError;
pub use fbeta::{FBeta, Precision, Recall};
pub use mean::Mean;
pub use perplexity::Perplexity;
pub use regression::{MeanAbsoluteError, MeanSquaredError};

#[cfg(test)]
mod properties;
