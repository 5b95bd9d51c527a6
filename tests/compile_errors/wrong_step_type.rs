//! A training step that returns a number instead of the loss.

use burn::module::Module;
use burn::nn::Linear;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use firebrand::prelude::*;

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

impl LightningModule for Net {
    type Batch = Tensor<2>;

    fn training_step(&self, batch: Tensor<2>, _step: &mut StepContext) -> Result<f32> {
        Ok(self.linear.forward(batch).mean().into_scalar())
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1e-2)
    }
}

fn main() {}
