use std::fmt;

use firebrand_core::{BoxError, ErrorChain, StepContext};

/// Why an optimizer step could not be done.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A broken contract of the module.
    #[error(transparent)]
    Core(#[from] firebrand_core::Error),
    /// The user's step returned an error.
    #[error("{step} failed in epoch {epoch}, batch {batch_index}, global step {global_step}")]
    Step {
        /// The method that failed.
        step: &'static str,
        /// The epoch.
        epoch: u64,
        /// The index of the batch in the epoch.
        batch_index: u64,
        /// The number of updates so far.
        global_step: u64,
        /// What the user's code returned.
        #[source]
        source: BoxError,
    },
    /// The loss is not one number.
    #[error(
        "training_step must return a loss of one element, and returned one of {elements} elements; reduce it with \
         `.mean()` or `.sum()`"
    )]
    LossShape {
        /// The number of elements of the loss.
        elements: usize,
    },
    /// The loss does not depend on the parameters.
    #[error(
        "the loss of training_step does not depend on any trained parameter: it has no graph to go back through. \
         Compute it from the module's output without `.inner()`, `.detach()` or `.into_data()`, and leave at least one \
         parameter unfrozen"
    )]
    LossWithoutGraph,
    /// The loss has a graph, but no trained parameter in it.
    #[error(
        "no trained parameter got a gradient: the loss of training_step was computed from another module, or from a clone \
         that was made before the step. Compute it from `self`"
    )]
    NoGradient,
    /// The loss is not finite.
    #[error(
        "the loss is {value} at global step {global_step} (epoch {epoch}, batch {batch_index}). Lower the learning rate, \
         clip gradients (`gradient_clip`, --gradient-clip-val), or look at the data of this batch; \
         `non_finite(NonFinite::Skip)` or --non-finite skip leaves such updates out instead"
    )]
    NonFiniteLoss {
        /// The value: not-a-number or infinite.
        value: f64,
        /// The number of updates so far.
        global_step: u64,
        /// The epoch.
        epoch: u64,
        /// The index of the batch in the epoch.
        batch_index: u64,
    },
    /// A gradient is not finite.
    #[error(
        "the gradient of '{path}' is not finite at global step {global_step} (epoch {epoch}, batch {batch_index}). Lower \
         the learning rate, or clip gradients (`gradient_clip`, --gradient-clip-val); `detect_anomaly(true)` names the first such gradient of the \
         backward pass, and `non_finite(NonFinite::Skip)` or --non-finite skip leaves such updates out instead"
    )]
    NonFiniteGradient {
        /// The first parameter in the module whose gradient is not finite; with `detect_anomaly`, the first of the backward pass.
        path: String,
        /// The number of updates so far.
        global_step: u64,
        /// The epoch.
        epoch: u64,
        /// The index of the batch in the epoch.
        batch_index: u64,
    },
    /// The limit of gradient clipping is wrong.
    #[error(
        "gradient_clip: {clip:?} must have a limit above 0, such as `GradientClip::Norm(1.0)`; leave it out to not clip"
    )]
    Clip {
        /// The option.
        clip: crate::GradientClip,
    },
    /// The configuration of the optimizers is wrong.
    #[error("configure_optimizers: {reason}")]
    Optimizer {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A metric that a schedule watches was not logged.
    #[error(
        "the plateau schedule of '{optimizer}' watches '{monitor}', which was not logged; logged were: {logged}. Log it \
         with `step.log(\"{monitor}\", ..)`"
    )]
    MissingMetric {
        /// The optimizer.
        optimizer: String,
        /// The metric that is watched.
        monitor: String,
        /// The metrics that were logged.
        logged: String,
    },
    /// A loss of another rank is not finite.
    #[error(
        "the loss of rank {rank} is {value} at global step {global_step} (epoch {epoch}); that rank says more"
    )]
    NonFiniteElsewhere {
        /// The first rank with such a loss.
        rank: usize,
        /// The value: not-a-number or infinite.
        value: f64,
        /// The number of updates so far.
        global_step: u64,
        /// The epoch.
        epoch: u64,
    },
    /// Some ranks used a parameter in a step and others did not.
    #[error(
        "'{path}' got a gradient on {ranks} of {world_size} ranks in this update, and {} on this one; if the ranks are meant to use \
         different parameters, set `find_unused_parameters`", if *.here { "one" } else { "none" }
    )]
    UnusedParameter {
        /// The parameter.
        path: String,
        /// The number of ranks that used it.
        ranks: usize,
        /// The number of ranks.
        world_size: usize,
        /// Whether this rank used it.
        here: bool,
    },
    /// The ranks train different modules.
    #[error(
        "the module of rank {rank} is not that of rank 0: {reason}; every rank must build the same module"
    )]
    DifferentModule {
        /// This rank.
        rank: usize,
        /// The first difference.
        reason: String,
    },
    /// What went wrong between ranks.
    #[error(transparent)]
    Ranks(#[from] firebrand_collective::Error),
    /// An option of the loss scaler, or its state in a checkpoint, is out of range.
    #[error("the loss scaler: {reason}")]
    LossScaler {
        /// What is wrong, and what is right.
        reason: String,
    },
    /// Gradients overflow however small the loss is.
    #[error(
        "gradients are not finite although the loss scale is down to {scale}, and it may not fall below {min_scale}: they overflow \
         for another reason than the scale. Choose bf16-mixed or 32-true (`precision`, --precision), lower the learning rate, or \
         look for a step whose values leave the range of float16 (±65504); `detect_anomaly(true)` in 32-true names the parameter"
    )]
    LossScaleTooSmall {
        /// The scale.
        scale: f32,
        /// The smallest allowed.
        min_scale: f32,
    },
    /// Weights in float16, and nothing that keeps their gradients from vanishing.
    #[error(
        "16-true trains in float16 throughout, where gradients below 6e-8 vanish: choose 16-mixed, which keeps float32 weights and \
         scales the loss, or bf16-true; or ask for a loss scaler (`loss_scaler`) if float16 weights are what you want"
    )]
    UnscaledF16,
    /// A batch norm of Burn's under a precision of 16 bits.
    #[error(
        "'{path}' is Burn's batch norm, whose input must have the dtype of its float32 statistics, and under {precision} it has 16 bits; \
         use `firebrand::nn::BatchNorm` in its place, which has the same parameters"
    )]
    BatchNorm {
        /// The path of the layer.
        path: String,
        /// The precision.
        precision: &'static str,
    },
    /// Two float dtypes met in a step under mixed precision.
    #[error(
        "two float dtypes met in {step} under {precision}: {reason}.{kept} Losses and targets are float32: give them \
         `step.full_precision(..)` of the module's output, and make other tensors with the dtype of what they meet"
    )]
    MixedDTypes {
        /// The method of the module.
        step: &'static str,
        /// The precision.
        precision: &'static str,
        /// What Burn said.
        reason: String,
        /// Which parameters are left out of the precision, and what that asks of the module.
        kept: String,
    },
    /// The device cannot compute in a dtype.
    #[error("the device {device} cannot compute in {dtype}; choose another precision or accelerator")]
    UnsupportedDType {
        /// The device.
        device: String,
        /// The dtype.
        dtype: String,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ErrorChain(self))
    }
}

impl Error {
    /// What a method of the user returned, with where it happened.
    pub fn step(method: &'static str, step: &StepContext, source: BoxError) -> Self {
        Self::Step {
            step: method,
            epoch: step.epoch(),
            batch_index: step.batch_index(),
            global_step: step.global_step(),
            source,
        }
    }

    pub(crate) fn optimizer(reason: impl Into<String>) -> Self {
        Self::Optimizer {
            reason: reason.into(),
        }
    }
}
