use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Shape};
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

/// What is known of a gradient before it arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientSpec {
    /// The index of the parameter in the table; for tied parameters, of the first.
    pub parameter: usize,
    /// The path of the parameter.
    pub path: String,
    /// The shape.
    pub shape: Shape,
    /// How often a backward pass delivers it: once, or for tied parameters once for each path.
    pub uses: usize,
}

/// What the gradients of one optimizer will be.
#[derive(Clone, Debug)]
pub struct GradientSpecs {
    /// Of the parameters that are trained now, in the order of the table.
    pub parameters: Vec<GradientSpec>,
    /// The dtype of all of them.
    pub dtype: FloatDType,
    /// Where they lie, without autodiff.
    pub device: Device,
}

/// The sum of what the micro-batches of one update gave for one parameter.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The index of the parameter in the table.
    pub parameter: usize,
    /// The sum over micro-batches, and over ranks, each divided by the number of ranks.
    pub value: AnyTensor,
}

/// What this rank says to the others with the gradients of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// The sum of its loss weights.
    pub weight: f64,
    /// The first of its losses that is not finite.
    pub failed: Option<f64>,
    /// Numbers of the trainer's: whether to stop, the time, ….
    pub notes: Vec<f64>,
}

/// The gradients of an update, and what all ranks said with them.
#[derive(Clone, Debug, Default)]
pub struct Reduced {
    /// In the order of their indices, of the parameters that were used on some rank.
    pub gradients: Vec<Gradient>,
    /// The sum over the ranks' weights.
    pub weight: f64,
    /// The first rank with a loss that is not finite, and that loss.
    pub failed: Option<(usize, f64)>,
    /// The sums over the ranks' notes.
    pub notes: Vec<f64>,
}

/// What a strategy does with gradients: the one place in which strategies differ during a step.
///
/// Every parameter has one optimizer, and gradients are kept per optimizer: the group of one may be finished while that of
/// another goes on. A call for an optimizer concerns its parameters alone.
pub trait GradientExchange: Send {
    /// Says which gradients an optimizer will get: before the first backward pass, and whenever parameters are frozen or
    /// thawed. Nothing is under way then.
    ///
    /// # Errors
    ///
    /// If there is no memory for them.
    fn expect(&mut self, optimizer: usize, specs: GradientSpecs) -> Result<(), Error> {
        let _ = (optimizer, specs);
        Ok(())
    }

    /// Where the backward pass delivers the gradients of the parameters of one optimizer.
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink>;

    /// How many ranks add their gradients up. The loss is divided by it beforehand, so that the sum needs no division where the
    /// ranks and micro-batches of an update weigh the same.
    fn num_ranks(&self) -> usize {
        1
    }

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

    /// Waits for what is under way and takes the gradients, and what the ranks say with them.
    ///
    /// # Errors
    ///
    /// What went wrong in the sink or between ranks.
    fn finish(&mut self, optimizer: usize, share: Share) -> Result<Reduced, Error>;

    /// Drops the gradients of a group that will not be finished, on all ranks alike.
    ///
    /// # Errors
    ///
    /// What went wrong with communication that was under way.
    fn discard(&mut self, optimizer: usize) -> Result<(), Error>;

    /// One number that all ranks have alike: that of the first.
    ///
    /// # Errors
    ///
    /// What went wrong between ranks.
    fn agree(&mut self, value: f64) -> Result<f64, Error> {
        Ok(value)
    }

    /// What a checkpoint keeps, so that a resumed run adds up in the same order.
    fn state(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Takes over what [`state`](Self::state) gave. What was saved with another number of ranks, or by another strategy, is left
    /// aside.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    fn load_state(&mut self, state: &serde_json::Value) -> Result<(), Error> {
        let _ = state;
        Ok(())
    }
}
