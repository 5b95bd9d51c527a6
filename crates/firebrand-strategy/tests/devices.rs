//! Whatever device, checkpointing strategy or dtype the user's module came with, it is trained on the training device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::{Lora, Module, Param, QLora, Quantizer};
use burn::nn::{Linear, LinearConfig, PositionalEncoding, PositionalEncodingConfig};
use burn::optim::AdamWConfig;
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{DType, Device, Int, Tensor};
use firebrand_core::{
    AnyBatch, Batch, ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, StepContext,
    downcast_module, erase, restore_type,
};
use firebrand_strategy::{Engine, EngineOptions, SingleDevice};
use support::*;

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(AdamWConfig::new(), 0.05)
}

fn engine_on(device: &Device, module: &mut dyn ErasedModule) -> Engine {
    Engine::new(
        module,
        &setup(),
        &prepare(device),
        EngineOptions::default(),
        Box::new(SingleDevice::new()),
    )
    .unwrap()
}

fn train<M: LightningModule>(
    device: &Device,
    net: M,
    batch: impl Fn(u64) -> M::Batch,
) -> Box<dyn ErasedModule> {
    let mut module = erase(net);
    let mut engine = engine_on(device, &mut *module);
    for number in 0..6 {
        device.seed(number);
        step(&mut engine, &mut *module, batch(number), number).unwrap();
    }
    module
}

/// The devices a user's module may have been made on.
fn origins() -> [Device; 3] {
    [Device::flex(), device(), device().gradient_checkpointing()]
}

#[test]
fn the_origin_of_a_module_makes_no_difference() {
    let _alone = alone();
    for training in [device(), device().gradient_checkpointing()] {
        let batch = |number| images(number, 8, DType::F32, &training);
        let expected = values(&*train(&training, Cnn::new(&device()), batch));
        for origin in origins() {
            for draw in [false, true] {
                let net = Cnn::new(&origin);
                if draw {
                    // What the trainer would have drawn.
                    let mut drawn = erase(Cnn::new(&device()));
                    engine_on(&device(), &mut *drawn);
                    let start = values(&*drawn);
                    let mut module = erase(net);
                    set_values(&mut *module, &start);
                    let net: Cnn = restore_type(module).unwrap();
                    assert_eq!(
                        values(&*train(&training, net, batch)),
                        expected,
                        "drawn on {origin:?}"
                    );
                } else {
                    assert_eq!(
                        values(&*train(&training, net, batch)),
                        expected,
                        "lazy on {origin:?}"
                    );
                }
            }
        }
    }
}

/// Checkpointing recomputes; it must not change the gradients, and the strategy must outlive an update.
#[test]
fn gradient_checkpointing_outlives_an_update_and_changes_no_bit() {
    let _alone = alone();
    let plain = train(&device(), Mlp::new(&device()), |number| {
        points(number, 8, DType::F32, &device())
    });
    let balanced = device().gradient_checkpointing();
    let module = train(&balanced, Mlp::new(&device()), |number| {
        points(number, 8, DType::F32, &balanced)
    });
    assert_eq!(values(&*module), values(&*plain));
    let weight = downcast_module::<Mlp>(&*module).unwrap().fc1.weight.val();
    assert_eq!(
        weight.gradient_checkpointing_strategy(),
        balanced.gradient_checkpointing_strategy()
    );
    assert!(weight.is_require_grad());
}

/// A tensor field that is no parameter, as in Burn's positional encoding: no mapper sees it.
#[derive(Module, Debug)]
struct Positions {
    encoding: PositionalEncoding,
    head: Linear,
}

impl Positions {
    fn new(device: &Device) -> Self {
        Self {
            encoding: PositionalEncodingConfig::new(4)
                .with_max_sequence_size(8)
                .init(device),
            head: LinearConfig::new(4, 1).init(device),
        }
    }
}

impl LightningModule for Positions {
    type Batch = Tensor<3>;

    fn training_step(&self, x: Tensor<3>, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(self
            .head
            .forward(self.encoding.forward(x))
            .powf_scalar(2.0)
            .mean())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }
}

#[test]
fn constant_tensors_follow_the_module() {
    let _alone = alone();
    for training in [device(), device().gradient_checkpointing()] {
        let batch = |number| tensor(number, [2, 5, 4], DType::F32, &training);
        let expected = values(&*train(&training, Positions::new(&device()), batch));
        for origin in origins() {
            assert_eq!(
                values(&*train(&training, Positions::new(&origin), batch)),
                expected,
                "{origin:?}"
            );
        }
    }
}

#[test]
fn a_batch_from_anywhere_trains_in_training_mode() {
    let _alone = alone();
    let training = device();
    let expected = values(&*train(&training, Cnn::new(&device()), |number| {
        images(number, 8, DType::F32, &training)
    }));
    for origin in [Device::flex(), device()] {
        let moved = |number| Batch::to_device(images(number, 8, DType::F32, &origin), &training);
        assert_eq!(
            values(&*train(&training, Cnn::new(&device()), moved)),
            expected,
            "{origin:?}"
        );
        let x = moved(0).0;
        assert!(x.device().is_autodiff());
    }
    // And back to a plain one, for evaluation.
    let batch = AnyBatch::new(images(0, 8, DType::F32, &training)).to_device(&Device::flex());
    let (x, y) = batch.downcast::<(Tensor<4>, Tensor<1, Int>)>().unwrap();
    assert!(!x.device().is_autodiff() && !y.device().is_autodiff());
}

/// Integers and quantised weights are kept bit by bit; adapters on quantised weights are trained.
#[derive(Module, Debug)]
struct Adapted {
    first: Linear,
    second: Linear,
    lookup: Param<Tensor<1, Int>>,
}

impl Adapted {
    fn new(device: &Device) -> Self {
        let net = Self {
            first: LinearConfig::new(4, 8).init(device),
            second: LinearConfig::new(8, 4).init(device),
            lookup: Param::initialized(
                burn::module::ParamId::new(),
                Tensor::from_data([2i64, 0, 1, 3], device),
            ),
        };
        materialize(&net);
        net
    }
}

impl LightningModule for Adapted {
    type Batch = Tensor<2>;

    fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
        let x = x.select(1, self.lookup.val());
        Ok(self
            .second
            .forward(self.first.forward(x).tanh())
            .powf_scalar(2.0)
            .mean())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }
}

fn rows(number: u64) -> Tensor<2> {
    tensor(number, [6, 4], DType::F32, &device())
}

#[test]
fn integers_stay_as_they_are() {
    let _alone = alone();
    for origin in origins() {
        let module = train(&device(), Adapted::new(&origin), rows);
        assert_eq!(value(&*module, "lookup"), [2.0, 0.0, 1.0, 3.0]);
    }
}

#[test]
fn lora_trains_the_adapters_alone() {
    let _alone = alone();
    let net = Adapted::new(&device()).apply_lora(Lora::new(2, 4.0));
    let before = values(&*erase(net.clone()));
    let module = train(&device(), net, rows);
    let after = values(&*module);
    let changed: Vec<&str> = after
        .iter()
        .filter(|(path, value)| before[*path] != **value)
        .map(|(path, _)| path.as_str())
        .collect();
    assert_eq!(
        changed,
        [
            "first.weight.lora.a",
            "first.weight.lora.b",
            "second.weight.lora.a",
            "second.weight.lora.b"
        ]
    );
}

/// A base that is trained beside its adapter has a path that is a prefix of the adapter's; their states must not mix.
#[test]
fn a_path_that_begins_another_keeps_its_own_state() {
    let _alone = alone();
    let make = || {
        Adapted::new(&device())
            .apply_lora(Lora::new(2, 4.0))
            .set_require_grad(true)
    };
    device().seed(5);
    let mut module = erase(make());
    let mut engine = engine_on(&device(), &mut *module);
    for number in 0..4 {
        step(&mut engine, &mut *module, rows(number), number).unwrap();
    }
    let state = engine.state();
    assert!(state.tensors.contains_key("first.weight.momentum.moment_1"));
    assert!(
        state
            .tensors
            .contains_key("first.weight.lora.a.momentum.moment_1")
    );
    let mut resumed = erase(make());
    let mut other = engine_on(&device(), &mut *resumed);
    set_values(&mut *resumed, &values(&*module));
    other.load_state(state).unwrap();
    for number in 4..8 {
        step(&mut engine, &mut *module, rows(number), number).unwrap();
        step(&mut other, &mut *resumed, rows(number), number).unwrap();
    }
    assert_eq!(values(&*module), values(&*resumed));
}

#[test]
fn quantised_weights_are_kept_and_their_adapters_trained() {
    let _alone = alone();
    let scheme = device()
        .settings()
        .quantization
        .scheme
        .with_value(QuantValue::Q8S);
    let quantizer = Quantizer::new(Calibration::MinMax, scheme);
    let net = Adapted::new(&device()).apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer));
    let base = net.first.weight.base();
    assert!(matches!(base.dtype(), DType::QFloat(_)));
    let before = base.into_data();
    let adapters = net.first.weight.adapter().unwrap().a.val().into_data();
    let module = train(&device(), net, rows);
    let net: Adapted = restore_type(module).unwrap();
    assert_eq!(net.first.weight.base().into_data(), before);
    assert_ne!(net.first.weight.adapter().unwrap().a.val().into_data(), adapters);
}
