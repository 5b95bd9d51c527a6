use std::any::Any;
use std::fmt::Debug;

use crate::Error;

/// The mergeable state of a metric: what one batch contributes, and what all batches add up to.
///
/// A step computes the state of its batch and logs it with `step.log_metric(name, state)`; the trainer merges the states of
/// all batches (and ranks) and computes the value once, at the end of the epoch. So a metric is the same number for any
/// batch size and any number of ranks, unlike a mean of per-batch values.
///
/// `merge` is associative, and commutative up to the order of what is listed.
pub trait Metric: Debug + Clone + Send + 'static {
    /// Adds what `other` has counted.
    fn merge(&mut self, other: Self);

    /// The value of everything that was counted; not-a-number when nothing was.
    fn compute(&self) -> f64;

    /// Further values, logged as `name/component`: classes, cells of a matrix, quantiles.
    fn components(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    /// The state as numbers, for checkpoints and for other ranks.
    fn state(&self) -> Vec<f64>;

    /// Takes over a state that [`state`](Metric::state) gave; the configuration stays its own.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the numbers cannot be a state of this metric; nothing has changed then.
    fn load_state(&mut self, state: &[f64]) -> Result<(), Error>;
}

/// A [`Metric`] without its type. Implemented for every metric; users implement [`Metric`].
pub trait ErasedMetric: Debug + Send + 'static {
    /// The type of the metric, for messages.
    fn kind(&self) -> &'static str;
    /// Adds what `other` has counted, if it is the same metric.
    ///
    /// # Errors
    ///
    /// [`Error::MetricKind`] with `name` if the types differ.
    fn merge(&mut self, name: &str, other: Box<dyn ErasedMetric>) -> Result<(), Error>;
    /// See [`Metric::compute`].
    fn compute(&self) -> f64;
    /// See [`Metric::components`].
    fn components(&self) -> Vec<(String, f64)>;
    /// See [`Metric::state`].
    fn state(&self) -> Vec<f64>;
    /// See [`Metric::load_state`].
    ///
    /// # Errors
    ///
    /// As [`Metric::load_state`].
    fn load_state(&mut self, state: &[f64]) -> Result<(), Error>;
    /// The metric with its type still to be named.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    /// A copy.
    fn clone_box(&self) -> Box<dyn ErasedMetric>;
}

impl<M: Metric> ErasedMetric for M {
    fn kind(&self) -> &'static str {
        std::any::type_name::<M>()
    }

    fn merge(&mut self, name: &str, other: Box<dyn ErasedMetric>) -> Result<(), Error> {
        let second = other.kind();
        let other = other.into_any().downcast::<M>().map_err(|_| Error::MetricKind {
            name: name.to_owned(),
            first: self.kind().to_owned(),
            second: second.to_owned(),
        })?;
        Metric::merge(self, *other);
        Ok(())
    }

    fn compute(&self) -> f64 {
        Metric::compute(self)
    }

    fn components(&self) -> Vec<(String, f64)> {
        Metric::components(self)
    }

    fn state(&self) -> Vec<f64> {
        Metric::state(self)
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        Metric::load_state(self, state)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn clone_box(&self) -> Box<dyn ErasedMetric> {
        Box::new(self.clone())
    }
}
