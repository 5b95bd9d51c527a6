use std::sync::Arc;

use firebrand_core::AnyTensor;

use crate::Error;

/// Receives the gradient of each parameter during the backward pass.
///
/// A sink runs inside Burn's graph lock: it stores and signals. It never blocks, never calls autodiff and never panics; an
/// error waits in it until [`GradientExchange::finish`].
pub trait GradientSink: Send + Sync {
    /// Takes the complete gradient of the parameter with an index, in the dtype of its master weight and without autodiff.
    ///
    /// It is called once per parameter and backward pass, in reverse order of use; for tied parameters, once per path with
    /// the index of the first.
    fn push(&self, parameter: usize, gradient: AnyTensor);
}

/// The sum of what the micro-batches of one update gave for one parameter.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The index of the parameter in the table.
    pub parameter: usize,
    /// The sum over micro-batches, and over ranks where there are several.
    pub value: AnyTensor,
}

/// What a strategy does with gradients: the one place in which strategies differ during a step.
pub trait GradientExchange: Send {
    /// Where the backward pass delivers to.
    fn sink(&self) -> Arc<dyn GradientSink>;

    /// Called before each backward pass; `last` says that its gradients complete an update, so that communication may start.
    fn begin_backward(&mut self, last: bool);

    /// Waits for what is under way and takes the gradients, in the order of their indices.
    ///
    /// `weight` is the sum of this rank's loss weights; the sum over all ranks is returned with the gradients.
    ///
    /// # Errors
    ///
    /// What went wrong in the sink or between ranks.
    fn finish(&mut self, weight: f64) -> Result<(Vec<Gradient>, f64), Error>;
}
