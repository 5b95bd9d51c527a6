//! A loss or gradient that is not finite stops the training with its place, or is skipped without a trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Tensor};
use firebrand_core::{
    AnyBatch, ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, Schedule, Stage, StepContext,
    StepInfo, erase,
};
use firebrand_strategy::{Engine, EngineOptions, Error, GradientClip, NonFinite, Update};
use support::*;

/// `sum(first) + sum(sqrt(second · x))`: with x = 0 the loss is finite and the gradient of `second` is 0 · ∞.
#[derive(Module, Debug)]
struct Roots {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

impl LightningModule for Roots {
    type Batch = Tensor<1>;

    fn training_step(&self, x: Tensor<1>, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(self.first.val().powf_scalar(2.0).sum() + (self.second.val() * x).sqrt().sum())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }
}

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(AdamWConfig::new(), 0.1).schedule(Schedule::factor(|n| 1.0 / (n + 1) as f64))
}

fn fresh(non_finite: NonFinite) -> (Box<dyn ErasedModule>, Engine) {
    let ones = || Param::from_tensor(Tensor::ones([2], &device()));
    let mut module = erase(Roots {
        first: ones(),
        second: ones(),
    });
    let options = EngineOptions {
        non_finite,
        clip: Some(GradientClip::Norm(100.0)),
        ..EngineOptions::default()
    };
    let engine = engine(&mut *module, &setup(), options).unwrap();
    (module, engine)
}

fn x(values: [f32; 2]) -> Tensor<1> {
    Tensor::from_floats(values, &device())
}

/// A batch whose loss is NaN, and one whose gradient is.
fn bad() -> [Tensor<1>; 2] {
    [x([-1.0, 1.0]), x([0.0, 1.0])]
}

fn info(global_step: u64) -> StepContext {
    StepContext::new(StepInfo {
        global_step,
        epoch: 3,
        batch_index: 12,
        ..StepInfo::first(Stage::Train, device())
    })
}

#[test]
fn the_error_names_the_place() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Stop);
    let before = values(&*module);
    let [loss, gradient] = bad();
    engine
        .micro_batch(&*module, AnyBatch::new(loss), &mut info(41), true)
        .unwrap();
    let error = update(&mut engine, &mut *module).unwrap_err();
    assert!(
        matches!(error, Error::NonFiniteLoss { value, global_step: 41, epoch: 3, batch_index: 12 } if value.is_nan()),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("the loss is NaN at global step 41 (epoch 3, batch 12)"),
        "{text}"
    );

    engine
        .micro_batch(&*module, AnyBatch::new(gradient), &mut info(42), true)
        .unwrap();
    let error = update(&mut engine, &mut *module).unwrap_err();
    match &error {
        Error::NonFiniteGradient {
            path,
            global_step: 42,
            epoch: 3,
            batch_index: 12,
        } => assert_eq!(path, "second"),
        other => panic!("{other}"),
    }
    assert!(
        error
            .to_string()
            .contains("the gradient of 'second' is not finite at global step 42")
    );

    // Nothing was updated, and nothing is left for the next update.
    assert_eq!(values(&*module), before);
    assert_eq!(update(&mut engine, &mut *module).unwrap(), Update::Skipped);
    assert!(matches!(
        step(&mut engine, &mut *module, x([1.0, 4.0]), 43).unwrap(),
        Update::Stepped { .. }
    ));
}

/// The micro-batch is named that gave the value, not the last of the group.
#[test]
fn the_micro_batch_is_named() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Stop);
    let [loss, _] = bad();
    engine
        .micro_batch(&*module, AnyBatch::new(loss), &mut info(41), false)
        .unwrap();
    micro_batch(&mut engine, &*module, x([1.0, 1.0]), 99).unwrap();
    let error = update(&mut engine, &mut *module).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NonFiniteLoss {
                global_step: 41,
                batch_index: 12,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_skipped_update_leaves_no_trace() {
    let _alone = alone();
    let train = |with_bad: bool| {
        let (mut module, mut engine) = fresh(NonFinite::Skip);
        let mut norms = Vec::new();
        for number in 0..6u32 {
            if with_bad {
                for bad in bad() {
                    let (before, state, rates) = (values(&*module), engine.state(), engine.learning_rates());
                    // A good micro-batch beside it is left out with it.
                    micro_batch(&mut engine, &*module, x([1.0, 1.0]), 0).unwrap();
                    micro_batch(&mut engine, &*module, bad, 0).unwrap();
                    assert_eq!(update(&mut engine, &mut *module).unwrap(), Update::Skipped);
                    assert_eq!(values(&*module), before);
                    assert_eq!(engine.learning_rates(), rates);
                    assert_eq!(engine.state().tensors, state.tensors);
                    assert_eq!(engine.state().scalars, state.scalars);
                }
            }
            let batch = x([1.0, 1.0 + number as f32]);
            norms.push(step(&mut engine, &mut *module, batch, u64::from(number)).unwrap());
        }
        (values(&*module), engine.state().tensors, norms)
    };
    assert_eq!(train(true), train(false));
}

/// Each micro-batch has a finite loss and a finite gradient; their sum is infinite.
#[test]
fn gradients_that_overflow_when_added_are_found() {
    let _alone = alone();

    #[derive(Module, Debug)]
    struct Product {
        weight: Param<Tensor<1>>,
    }

    impl LightningModule for Product {
        type Batch = Tensor<1>;

        fn training_step(&self, x: Tensor<1>, _: &mut StepContext) -> Result<Tensor<1>> {
            Ok((self.weight.val() * x).sum())
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            setup()
        }
    }

    let weight = Param::from_tensor(Tensor::zeros([2], &device()));
    let mut module = erase(Product { weight });
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    for _ in 0..2 {
        let given = micro_batch(&mut engine, &*module, x([3e38, 1.0]), 0).unwrap();
        assert_eq!(given.loss.into_scalar::<f32>(), 0.0);
    }
    let error = update(&mut engine, &mut *module).unwrap_err();
    assert!(
        matches!(&error, Error::NonFiniteGradient { path, .. } if path == "weight"),
        "{error}"
    );
}

/// The loss overflows behind the second of three layers: later layers are fine, earlier ones inherit the fault.
#[test]
fn an_anomaly_is_found_in_its_micro_batch_and_named_where_it_began() {
    let _alone = alone();

    #[derive(Module, Debug)]
    struct Chain {
        first: Param<Tensor<1>>,
        second: Param<Tensor<1>>,
        third: Param<Tensor<1>>,
    }

    impl LightningModule for Chain {
        type Batch = Tensor<1>;

        fn training_step(&self, x: Tensor<1>, _: &mut StepContext) -> Result<Tensor<1>> {
            // The derivative of a root is infinite at 0, and 0 is what `second` makes of x = 0.
            let root = (x.clone() * self.first.val() * self.second.val()).sqrt();
            Ok((root + self.third.val() * x).sum())
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            setup()
        }
    }

    let run = |detect_anomaly: bool, non_finite: NonFinite| {
        let ones = || Param::from_tensor(Tensor::ones([2], &device()));
        let mut module = erase(Chain {
            first: ones(),
            second: ones(),
            third: ones(),
        });
        let options = EngineOptions {
            detect_anomaly,
            non_finite,
            ..EngineOptions::default()
        };
        let mut engine = engine(&mut *module, &setup(), options).unwrap();
        engine.micro_batch(&*module, AnyBatch::new(x([0.0, 1.0])), &mut info(41), false)?;
        micro_batch(&mut engine, &*module, x([1.0, 1.0]), 99)?;
        update(&mut engine, &mut *module)
    };
    let error = run(true, NonFinite::Stop).unwrap_err();
    match &error {
        Error::NonFiniteGradient {
            path,
            global_step: 41,
            batch_index: 12,
            ..
        } => assert_eq!(path, "second"),
        other => panic!("{other}"),
    }
    // Without it the update finds the first in the module, and knows the last micro-batch alone.
    let error = run(false, NonFinite::Stop).unwrap_err();
    match &error {
        Error::NonFiniteGradient {
            path,
            global_step: 99,
            ..
        } => assert_eq!(path, "first"),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("`detect_anomaly(true)`"), "{error}");
    assert_eq!(run(true, NonFinite::Skip).unwrap(), Update::Skipped);
}

#[test]
fn looking_for_anomalies_changes_no_bit_of_a_healthy_training() {
    let _alone = alone();
    let train = |detect_anomaly| {
        let mut module = erase(Cnn::new(&device()));
        let options = EngineOptions {
            detect_anomaly,
            ..EngineOptions::default()
        };
        let mut engine = engine(&mut *module, &setup(), options).unwrap();
        for number in 0..5 {
            device().seed(number);
            step(
                &mut engine,
                &mut *module,
                images(number, 8, DType::F32, &device()),
                number,
            )
            .unwrap();
        }
        values(&*module)
    };
    assert_eq!(train(true), train(false));
}
