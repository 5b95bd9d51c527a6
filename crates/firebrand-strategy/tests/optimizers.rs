//! Several optimizers and groups of parameters: who trains what, at which rate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Tensor};
use firebrand_core::{
    AnyBatch, ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase,
};
use firebrand_strategy::{Engine, EngineOptions, Error};
use support::*;

/// Two layers in a row; the loss for each optimizer differs and depends on both.
#[derive(Module, Debug)]
struct Pair {
    left: Linear,
    right: Linear,
}

impl Pair {
    fn new() -> Self {
        Self {
            left: LinearConfig::new(3, 3).init(&device()),
            right: LinearConfig::new(3, 3).init(&device()),
        }
    }

    fn loss(&self, x: Tensor<2>, optimizer: usize) -> Tensor<1> {
        let out = self.right.forward(self.left.forward(x).tanh());
        match optimizer {
            0 => out.powf_scalar(2.0).mean(),
            _ => (out - 1.0).powf_scalar(2.0).mean(),
        }
    }
}

impl LightningModule for Pair {
    type Batch = Tensor<2>;

    fn training_step(&self, x: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
        let own = [&self.left, &self.right];
        for (number, layer) in own.into_iter().enumerate() {
            // The layer of the other optimizer is a constant.
            assert_eq!(layer.weight.val().is_tracked(), number == step.optimizer_index());
        }
        Ok(self.loss(x, step.optimizer_index()))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        two()
    }
}

fn momentum() -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
}

fn two() -> OptimizerSetup {
    let right = OptimizerSetup::new(AdamConfig::new(), 0.02)
        .named("right")
        .parameters("right");
    OptimizerSetup::new(momentum(), 0.1)
        .named("left")
        .parameters("left")
        .and(right)
}

fn rows(number: u64) -> Tensor<2> {
    tensor(number, [4, 3], DType::F32, &device())
}

fn fresh() -> Pair {
    device().seed(17);
    let pair = Pair::new();
    materialize(&pair);
    pair
}

/// One layer's update in a plain Burn loop, from the mean gradient of some batches.
fn plain_update(
    pair: &Pair,
    optimizer: &mut ModuleOptimizer,
    number: usize,
    rate: f64,
    batches: &[u64],
) -> Pair {
    let losses = batches.iter().map(|batch| pair.loss(rows(*batch), number));
    let loss = losses.reduce(|sum, loss| sum + loss).unwrap() / batches.len() as f64;
    let mut gradients = loss.backward();
    let mut pair = pair.clone();
    if number == 0 {
        let gradients = GradientsParams::from_module(&mut gradients, &pair.left);
        pair.left = optimizer.step(rate, pair.left, gradients);
    } else {
        let gradients = GradientsParams::from_module(&mut gradients, &pair.right);
        pair.right = optimizer.step(rate, pair.right, gradients);
    }
    pair
}

#[test]
fn each_optimizer_trains_its_own_parameters_with_its_own_loss() {
    let _alone = alone();
    let mut plain = fresh();
    let mut optimizers = [momentum().init(), AdamConfig::new().init()];
    let mut module = erase(fresh());
    let mut engine = engine(&mut *module, &two(), EngineOptions::default()).unwrap();
    for number in 0..20 {
        for (optimizer, rate) in [(0, 0.1), (1, 0.02)] {
            let mut context = context(number, optimizer);
            engine
                .micro_batch(&*module, AnyBatch::new(rows(number)), &mut context, true)
                .unwrap();
            engine.update(&mut *module, optimizer, &mut |_| Ok(())).unwrap();
            plain = plain_update(&plain, &mut optimizers[optimizer], optimizer, rate, &[number]);
        }
        assert_eq!(values(&*module), values(&*erase(plain.clone())), "step {number}");
    }
}

/// With accumulation the groups of the optimizers are open at the same time.
#[test]
fn groups_of_several_optimizers_do_not_mix() {
    let _alone = alone();
    let mut module = erase(fresh());
    let mut engine = engine(&mut *module, &two(), EngineOptions::default()).unwrap();
    let mut plain = fresh();
    let mut optimizers = [momentum().init(), AdamConfig::new().init()];
    for group in 0..5u64 {
        let numbers = [group * 2, group * 2 + 1];
        for (position, number) in numbers.into_iter().enumerate() {
            let last = position == 1;
            for optimizer in 0..2 {
                let batch = AnyBatch::new(rows(number));
                engine
                    .micro_batch(&*module, batch, &mut context(group, optimizer), last)
                    .unwrap();
                if last {
                    engine.update(&mut *module, optimizer, &mut |_| Ok(())).unwrap();
                }
            }
        }
        // The first micro-batch of the right layer saw the left one before its update.
        let before = plain.clone();
        plain = plain_update(&plain, &mut optimizers[0], 0, 0.1, &numbers);
        let first = before.loss(rows(numbers[0]), 1);
        let second = plain.loss(rows(numbers[1]), 1);
        let mut gradients = ((first + second) / 2.0).backward();
        let gradients = GradientsParams::from_module(&mut gradients, &plain.right);
        plain.right = optimizers[1].step(0.02, plain.right, gradients);
        let distance = distance(&*module, &*erase(plain.clone()));
        assert!(distance < 1e-5, "group {group}: {distance}");
    }
}

#[test]
fn the_schedule_of_an_optimizer_that_does_not_step_waits() {
    let _alone = alone();
    let halving = || firebrand_core::Schedule::factor(|n| 0.5f64.powi(n as i32));
    let right = OptimizerSetup::new(AdamConfig::new(), 1.0)
        .named("right")
        .parameters("right")
        .schedule(halving());
    let left = OptimizerSetup::new(SgdConfig::new(), 1.0)
        .named("left")
        .parameters("left")
        .schedule(halving());
    let mut module = erase(fresh());
    let mut engine = engine(&mut *module, &left.and(right), EngineOptions::default()).unwrap();
    let rates = |engine: &Engine| -> Vec<(String, f64)> {
        engine
            .learning_rates()
            .into_iter()
            .map(|rate| (rate.optimizer, rate.rate))
            .collect()
    };
    assert_eq!(
        rates(&engine),
        [("left".to_owned(), 1.0), ("right".to_owned(), 1.0)]
    );
    for number in 0..2 {
        engine
            .micro_batch(
                &*module,
                AnyBatch::new(rows(number)),
                &mut context(number, 1),
                true,
            )
            .unwrap();
        engine.update(&mut *module, 1, &mut |_| Ok(())).unwrap();
    }
    assert_eq!(
        rates(&engine),
        [("left".to_owned(), 1.0), ("right".to_owned(), 0.25)]
    );
}

/// The change of each parameter after one step from the same weights on the same batch.
fn changes(setup: &OptimizerSetup) -> Vec<(String, Vec<f64>)> {
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let mut engine = engine(&mut *module, setup, EngineOptions::default()).unwrap();
    let before = values(&*module);
    step(&mut engine, &mut *module, points(1, 8, DType::F32, &device()), 0).unwrap();
    let after = values(&*module);
    let change = |path: &String| {
        let pairs = before[path].iter::<f64>().zip(after[path].iter::<f64>());
        (
            path.clone(),
            pairs.map(|(before, after)| after - before).collect(),
        )
    };
    before.keys().map(change).collect()
}

#[test]
fn groups_have_their_own_rate_and_optimizer_and_the_last_one_wins() {
    let _alone = alone();
    let plain = |rate| changes(&OptimizerSetup::new(SgdConfig::new(), rate));
    let adam = |rate| changes(&OptimizerSetup::new(AdamConfig::new(), rate));
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.5)
        .group_rate("fc1", 0.125)
        .group_rate("*.bias", 0.25)
        .group("fc2.weight", AdamConfig::new())
        .group_rate("fc2.weight", 0.01);
    let found = changes(&setup);
    let expected = [plain(0.25), plain(0.125), plain(0.25), adam(0.01)];
    for ((path, change), expected) in found.iter().zip(&expected) {
        let (_, expected) = expected.iter().find(|(other, _)| other == path).unwrap();
        assert_eq!(change, expected, "{path}");
    }
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]);
}

/// "Train the head only" may be written as a rate of nothing and a group.
#[test]
fn a_group_has_its_rate_when_the_rest_has_none() {
    let _alone = alone();
    let found = changes(&OptimizerSetup::new(SgdConfig::new(), 0.0).group_rate("fc2", 0.5));
    let all = changes(&OptimizerSetup::new(SgdConfig::new(), 0.5));
    for ((path, change), (_, full)) in found.iter().zip(&all) {
        if path.starts_with("fc2") {
            assert_eq!(change, full);
        } else {
            assert!(change.iter().all(|change| *change == 0.0), "{path}");
        }
    }
}

/// 3e-3 / 3e-4 · 3e-4 is not 3e-3 in floating point: the rate of a group is to be the one that was given.
#[test]
fn the_rate_of_a_group_is_exact() {
    let _alone = alone();
    for (base, rate) in [(3e-4, 3e-3), (7e-5, 0.3), (0.1, 0.7)] {
        let found = changes(&OptimizerSetup::new(SgdConfig::new(), base).group_rate("*", rate));
        assert_eq!(found, changes(&OptimizerSetup::new(SgdConfig::new(), rate)));
    }
}

fn error(setup: &OptimizerSetup) -> String {
    let mut module = erase(Pair::new());
    let error = engine(&mut *module, setup, EngineOptions::default())
        .err()
        .expect("an error");
    format!("{error:?}")
}

#[test]
fn configurations_that_do_not_work_are_errors_that_say_why() {
    let _alone = alone();
    let sgd = || OptimizerSetup::new(SgdConfig::new(), 0.1);
    let constant = || ModuleLrScheduler::new(ConstantLr::new(0.5));
    let clipping = Some(GradientClippingConfig::Norm(1.0));
    let cases: Vec<(OptimizerSetup, &[&str])> = vec![
        (
            sgd()
                .named("a")
                .parameters("left")
                .and(sgd().named("b").parameters("*.bias"))
                .and(sgd().named("c")),
            &["'left.bias' is trained by two optimizers", "'a'", "'b'"],
        ),
        (
            sgd().named("a").and(sgd().named("b")),
            &["'left.weight' is trained by two optimizers", "'a'", "'b'"],
        ),
        (
            sgd().parameters("left"),
            &[
                "no optimizer trains 'right.weight', 'right.bias'",
                "`parameters`",
                ".no_grad()",
            ],
        ),
        (
            sgd().parameters("lefft").and(sgd().named("b")),
            &["no parameter matches 'lefft'", "left.weight"],
        ),
        (sgd().group_rate("rigth", 0.1), &["no parameter matches 'rigth'"]),
        (
            sgd()
                .named("a")
                .parameters("left")
                .group_rate("right", 1.0)
                .and(sgd().named("b").parameters("right")),
            &["the group 'right' of 'a' holds none of its parameters"],
        ),
        (
            sgd().parameters("left").and(sgd()),
            &["two optimizers are named 'optimizer'", ".named("],
        ),
        (
            OptimizerSetup::new(SgdConfig::new(), -0.1),
            &["the learning rate of 'optimizer' is -0.1"],
        ),
        (
            OptimizerSetup::new(SgdConfig::new(), f64::NAN),
            &["is NaN", "finite"],
        ),
        (sgd().group_rate("left", f64::INFINITY), &["is inf"]),
        (
            OptimizerSetup::new(SgdConfig::new(), 0.0)
                .group_rate("left", 0.1)
                .schedule(constant()),
            &["has the learning rate 0", "proportion"],
        ),
        (
            OptimizerSetup::new(AdamWConfig::new().with_grad_clipping(clipping), 0.1),
            &["AdamWConfig has `grad_clipping` set", "gradient_clip"],
        ),
    ];
    for (setup, parts) in &cases {
        let text = error(setup);
        for part in *parts {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}

#[test]
fn a_frozen_parameter_needs_no_optimizer() {
    let _alone = alone();
    let pair = Pair::new();
    let right = pair.right.no_grad();
    let mut module = erase(Pair { right, ..pair });
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.1).parameters("left");
    let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    let before = values(&*module);
    step(&mut engine, &mut *module, rows(1), 0).unwrap();
    let after = values(&*module);
    assert_ne!(before["left.weight"], after["left.weight"]);
    assert_eq!(before["right.weight"], after["right.weight"]);

    // It cannot be unfrozen without one, and that is said instead of doing nothing.
    let error = engine.set_trained(&"right".into(), true).unwrap_err();
    assert!(matches!(error, Error::Optimizer { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("'right.weight' is to be trained and has no optimizer"),
        "{error}"
    );
    engine.set_trained(&"right".into(), false).unwrap();
}

#[test]
fn parameters_may_be_frozen_and_unfrozen_and_keep_their_state() {
    let _alone = alone();
    let all = || OptimizerSetup::new(momentum(), 0.1);
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let mut engine = engine(&mut *module, &all(), EngineOptions::default()).unwrap();
    let batch = |number| points(number, 8, DType::F32, &device());
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let velocity = |engine: &Engine| engine.state().tensors["fc1.weight.momentum.velocity"].clone();
    let kept = velocity(&engine);
    engine.set_trained(&"fc1".into(), false).unwrap();
    assert!(!engine.is_trained(0) && engine.is_trained(2));
    let before = values(&*module);
    step(&mut engine, &mut *module, batch(1), 1).unwrap();
    assert_eq!(values(&*module)["fc1.weight"], before["fc1.weight"]);
    assert_eq!(velocity(&engine), kept);

    // What is frozen is part of the state.
    let mut other = erase(Mlp::with_dropout(0.0, &device()));
    let mut resumed = support::engine(&mut *other, &all(), EngineOptions::default()).unwrap();
    resumed.load_state(engine.state()).unwrap();
    assert!(!resumed.is_trained(0) && !resumed.is_trained(1) && resumed.is_trained(2));

    engine.set_trained(&"fc1".into(), true).unwrap();
    step(&mut engine, &mut *module, batch(2), 2).unwrap();
    assert_ne!(values(&*module)["fc1.weight"], before["fc1.weight"]);
    assert_ne!(velocity(&engine), kept);
}

/// Fine-tuning starts with a backbone that the user froze, and unfreezes it later.
#[test]
fn what_the_user_froze_can_be_trained_later() {
    let _alone = alone();
    let net = Mlp::with_dropout(0.0, &device());
    let fc1 = net.fc1.no_grad();
    let mut module = erase(Mlp { fc1, ..net });
    let setup = OptimizerSetup::new(momentum(), 0.1);
    let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    let batch = |number| points(number, 8, DType::F32, &device());
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let before = values(&*module);
    engine.set_trained(&"fc1".into(), true).unwrap();
    for number in 1..4 {
        step(&mut engine, &mut *module, batch(number), number).unwrap();
    }
    assert_ne!(values(&*module)["fc1.weight"], before["fc1.weight"]);
    assert!(
        engine
            .state()
            .tensors
            .contains_key("fc1.weight.momentum.velocity")
    );
}

#[test]
fn one_optimizer_may_be_shared_by_groups() {
    let _alone = alone();
    let shared: Arc<dyn burn::optim::DynOptimizer> = Arc::new(AdamConfig::new().build());
    let setup = OptimizerSetup::custom(Arc::clone(&shared), 0.1).group("*.bias", Arc::clone(&shared));
    assert_eq!(
        changes(&setup),
        changes(&OptimizerSetup::new(AdamConfig::new(), 0.1))
    );
}

/// A module that is erased without knowing its type trains as any other.
#[test]
fn a_boxed_module_is_enough() {
    let _alone = alone();
    let modules: Vec<Box<dyn ErasedModule>> = vec![
        erase(Mlp::new(&device())),
        erase(Mlp::with_dropout(0.0, &device())),
    ];
    for mut module in modules {
        let setup = module.configure_optimizers(&FitInfo::new(Some(10), None, 1));
        let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
        step(&mut engine, &mut *module, points(1, 8, DType::F32, &device()), 0).unwrap();
    }
}
