use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Int, Tensor};
use firebrand::{FitInfo, LightningModule, OptimizerSetup, StepContext};

use super::Workload;
use crate::mlp::Mlp;

/// Inputs and classes, as in MNIST.
const NUM_INPUTS: usize = 784;
const NUM_CLASSES: usize = 10;
const LEARNING_RATE: f64 = 0.01;

/// Images of shape `[batch_size, 784]` and their classes.
pub(super) type Batch = (Tensor<2>, Tensor<1, Int>);

/// 784-h-h-10 with ReLU, cross entropy and SGD.
#[derive(Module, Debug)]
pub(super) struct Classifier {
    mlp: Mlp,
}

impl Classifier {
    pub(super) fn new(width: usize, device: &Device) -> Self {
        Self {
            mlp: Mlp::new(&[NUM_INPUTS, width, width, NUM_CLASSES], device),
        }
    }
}

impl LightningModule for Classifier {
    type Batch = Batch;

    fn training_step(&self, (images, classes): Batch, _: &mut StepContext) -> firebrand::Result<Tensor<1>> {
        let logits = self.mlp.forward(images);
        Ok(CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits, classes))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), LEARNING_RATE)
    }
}

/// Some batches of random data.
pub(super) fn batches(workload: Workload, num_batches: usize, device: &Device) -> Vec<Batch> {
    let classes = Distribution::Uniform(0.0, NUM_CLASSES as f64);
    (0..num_batches)
        .map(|_| {
            (
                Tensor::random([workload.batch_size, NUM_INPUTS], Distribution::Default, device),
                Tensor::<1>::random([workload.batch_size], classes, device).int(),
            )
        })
        .collect()
}
