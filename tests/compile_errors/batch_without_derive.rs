//! A batch that is a plain struct of tensors.

use burn::module::Module;
use burn::nn::Linear;
use burn::optim::SgdConfig;
use burn::tensor::{Int, Tensor};
use firebrand::prelude::*;

#[derive(Clone, Debug)]
struct Digits {
    images: Tensor<2>,
    labels: Tensor<1, Int>,
}

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

impl LightningModule for Net {
    type Batch = Digits;

    fn training_step(&self, batch: Digits, step: &mut StepContext) -> Result<Tensor<1>> {
        step.log("labels", batch.labels.float().mean());
        Ok(self.linear.forward(batch.images).mean())
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1e-2)
    }
}

fn main() {}
