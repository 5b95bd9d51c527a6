use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Initializer, Module, ModuleDisplay, Param, RunningState};
use burn::tensor::{Device, Tensor};
use firebrand_core::{AnyTensor, StepContext};

use super::normalize::normalize;
use super::ranks::Ranks;
use super::statistics::Statistics;
use crate::{Error, Result, cast, wide};

/// Settings of a [`BatchNorm`].
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// The number of channels, the second axis of the input.
    pub num_features: usize,
    /// What is added to the variance before its root is taken. Default: 1e-5.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The part that a batch has in the running statistics, in `[0, 1]`. Default: 0.1.
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Whether the statistics in training are those of the batches of all ranks together. Default: no.
    #[config(default = false)]
    pub synchronize: bool,
}

/// Batch normalisation over every axis but the second, as in [Ioffe and Szegedy, 2015](https://arxiv.org/abs/1502.03167):
///
/// ```text
/// y = (x − mean) / √(variance + epsilon) · gamma + beta
/// ```
///
/// In training, mean and (biased) variance are those of the batch, and with `synchronize` those of the batches of all ranks
/// together, weighted by their numbers of values. Gradients flow through them, over all ranks too. In evaluation, and where
/// the layer is frozen, they are the running statistics:
///
/// ```text
/// running = (1 − momentum) · running + momentum · batch
/// ```
///
/// The variance that enters them is the unbiased one, `n / (n − 1)` times that of the batch, as in PyTorch. Burn's own layer
/// takes the biased one.
///
/// Statistics are computed in float32 (float64 for a float64 input) whatever the dtypes of input and parameters. The output has the
/// dtype of the input.
///
/// # Ranks
///
/// A synchronised layer exchanges one message in the forward and one in the backward pass, over a group of its own
/// ([`layer_group`](firebrand_collective::ProcessGroup::layer_group)). So all ranks must use such layers in the same order. All get the
/// same running statistics. The backward pass waits for the other ranks, and holds the lock of its graph meanwhile: ranks that are
/// threads of one process must not share a graph, that is, each builds a module of its own. If the exchange
/// fails there, the gradients become not-a-number and the group's [`health`](firebrand_collective::Health) has the cause, with which
/// the trainer ends the step.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BatchNorm {
    /// The scale of each channel.
    pub gamma: Param<Tensor<1>>,
    /// The shift of each channel.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer takes the statistics of the batch where gradients are computed; cleared by `freeze`.
    pub training: Param<Flag>,
    /// The mean that evaluation takes.
    pub running_mean: RunningState<Tensor<1>>,
    /// The variance that evaluation takes.
    pub running_var: RunningState<Tensor<1>>,
    /// What tells this layer from Burn's, which no 16-bit input may reach.
    pub any_dtype: AnyDType,
    /// The part that a batch has in the running statistics.
    pub momentum: f64,
    /// What is added to the variance.
    pub epsilon: f64,
    /// Whether the statistics in training are those of all ranks.
    pub synchronize: bool,
}

/// A mark of layers that take inputs of any dtype although their statistics are float32.
#[derive(Module, Debug, Default)]
pub struct AnyDType {
    #[module(skip)]
    mark: (),
}

pub(super) const LAYER: &str = "batch norm";

impl BatchNormConfig {
    /// A layer on a device: scale 1, shift 0, running mean 0, running variance 1.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting that is out of its range.
    pub fn init(&self, device: &Device) -> Result<BatchNorm> {
        let wrong = |reason: String| Err(Error::Config { layer: LAYER, reason });
        if self.num_features == 0 {
            return wrong("num_features is 0, and must be the number of channels of the input".to_owned());
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return wrong(format!(
                "epsilon is {}, and must be finite and above 0, such as 1e-5",
                self.epsilon
            ));
        }
        if !(0.0..=1.0).contains(&self.momentum) {
            return wrong(format!(
                "momentum is {}, and must lie in [0, 1]; it is the part of the new value, such as 0.1",
                self.momentum
            ));
        }
        let shape = [self.num_features];
        // Float32 also where the device's default has 16 bits: a momentum of 0.1 is lost in those.
        let running = |value: Tensor<1>| {
            let dtype = wide(value.dtype());
            RunningState::new(cast(value, dtype.into()))
        };
        Ok(BatchNorm {
            gamma: Initializer::Ones.init(shape, device),
            beta: Initializer::Zeros.init(shape, device),
            training: Param::from_bool(true),
            running_mean: running(Tensor::zeros(shape, device)),
            running_var: running(Tensor::ones(shape, device)),
            any_dtype: AnyDType::default(),
            momentum: self.momentum,
            epsilon: self.epsilon,
            synchronize: self.synchronize,
        })
    }
}

impl BatchNorm {
    /// Normalises `[batch, num_features, ...]`; the output has the shape and the dtype of the input.
    ///
    /// `step` is that of the calling `training_step`, `validation_step` or other: it knows the other ranks.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] for an input of another shape, [`Error::TooFewValues`] in training if there is one value for each channel, and
    /// [`Error::Ranks`] if a rank failed.
    pub fn forward<const D: usize>(&self, input: Tensor<D>, step: &StepContext) -> Result<Tensor<D>> {
        self.check(&input)?;
        // As Burn's layer decides: the device says whether gradients are computed, the flag whether this layer takes part.
        if input.device().is_autodiff() && self.training.is_enabled() {
            self.forward_train(input, step)
        } else {
            Ok(self.forward_inference(input))
        }
    }

    fn check<const D: usize>(&self, input: &Tensor<D>) -> Result<()> {
        let num_features = self.gamma.lazy_shape()[0];
        let shape = input.shape();
        if D >= 2 && shape[1] == num_features && shape.num_elements() > 0 {
            return Ok(());
        }
        Err(Error::Shape {
            layer: LAYER,
            what: "the input",
            expected: format!("[batch, {num_features}, ...] with one sample or more"),
            found: shape.to_vec(),
        })
    }

    fn forward_train<const D: usize>(&self, input: Tensor<D>, step: &StepContext) -> Result<Tensor<D>> {
        let mut batch = Statistics::of(input.clone().inner());
        let ranks = if self.synchronize { Ranks::of(step)? } else { None };
        let exchange = match ranks {
            Some(ranks) => {
                let (all, exchange) = ranks.unite(&batch)?;
                batch = all;
                Some(exchange)
            }
            None => None,
        };
        if batch.count < 2 {
            return Err(Error::TooFewValues { count: batch.count });
        }
        self.keep(&self.running_mean, batch.mean.clone(), &input.device());
        self.keep(&self.running_var, batch.unbiased_variance(), &input.device());
        Ok(normalize(
            input,
            self.gamma.val(),
            self.beta.val(),
            &batch,
            self.epsilon,
            exchange,
        ))
    }

    /// Moves a running statistic towards that of the batch.
    fn keep(&self, running: &RunningState<Tensor<1>>, of_batch: Tensor<1>, device: &Device) {
        let old = running.value_sync().inner().to_device(&of_batch.device());
        let dtype = of_batch.dtype();
        let new = old
            .cast(dtype)
            .mul_scalar(1.0 - self.momentum)
            .add(of_batch.mul_scalar(self.momentum));
        // On the device where Burn keeps running statistics of a module in training.
        if let Some(new) = AnyTensor::from(new).on_autodiff(device, false).float() {
            running.update(new);
        }
    }

    fn forward_inference<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (device, dtype) = (input.device(), input.dtype());
        let wide = wide(dtype);
        let running = |state: &RunningState<Tensor<1>>| state.value_sync().to_device(&device).cast(wide);
        let output = burn::tensor::module::batch_norm(
            cast(input, wide.into()),
            self.gamma.val().cast(wide),
            self.beta.val().cast(wide),
            running(&self.running_mean),
            running(&self.running_var),
            self.epsilon,
        );
        cast(output, dtype)
    }
}

impl ModuleDisplay for BatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("num_features", &self.gamma.lazy_shape()[0])
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon)
            .add("synchronize", &self.synchronize)
            .optional()
    }
}
