//! The two networks, and how they train.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use firebrand::nn::{BatchNorm, BatchNormConfig};
use firebrand::prelude::*;

use crate::data::DigitBatch;
use crate::dataset::{NUM_CLASSES, NUM_PIXELS, SIDE};
use crate::settings::{Architecture, Settings};

/// 64 → 128 → 10.
#[derive(Module, Debug)]
pub struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(NUM_PIXELS, 128).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            output: LinearConfig::new(128, NUM_CLASSES).init(device),
        }
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let hidden = relu(self.hidden.forward(images));
        self.output.forward(self.dropout.forward(hidden))
    }
}

/// Two convolutions with batch norm, each halving the image, and two linear layers.
#[derive(Module, Debug)]
pub struct ConvNet {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    pool: MaxPool2d,
    dropout: Dropout,
    hidden: Linear,
    output: Linear,
}

impl ConvNet {
    fn new(device: &Device) -> Result<Self> {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Ok(Self {
            conv1: conv([1, 32]),
            norm1: BatchNormConfig::new(32).init(device)?,
            conv2: conv([32, 32]),
            norm2: BatchNormConfig::new(32).init(device)?,
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.3).init(),
            hidden: LinearConfig::new(32 * 2 * 2, 64).init(device),
            output: LinearConfig::new(64, NUM_CLASSES).init(device),
        })
    }

    fn forward(&self, images: Tensor<2>, step: &StepContext) -> Result<Tensor<2>> {
        let [num_samples, _] = images.dims();
        let x = images.reshape([num_samples, 1, SIDE, SIDE]);
        let x = self.norm1.forward(self.conv1.forward(x), step)?;
        let x = self.pool.forward(relu(x));
        let x = self.norm2.forward(self.conv2.forward(x), step)?;
        let x = self.pool.forward(relu(x));
        let x = relu(self.hidden.forward(self.dropout.forward(x.flatten(1, 3))));
        Ok(self.output.forward(x))
    }
}

/// The network that the command line chose.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a program has one network")]
enum Network {
    Mlp(Mlp),
    Conv(ConvNet),
}

/// A network, and how it trains.
#[derive(Module, Debug)]
pub struct LitDigits {
    network: Network,
    learning_rate: f64,
}

impl LitDigits {
    /// Burn's layers draw their weights when they are first used, so the trainer's seed decides about them.
    pub fn new(settings: &Settings) -> Result<Self> {
        let device = Device::default();
        let network = match settings.model {
            Architecture::Mlp => Network::Mlp(Mlp::new(&device)),
            Architecture::Conv => Network::Conv(ConvNet::new(&device)?),
        };
        Ok(Self {
            network,
            learning_rate: settings.learning_rate,
        })
    }

    /// Ten logits for each image: `[samples, 64]` to `[samples, 10]`.
    fn forward(&self, images: Tensor<2>, step: &StepContext) -> Result<Tensor<2>> {
        match &self.network {
            Network::Mlp(mlp) => Ok(mlp.forward(images)),
            Network::Conv(conv) => conv.forward(images, step),
        }
    }

    /// The loss and the accuracy of a batch, each a tensor of one element.
    fn loss_and_accuracy(&self, batch: DigitBatch, step: &StepContext) -> Result<(Tensor<1>, Tensor<1>)> {
        let logits = step.full_precision(self.forward(batch.images, step)?);
        // Smoothed labels keep a network from being too sure of the few images that it trains on.
        let smoothing = (step.stage() == Stage::Train).then_some(0.1);
        let loss = CrossEntropyLossConfig::new()
            .with_smoothing(smoothing)
            .init(&logits.device());
        let loss = loss.forward(logits.clone(), batch.labels.clone());
        Ok((loss, accuracy(logits, batch.labels)?))
    }
}

impl LightningModule for LitDigits {
    type Batch = DigitBatch;

    fn training_step(&self, batch: DigitBatch, step: &mut StepContext) -> Result<Tensor<1>> {
        let (loss, accuracy) = self.loss_and_accuracy(batch, step)?;
        step.log("train_loss", &loss);
        step.log("train_acc", accuracy);
        Ok(loss)
    }

    fn validation_step(&self, batch: DigitBatch, step: &mut StepContext) -> Result<()> {
        let (loss, accuracy) = self.loss_and_accuracy(batch, step)?;
        step.log("val_loss", loss);
        step.log("val_acc", accuracy);
        Ok(())
    }

    fn test_step(&self, batch: DigitBatch, step: &mut StepContext) -> Result<()> {
        let (loss, accuracy) = self.loss_and_accuracy(batch, step)?;
        step.log("test_loss", loss);
        step.log("test_acc", accuracy);
        Ok(())
    }

    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup {
        let setup = OptimizerSetup::new(AdamWConfig::new().with_weight_decay(0.01), self.learning_rate);
        match fit.estimated_stepping_batches() {
            Some(total) => setup.schedule(Schedule::warmup_cosine(total / 20, total)),
            // A run that only time limits has no known end to come down to.
            None => setup,
        }
    }
}
