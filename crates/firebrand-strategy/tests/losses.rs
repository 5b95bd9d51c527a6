//! Losses that cannot be trained on are errors, and an error or panic in a user's step leaves nothing behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Tensor};
use firebrand_core::{FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase};
use firebrand_strategy::{EngineOptions, Error, Update};
use support::*;

/// What a training step gets wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    TwoElements,
    Detached,
    Inner,
    Constant,
    OtherModule,
    Fails,
    Panics,
}

/// A batch that carries its fault, once per sample.
type Faulty = (Tensor<2>, Vec<Fault>);

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
    #[module(skip)]
    other: Arc<Linear>,
}

impl Net {
    fn new() -> Self {
        let other = LinearConfig::new(3, 1).init(&device());
        Self {
            linear: LinearConfig::new(3, 1).init(&device()),
            other: Arc::new(other),
        }
    }
}

impl LightningModule for Net {
    type Batch = Faulty;

    fn training_step(&self, (x, faults): Faulty, _: &mut StepContext) -> Result<Tensor<1>> {
        let squares = self.linear.forward(x.clone()).powf_scalar(2.0);
        match faults[0] {
            Fault::None => Ok(squares.mean()),
            Fault::TwoElements => Ok(squares.squeeze_dim(1)),
            Fault::Detached => Ok(squares.mean().detach()),
            Fault::Inner => Ok(squares.mean().inner()),
            Fault::Constant => Ok(x.mean()),
            Fault::OtherModule => Ok(self.other.forward(x).mean()),
            Fault::Fails => Err("the image could not be decoded")?,
            Fault::Panics => panic!("index out of range"),
        }
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }
}

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(SgdConfig::new(), 0.1)
}

fn batch(fault: Fault) -> Faulty {
    (tensor(1, [2, 3], DType::F32, &device()), vec![fault; 2])
}

#[test]
fn each_fault_has_its_error_and_the_next_step_is_as_if_it_had_not_been() {
    let _alone = alone();
    let clean = {
        let mut module = erase(Net::new());
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        step(&mut engine, &mut *module, batch(Fault::None), 0).unwrap();
        values(&*module)
    };
    for fault in [
        Fault::TwoElements,
        Fault::Detached,
        Fault::Inner,
        Fault::Constant,
        Fault::OtherModule,
        Fault::Fails,
    ] {
        let mut module = erase(Net::new());
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        let before = values(&*module);
        let error = step(&mut engine, &mut *module, batch(fault), 5).unwrap_err();
        match (fault, &error) {
            (Fault::TwoElements, Error::LossShape { elements: 2 })
            | (Fault::Detached | Fault::Inner | Fault::Constant, Error::LossWithoutGraph)
            | (Fault::OtherModule, Error::NoGradient) => {}
            (Fault::Fails, Error::Step { .. }) => {
                let text = format!("{error:?}");
                assert_eq!(
                    text,
                    "training_step failed in epoch 0, batch 5, global step 5: the image could not be decoded"
                );
            }
            _ => panic!("{fault:?}: {error}"),
        }
        assert_eq!(values(&*module), before);
        step(&mut engine, &mut *module, batch(Fault::None), 0).unwrap();
        assert_eq!(values(&*module), clean, "after {fault:?}");
    }
}

#[test]
fn a_panic_in_a_step_does_not_poison_the_next() {
    let _alone = alone();
    let run = |with_panic: bool| {
        let mut module = erase(Net::new());
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        for number in 0..3 {
            if with_panic {
                let hook = std::panic::take_hook();
                std::panic::set_hook(Box::new(|_| {}));
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    micro_batch(&mut engine, &*module, batch(Fault::Panics), number)
                }));
                std::panic::set_hook(hook);
                assert!(outcome.is_err());
            }
            let updated = step(&mut engine, &mut *module, batch(Fault::None), number).unwrap();
            assert!(matches!(updated, Update::Stepped { .. }));
        }
        values(&*module)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_module_of_which_everything_is_frozen_cannot_be_trained() {
    let _alone = alone();
    let mut module = erase(Net::new().no_grad());
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    let error = step(&mut engine, &mut *module, batch(Fault::None), 0).unwrap_err();
    assert!(matches!(error, Error::LossWithoutGraph), "{error}");
    assert!(
        error.to_string().contains("at least one parameter unfrozen"),
        "{error}"
    );
}

#[test]
fn a_batch_of_another_type_names_both() {
    let _alone = alone();
    let mut module = erase(Net::new());
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    let error = step(&mut engine, &mut *module, vec![1u8], 0).unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("alloc::vec::Vec<u8>") && text.contains("Tensor<2>"),
        "{text}"
    );
}

/// A loss may be of any shape with one element of one dimension, and of any value.
#[test]
fn a_sum_is_a_loss_too() {
    let _alone = alone();

    #[derive(Module, Debug)]
    struct Sum {
        linear: Linear,
    }

    impl LightningModule for Sum {
        type Batch = Tensor<2>;

        fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
            Ok(self.linear.forward(x).reshape([1]))
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            setup()
        }
    }

    let mut module = erase(Sum {
        linear: LinearConfig::new(3, 1).init(&device()),
    });
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    let x = tensor(1, [1, 3], DType::F32, &device());
    assert!(matches!(
        step(&mut engine, &mut *module, x, 0).unwrap(),
        Update::Stepped { .. }
    ));
}
