//! A module without `LightningModule`, handed to a trainer.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use firebrand::prelude::*;

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

fn main() -> Result<()> {
    let net = Net {
        linear: LinearConfig::new(64, 10).init(&Device::flex()),
    };
    let data: Data<Tensor<2>> = Data::new();
    Trainer::builder().max_epochs(1).build()?.fit(net, data)?;
    Ok(())
}
