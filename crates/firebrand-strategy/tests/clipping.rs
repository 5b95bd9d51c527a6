//! Clipping against numbers worked out by hand, on a module whose gradients are known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Tensor, TensorData};
use firebrand_core::{ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase};
use firebrand_strategy::{Engine, EngineOptions, Error, GradientClip, Update};
use support::*;

/// Its loss is `a · x + b · y`: the gradients are the batch itself.
#[derive(Module, Debug)]
struct Inner {
    a: Param<Tensor<1>>,
    b: Param<Tensor<2>>,
}

impl LightningModule for Inner {
    type Batch = (Tensor<2>, Tensor<3>);

    fn training_step(&self, (x, y): Self::Batch, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok((self.a.val() * x.squeeze_dim(0)).sum() + (self.b.val() * y.squeeze_dim(0)).sum())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1.0)
    }
}

/// Gradients that are to be: 3 and -4 for `a`, 12, 0 and 84, 0 for `b`. Their norms are 5, 84.9 and together 85.
fn batch(factor: f64) -> (Tensor<2>, Tensor<3>) {
    let tensor = |values: &[f64]| {
        TensorData::new(
            values.iter().map(|value| value * factor).collect(),
            [values.len()],
        )
    };
    let x = Tensor::<1>::from_data(tensor(&[3.0, -4.0]), (&device(), DType::F32));
    let y = Tensor::<1>::from_data(tensor(&[12.0, 0.0, 84.0, 0.0]), (&device(), DType::F32));
    (x.unsqueeze(), y.reshape([1, 2, 2]))
}

fn run(clip: Option<GradientClip>, batches: &[f64]) -> (Vec<f64>, f64) {
    let zeros = |count| TensorData::new(vec![0.0f32; count], [count]);
    let mut module = erase(Inner {
        a: Param::from_tensor(Tensor::from_data(zeros(2), &device())),
        b: Param::from_tensor(Tensor::<1>::from_data(zeros(4), &device()).reshape([2, 2])),
    });
    let options = EngineOptions {
        clip,
        ..EngineOptions::default()
    };
    let setup = OptimizerSetup::new(SgdConfig::new(), 1.0);
    let mut engine = engine(&mut *module, &setup, options).unwrap();
    for factor in batches {
        micro_batch(&mut engine, &*module, batch(*factor), 0).unwrap();
    }
    let Update::Stepped { gradient_norm } = update(&mut engine, &mut *module).unwrap() else {
        panic!("skipped")
    };
    // From zero with a rate of one, the weights are the clipped gradients, negated.
    let mut gradients = value(&*module, "a");
    gradients.extend(value(&*module, "b"));
    (
        gradients.into_iter().map(|value| 0.0 - value).collect(),
        gradient_norm,
    )
}

fn assert_close(found: &[f64], expected: &[f64]) {
    assert!(
        found
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1e-3))
            && found.len() == expected.len(),
        "{found:?} instead of {expected:?}"
    );
}

const GRADIENTS: [f64; 6] = [3.0, -4.0, 12.0, 0.0, 84.0, 0.0];

#[test]
fn nothing_is_clipped_by_default() {
    let _alone = alone();
    let (gradients, norm) = run(None, &[1.0]);
    assert_eq!(gradients, GRADIENTS);
    assert!((norm - 85.0).abs() < 1e-9);
}

#[test]
fn the_norm_is_taken_over_all_parameters() {
    let _alone = alone();
    let (gradients, norm) = run(Some(GradientClip::Norm(17.0)), &[1.0]);
    assert_close(&gradients, &GRADIENTS.map(|value| value / 5.0));
    assert!(
        (norm - 85.0).abs() < 1e-9,
        "the norm before clipping is reported: {norm}"
    );
    // Just above the norm, nothing changes by a single bit.
    assert_eq!(run(Some(GradientClip::Norm(85.1)), &[1.0]).0, GRADIENTS);
}

#[test]
fn values_are_clamped_one_by_one() {
    let _alone = alone();
    let (gradients, norm) = run(Some(GradientClip::Value(3.5)), &[1.0]);
    assert_eq!(gradients, [3.0, -3.5, 3.5, 0.0, 3.5, 0.0]);
    assert!((norm - 85.0).abs() < 1e-9);
}

/// Micro-batches are averaged before they are clipped: 1 and 3 make 2, whatever each would have been clipped to.
#[test]
fn an_accumulated_gradient_is_clipped_as_one() {
    let _alone = alone();
    let (gradients, norm) = run(Some(GradientClip::Norm(17.0)), &[1.0, 3.0]);
    assert_close(&gradients, &GRADIENTS.map(|value| value / 5.0));
    assert!((norm - 170.0).abs() < 1e-4, "{norm}");
    let (gradients, _) = run(Some(GradientClip::Value(5.0)), &[1.0, 3.0]);
    assert_eq!(gradients, [5.0, -5.0, 5.0, 0.0, 5.0, 0.0]);
}

#[test]
fn the_hook_before_the_update_sees_the_weights_of_before() {
    let _alone = alone();
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let setup = OptimizerSetup::new(SgdConfig::new(), 1.0);
    let mut engine: Engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    let before = values(&*module);
    micro_batch(&mut engine, &*module, points(1, 4, DType::F32, &device()), 0).unwrap();
    let mut called = 0;
    let mut hook = |module: &mut dyn ErasedModule| {
        called += 1;
        assert_eq!(values(module), before);
        Ok(())
    };
    engine.update(&mut *module, 0, &mut hook).unwrap();
    assert_eq!(called, 1);
    assert_ne!(values(&*module), before);

    // An error in it stops the update, and the gradients are gone.
    let before = values(&*module);
    micro_batch(&mut engine, &*module, points(1, 4, DType::F32, &device()), 0).unwrap();
    let error = engine
        .update(&mut *module, 0, &mut |_| Err(Error::NoGradient))
        .unwrap_err();
    assert!(matches!(error, Error::NoGradient));
    assert_eq!(values(&*module), before);
    assert_eq!(update(&mut engine, &mut *module).unwrap(), Update::Skipped);
}

#[test]
fn limits_that_are_none_are_errors() {
    let _alone = alone();
    for clip in [
        GradientClip::Norm(0.0),
        GradientClip::Norm(-1.0),
        GradientClip::Norm(f64::NAN),
        GradientClip::Value(0.0),
    ] {
        let mut module = erase(Mlp::new(&device()));
        let options = EngineOptions {
            clip: Some(clip),
            ..EngineOptions::default()
        };
        let setup = OptimizerSetup::new(SgdConfig::new(), 1.0);
        let error = engine(&mut *module, &setup, options).err().unwrap().to_string();
        assert!(
            error.starts_with("gradient_clip: ") && error.contains("above 0"),
            "{error}"
        );
    }
}
