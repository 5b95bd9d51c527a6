//! An engine's step is, bit by bit, the step of a plain Burn loop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use burn::module::{ModuleMapper, Param, ParamGroup};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdafactorConfig, AdamConfig, AdamWConfig, DynOptimizer, GradientsParams, ModuleOptimizer, MuonConfig,
    SgdConfig,
};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrand_core::{Batch, ErasedModule, LightningModule, OptimizerSetup, erase};
use firebrand_strategy::{Engine, EngineOptions, Precision, PrepareOptions, SingleDevice};
use support::*;

const STEPS: u64 = 100;
const SEED: u64 = 7;

/// Casts a module as a user without a trainer does.
struct ToF64;

impl ModuleMapper for ToF64 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let trained = value.is_require_grad();
            Tensor::from_inner(value.inner().cast(FloatDType::F64)).set_require_grad(trained)
        })
    }
}

/// One way to train: an optimizer as Burn's own loop wants it and as the engine does.
struct Case {
    name: &'static str,
    plain: fn() -> ModuleOptimizer,
    setup: fn() -> OptimizerSetup,
}

const RATE: f64 = 0.02;

fn sgd() -> SgdConfig {
    let momentum = MomentumConfig::new()
        .with_momentum(0.9)
        .with_dampening(0.1)
        .with_nesterov(true);
    SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(1e-3)))
}

fn adamw() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.05)
}

fn cases() -> [Case; 4] {
    [
        Case {
            name: "SGD",
            plain: || SgdConfig::new().init(),
            setup: || OptimizerSetup::new(SgdConfig::new(), RATE),
        },
        Case {
            name: "SGD with momentum",
            plain: || sgd().init(),
            setup: || OptimizerSetup::new(sgd(), RATE),
        },
        Case {
            name: "Adam",
            plain: || AdamConfig::new().init(),
            setup: || OptimizerSetup::new(AdamConfig::new(), RATE),
        },
        Case {
            name: "AdamW",
            plain: || adamw().init(),
            setup: || OptimizerSetup::new(adamw(), RATE),
        },
    ]
}

/// What every Burn user writes.
fn plain_loop<M: LightningModule>(
    mut module: M,
    mut optimizer: ModuleOptimizer,
    batch: &dyn Fn(u64) -> M::Batch,
    steps: std::ops::Range<u64>,
) -> (M, ModuleOptimizer) {
    for number in steps {
        device().seed(number);
        let loss = module
            .training_step(batch(number), &mut context(number, 0))
            .unwrap();
        let gradients = GradientsParams::from_grads(loss.backward(), &module);
        module = optimizer.step(RATE, module, gradients);
    }
    (module, optimizer)
}

fn engine_loop<B: Batch>(
    engine: &mut Engine,
    module: &mut dyn ErasedModule,
    batch: &dyn Fn(u64) -> B,
    steps: std::ops::Range<u64>,
) {
    for number in steps {
        device().seed(number);
        step(engine, module, batch(number), number).unwrap();
    }
}

fn new_engine(module: &mut dyn ErasedModule, setup: &OptimizerSetup, dtype: DType) -> Engine {
    let precision = if dtype == DType::F64 {
        Precision::F64
    } else {
        Precision::F32
    };
    let options = PrepareOptions {
        precision: precision.into(),
        ..prepare(&device())
    };
    Engine::new(
        module,
        setup,
        &options,
        EngineOptions::default(),
        Box::new(SingleDevice::new()),
    )
    .unwrap()
}

fn assert_parity<M: LightningModule>(
    make: fn(&Device) -> M,
    batch: fn(u64, usize, DType, &Device) -> M::Batch,
) {
    let _alone = alone();
    let fresh = || {
        device().seed(SEED);
        let module = make(&device());
        materialize(&module);
        module
    };
    for dtype in [DType::F32, DType::F64] {
        let batch = |number| batch(number, 8, dtype, &device());
        for case in cases() {
            let mut module = fresh();
            if dtype == DType::F64 {
                module = module.map(&mut ToF64);
            }
            let start = values(&*erase(fresh()));
            let (module, _) = plain_loop(module, (case.plain)(), &batch, 0..STEPS);
            let expected = values(&*erase(module));

            let mut module = erase(fresh());
            let setup = (case.setup)();
            let mut engine = new_engine(&mut *module, &setup, dtype);
            engine_loop(&mut engine, &mut *module, &batch, 0..STEPS / 2);
            let state = engine.state();
            let halfway = values(&*module);
            engine_loop(&mut engine, &mut *module, &batch, STEPS / 2..STEPS);
            assert_eq!(values(&*module), expected, "{} {dtype:?}", case.name);
            assert_ne!(start, expected, "{} {dtype:?} trained nothing", case.name);

            // Another process: other identities, a fresh engine, weights and state from a checkpoint.
            let mut module = erase(make(&device()));
            let mut engine = new_engine(&mut *module, &setup, dtype);
            set_values(&mut *module, &halfway);
            engine.load_state(state).unwrap();
            engine_loop(&mut engine, &mut *module, &batch, STEPS / 2..STEPS);
            assert_eq!(values(&*module), expected, "{} {dtype:?} resumed", case.name);
        }
    }
}

#[test]
fn an_mlp_with_dropout_is_bit_equal_to_a_plain_loop() {
    assert_parity(Mlp::new, points);
}

#[test]
fn a_cnn_with_batch_norm_and_dropout_is_bit_equal_to_a_plain_loop() {
    assert_parity(Cnn::new, images);
}

/// Muon wants matrices and Adafactor factors them: each must get a parameter in its own rank.
#[test]
fn optimizers_that_look_at_the_shape_get_it() {
    let _alone = alone();
    let batch = |number| points(number, 8, DType::F32, &device());
    let fresh = || {
        device().seed(SEED);
        let module = Mlp::new(&device());
        materialize(&module);
        module
    };
    let adafactor = || OptimizerSetup::new(AdafactorConfig::new(), RATE);
    let (plain, _) = plain_loop(fresh(), AdafactorConfig::new().init(), &batch, 0..20);
    let mut module = erase(fresh());
    let mut engine = new_engine(&mut *module, &adafactor(), DType::F32);
    engine_loop(&mut engine, &mut *module, &batch, 0..20);
    assert_eq!(values(&*module), values(&*erase(plain)));
    let state = engine.state();
    let rows = &state.tensors["fc1.weight.second_moment"];
    assert_eq!(rows.shape().to_vec(), [6, 1], "rows are factored out");

    let muon: Arc<dyn DynOptimizer> = Arc::new(MuonConfig::new().build());
    let setup = OptimizerSetup::new(adamw(), RATE).group("*.weight", muon);
    let group = |path: &str| ParamGroup::from_predicate(path);
    let plain = adamw()
        .init()
        .with_group(group("weight"), MuonConfig::new().build(), None);
    let (plain, _) = plain_loop(fresh(), plain, &batch, 0..20);
    let mut module = erase(fresh());
    let mut engine = new_engine(&mut *module, &setup, DType::F32);
    engine_loop(&mut engine, &mut *module, &batch, 0..20);
    assert_eq!(values(&*module), values(&*erase(plain)));

    // The state goes over to another process here too.
    let mut resumed = erase(Mlp::new(&device()));
    let mut other = new_engine(&mut *resumed, &setup, DType::F32);
    set_values(&mut *resumed, &values(&*module));
    other.load_state(engine.state()).unwrap();
    engine_loop(&mut engine, &mut *module, &batch, 20..30);
    engine_loop(&mut other, &mut *resumed, &batch, 20..30);
    assert_eq!(values(&*module), values(&*resumed));
}
