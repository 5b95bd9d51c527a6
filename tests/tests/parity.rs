//! A plain Burn loop, written out, and the trainer give the same weights, bit for bit.

#![allow(clippy::unwrap_used)]

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use firebrand::prelude::*;
use firebrand::progress::ProgressMode;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

#[derive(Clone, Copy, Debug)]
enum Optimizer {
    Sgd,
    Adam,
    AdamW,
}

const RATE: f64 = 1e-2;

impl Net {
    fn loss(&self, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        (self.second.forward(relu(self.first.forward(x))) - y)
            .powf_scalar(2.0)
            .mean()
    }
}

/// The module and which optimizer trains it.
#[derive(Module, Debug)]
struct LitNet {
    net: Net,
    #[module(skip)]
    optimizer: usize,
}

impl LightningModule for LitNet {
    type Batch = (Tensor<2>, Tensor<2>);

    fn training_step(&self, (x, y): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
        let loss = self.net.loss(x, y);
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        match self.optimizer {
            0 => OptimizerSetup::new(sgd(), RATE),
            1 => OptimizerSetup::new(AdamConfig::new(), RATE),
            _ => OptimizerSetup::new(AdamWConfig::new().with_weight_decay(0.05), RATE),
        }
    }
}

fn sgd() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig {
        momentum: 0.9,
        dampening: 0.1,
        nesterov: false,
    }))
}

/// Draws every parameter, so that both loops start alike.
fn materialized(device: &Device) -> Net {
    device.seed(7);
    let net = Net {
        first: LinearConfig::new(6, 12).init(device),
        second: LinearConfig::new(12, 2).init(device),
    };
    struct Draw;
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.val();
            param
        }
    }
    net.map(&mut Draw)
}

fn batches(device: &Device) -> Vec<(Tensor<2>, Tensor<2>)> {
    let draw = |width| Tensor::<2>::random([8, width], Distribution::Default, device);
    (0..100).map(|_| (draw(6), draw(2))).collect()
}

struct Weights(Vec<f32>);

impl ModuleVisitor for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().iter::<f32>());
    }
}

fn weights(net: &Net) -> Vec<f32> {
    let mut weights = Weights(Vec::new());
    net.visit(&mut weights);
    weights.0
}

fn plain_loop(mut net: Net, data: &[(Tensor<2>, Tensor<2>)], optimizer: Optimizer) -> Net {
    let mut optimizer: ModuleOptimizer = match optimizer {
        Optimizer::Sgd => sgd().init(),
        Optimizer::Adam => AdamConfig::new().init(),
        Optimizer::AdamW => AdamWConfig::new().with_weight_decay(0.05).init(),
    };
    for (x, y) in data {
        let loss = net.loss(x.clone().autodiff(), y.clone().autodiff());
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(RATE, net, gradients);
    }
    net
}

fn trainer_loop(net: Net, data: &[(Tensor<2>, Tensor<2>)], optimizer: Optimizer) -> Net {
    let data = data.to_vec();
    let loader = DataLoader::from_stream(move |_| Ok(data.clone().into_iter().map(Ok)));
    let mut trainer = Trainer::builder()
        .max_epochs(1)
        .enable_checkpointing(false)
        .enable_model_summary(false)
        .no_logger()
        .progress(ProgressMode::Off)
        .build()
        .unwrap();
    let fitted = trainer
        .fit(
            LitNet {
                net,
                optimizer: optimizer as usize,
            },
            Data::new().train(loader),
        )
        .unwrap();
    assert_eq!(fitted.report.global_step, 100);
    fitted.into_module().net
}

#[test]
fn a_plain_loop_and_the_trainer_are_bit_equal() {
    let device = Device::flex().autodiff();
    for optimizer in [Optimizer::Sgd, Optimizer::Adam, Optimizer::AdamW] {
        let net = materialized(&device);
        let data = batches(&Device::flex());
        let before = weights(&net);
        let plain = weights(&plain_loop(net.clone(), &data, optimizer));
        let trained = weights(&trainer_loop(net, &data, optimizer));
        assert_ne!(plain, before, "{optimizer:?} moved nothing");
        assert_eq!(plain, trained, "{optimizer:?}");
    }
}
