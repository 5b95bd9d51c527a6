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
    /// It is called once per parameter and backward pass; for tied parameters, once per path with the index of the first. When
    /// and in which order, [`GradientExchange::overlaps`] says.
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
///
/// Every parameter has one optimizer, and gradients are kept per optimizer: the group of one may be finished while that of
/// another goes on. A call for an optimizer concerns its parameters alone.
pub trait GradientExchange: Send {
    /// Where the backward pass delivers the gradients of the parameters of one optimizer.
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink>;

    /// Whether gradients are to arrive during the backward pass, late layers first, each as soon as it is complete, so that
    /// something can be done with it meanwhile. Asked once, when the engine is made.
    ///
    /// Default: no. They arrive together at the end of the backward pass then, and every sum in it is added up in the order of
    /// a plain Burn loop; see [`Turns`](crate::Turns).
    fn overlaps(&self) -> bool {
        false
    }

    /// Called before each backward pass; `last` says that its gradients complete an update, so that communication may start.
    ///
    /// It is not called for a micro-batch of weight zero, even if that is the last of its group, nor does a manual step know
    /// which backward pass is the last: then everything is left to [`finish`](Self::finish).
    fn begin_backward(&mut self, optimizer: usize, last: bool);

    /// Waits for what is under way and takes the gradients, in the order of their indices.
    ///
    /// `weight` is the sum of this rank's loss weights; the sum over all ranks is returned with the gradients.
    ///
    /// # Errors
    ///
    /// What went wrong in the sink or between ranks.
    fn finish(&mut self, optimizer: usize, weight: f64) -> Result<(Vec<Gradient>, f64), Error>;

    /// Drops the gradients of a group that will not be finished, on all ranks alike.
    ///
    /// # Errors
    ///
    /// What went wrong with communication that was under way.
    fn discard(&mut self, optimizer: usize) -> Result<(), Error>;
}
