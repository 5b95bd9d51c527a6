//! A loader where the loaders of all stages belong.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use firebrand::prelude::*;

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

impl LightningModule for Net {
    type Batch = Tensor<2>;

    fn training_step(&self, batch: Tensor<2>, _step: &mut StepContext) -> Result<Tensor<1>> {
        Ok(self.linear.forward(batch).mean())
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1e-2)
    }
}

fn main() -> Result<()> {
    let net = Net {
        linear: LinearConfig::new(2, 1).init(&Device::flex()),
    };
    let loader = DataLoader::from_fn(vec![[0.0, 1.0]; 8], |rows: Vec<[f32; 2]>, device: &Device| {
        Ok(Tensor::<1>::from_floats(rows.concat().as_slice(), device).reshape([rows.len(), 2]))
    });
    Trainer::builder().max_epochs(1).build()?.fit(net, loader)?;
    Ok(())
}
