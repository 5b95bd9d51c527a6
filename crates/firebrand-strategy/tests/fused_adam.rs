//! Adam and AdamW in one pass: taken where it should be, and interchangeable with Burn's own, also across a checkpoint.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::Flex;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, AdamWConfig, DynOptimizer, DynState, SgdConfig, StateSink, StateSource};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Device, Tensor};
use firebrand_core::{
    AdamRule, AnyTensor, ErasedModule, IntoOptimizer, OptimizerSetup, ParamInfo, ParamVisitor, erase,
};
use firebrand_strategy::{Engine, EngineOptions};
use support::*;

const RATE: f64 = 0.01;

fn fresh(setup: &OptimizerSetup) -> (Box<dyn ErasedModule>, Engine) {
    device().seed(3);
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let engine = engine(&mut *module, setup, EngineOptions::default()).unwrap();
    (module, engine)
}

fn train(module: &mut dyn ErasedModule, engine: &mut Engine, steps: std::ops::Range<u64>) {
    for number in steps {
        let batch = points(number, 8, DType::F32, &device());
        step(engine, module, batch, number).unwrap();
    }
}

/// A configuration whose optimizer counts the updates that it is asked for.
struct Counted<C>(C, Arc<AtomicUsize>);

struct CountedOptimizer(Arc<dyn DynOptimizer>, Arc<AtomicUsize>);

impl<C: IntoOptimizer> IntoOptimizer for Counted<C> {
    fn adam(&self) -> Option<AdamRule> {
        self.0.adam()
    }

    fn into_optimizer(self) -> Arc<dyn DynOptimizer> {
        Arc::new(CountedOptimizer(self.0.into_optimizer(), self.1))
    }
}

impl DynOptimizer for CountedOptimizer {
    fn step_dyn(
        &self,
        rank: usize,
        rate: f64,
        tensor: BridgeTensor,
        gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.step_dyn(rank, rate, tensor, gradient, state)
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.0.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.0.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        device: &Device,
    ) -> Option<DynState> {
        self.0.state_unflatten(rank, prefix, source, device)
    }
}

#[test]
fn one_pass_is_taken_for_plain_adam_and_for_nothing_else() {
    let _alone = alone();
    let (adam, adamw, sgd) = (AdamConfig::new, AdamWConfig::new, SgdConfig::new);
    let count = Arc::new(AtomicUsize::new(0));
    macro_rules! counted {
        ($config:expr) => {
            OptimizerSetup::new(Counted($config, Arc::clone(&count)), RATE)
        };
    }
    let decay = || Some(WeightDecayConfig::new(0.1));
    let counter = || Arc::clone(&count);
    // With the number of the four parameters that Burn updates.
    let cases: Vec<(&str, OptimizerSetup, usize)> = vec![
        ("AdamW", counted!(adamw()), 0),
        ("Adam", counted!(adam()), 0),
        ("Adam with decay", counted!(adam().with_weight_decay(decay())), 0),
        ("AdamW, AMSGrad", counted!(adamw().with_amsgrad(true)), 4),
        ("Adam, AMSGrad", counted!(adam().with_amsgrad(true)), 4),
        (
            "cautious weight decay",
            counted!(adamw().with_cautious_weight_decay(true)),
            4,
        ),
        ("SGD", counted!(sgd()), 4),
        (
            "an optimizer of the user's",
            OptimizerSetup::custom(Counted(adamw(), counter()).into_optimizer(), RATE),
            4,
        ),
        (
            "AdamW for a group",
            counted!(sgd()).group("*.bias", Counted(adamw(), counter())),
            2,
        ),
        (
            "another for a group",
            counted!(adamw()).group("*.bias", Counted(sgd(), counter())),
            2,
        ),
        (
            "a rate for a group",
            counted!(adamw()).group_rate("*.bias", 0.1),
            0,
        ),
    ];
    for (name, setup, by_burn) in cases {
        let (mut module, mut engine) = fresh(&setup);
        let weights = values(&*module);
        count.store(0, Ordering::Relaxed);
        train(&mut *module, &mut engine, 0..3);
        assert_eq!(count.load(Ordering::Relaxed), 3 * by_burn, "{name}");
        for (path, value) in values(&*module) {
            assert_ne!(value, weights[&path], "{name}: {path}");
        }
    }
}

/// Where a value lies.
fn address(module: &dyn ErasedModule, path: &'static str) -> *const u8 {
    struct Look(&'static str, *const u8);

    impl ParamVisitor for Look {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            info.path == self.0
        }

        fn visit(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) {
            let handle = Tensor::<1>::from_bridge(value.inner().into_bridge());
            self.1 = handle.try_into_primitive::<Flex>().unwrap().bytes().as_ptr();
        }
    }

    let mut look = Look(path, std::ptr::null());
    module.visit_params(&mut look);
    assert!(!look.1.is_null());
    look.1
}

/// When an update begins, nothing of the step before it holds the weights any more.
#[test]
fn weights_are_updated_in_place() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(&OptimizerSetup::new(AdamWConfig::new(), RATE));
    let place = address(&*module, "fc1.weight");
    train(&mut *module, &mut engine, 0..3);
    assert_eq!(address(&*module, "fc1.weight"), place);
}

#[test]
fn checkpoints_of_either_implementation_are_equal_and_the_other_goes_on_with_them() {
    let _alone = alone();
    let decay = Some(WeightDecayConfig::new(0.1));
    let adam = AdamConfig::new().with_weight_decay(decay);
    let adamw = AdamWConfig::new().with_weight_decay(0.1);
    let pairs = [
        (
            OptimizerSetup::new(adam.clone(), RATE),
            OptimizerSetup::custom(adam.into_optimizer(), RATE),
        ),
        (
            OptimizerSetup::new(adamw.clone(), RATE),
            OptimizerSetup::custom(adamw.into_optimizer(), RATE),
        ),
    ];
    for (fused, burn) in pairs {
        let (mut module, mut engine) = fresh(&burn);
        train(&mut *module, &mut engine, 0..20);
        let halfway = engine.state();
        train(&mut *module, &mut engine, 20..40);
        let (expected, weights) = (engine.state(), values(&*module));

        for (first, second) in [(&fused, &burn), (&burn, &fused), (&fused, &fused)] {
            let (mut module, mut engine) = fresh(first);
            train(&mut *module, &mut engine, 0..20);
            let state = engine.state();
            assert_eq!(state.tensors, halfway.tensors);
            assert_eq!(state.scalars, halfway.scalars);
            // The module stays; another engine takes it over, as after a restart.
            let mut engine = support::engine(&mut *module, second, EngineOptions::default()).unwrap();
            engine.load_state(state).unwrap();
            train(&mut *module, &mut engine, 20..40);
            assert_eq!(values(&*module), weights);
            let state = engine.state();
            assert_eq!(state.tensors, expected.tensors);
            assert_eq!(state.scalars, expected.scalars);
        }
    }
}
