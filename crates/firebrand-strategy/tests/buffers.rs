//! Running statistics are the module's own: written by its forward passes, left alone by the trainer, seen by evaluation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::Module;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, Tensor, TensorData};
use firebrand_core::{
    AnyTensor, ErasedModule, LightningModule, OptimizerSetup, ParamInfo, ParamMapper, ParamVisitor,
    downcast_module, erase, restore_type,
};
use firebrand_strategy::{Engine, EngineOptions, Precision, PrepareOptions, SingleDevice};
use support::*;

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(SgdConfig::new(), 0.1)
}

fn batch(number: u64) -> (Tensor<4>, Tensor<1, burn::tensor::Int>) {
    images(number, 8, DType::F32, &device())
}

fn mean(module: &dyn ErasedModule) -> Vec<f64> {
    value(module, "norm.running_mean")
}

/// What a visitor sees of the running mean, without a validation twin.
fn visited_mean(module: &dyn ErasedModule) -> TensorData {
    struct Mean(Option<TensorData>);

    impl ParamVisitor for Mean {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            info.path == "norm.running_mean"
        }

        fn visit(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) {
            self.0 = Some(value.into_data());
        }
    }

    let mut mean = Mean(None);
    module.visit_params(&mut mean);
    mean.0.unwrap()
}

#[test]
fn a_training_step_updates_the_statistics_and_evaluation_sees_the_last_update() {
    let _alone = alone();
    let mut module = erase(Cnn::new(&device()));
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    assert_eq!(mean(&*module), [0.0; 4]);

    // The forward pass of the engine's twin, without an update: 0.9 of the old mean and 0.1 of the batch's.
    let net = downcast_module::<Cnn>(&*module).unwrap();
    let (x, y) = batch(0);
    let features = net.conv.forward(x.clone()).inner();
    let of_batch: Vec<f64> = features
        .permute([1, 0, 2, 3])
        .reshape([4, -1])
        .mean_dim(1)
        .into_data()
        .iter()
        .collect();
    micro_batch(&mut engine, &*module, (x, y), 0).unwrap();
    // Burn keeps the update pending, so a visitor misses it; the validation twin has it.
    assert_eq!(visited_mean(&*module).iter::<f64>().collect::<Vec<_>>(), [0.0; 4]);
    for (seen, of_batch) in mean(&*module).into_iter().zip(of_batch) {
        assert!((seen - 0.1 * of_batch).abs() < 1e-6, "{seen} {of_batch}");
    }
    assert_eq!(
        visited_mean(&*module).iter::<f64>().collect::<Vec<_>>(),
        mean(&*module),
        "the twin settled it"
    );
}

#[test]
fn mapping_a_clone_leaves_the_statistics_alone() {
    let _alone = alone();

    /// A mapper as the engine has them: parameters change, buffers are not asked for.
    struct Double;

    impl ParamMapper for Double {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            info.id == firebrand_core::path_id(info.path)
        }

        fn map(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) -> AnyTensor {
            value.inner().mul_scalar(2.0)
        }
    }

    let mut module = erase(Cnn::new(&device()));
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let before = values(&*module);
    let twin = module.mapped_clone(&mut Double);
    assert_eq!(values(&*module), before);
    assert_eq!(values(&*twin)["norm.running_mean"], before["norm.running_mean"]);
    assert_ne!(values(&*twin)["norm.gamma"], before["norm.gamma"]);
}

#[test]
fn an_evaluation_twin_is_a_snapshot() {
    let _alone = alone();
    let mut module = erase(Cnn::new(&device()));
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let twin = module.evaluation_twin();
    let before = values(&*twin);
    // Evaluating neither changes the twin nor the module, and training on does not change the twin.
    let net = downcast_module::<Cnn>(&*twin).unwrap();
    let (x, _) = images(5, 8, DType::F32, &device().without_autodiff());
    let logits = net.forward(x.clone()).into_data();
    assert_eq!(net.forward(x).into_data(), logits, "no dropout");
    assert_eq!(values(&*module), before);
    step(&mut engine, &mut *module, batch(1), 1).unwrap();
    assert_eq!(values(&*twin), before);
    assert_ne!(values(&*module)["norm.running_mean"], before["norm.running_mean"]);
}

#[test]
fn looking_at_the_statistics_changes_nothing_of_the_training() {
    let _alone = alone();
    let train = |look: bool| {
        let mut module = erase(Cnn::new(&device()));
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        for number in 0..10 {
            device().seed(number);
            step(&mut engine, &mut *module, batch(number), number).unwrap();
            if look {
                drop(module.evaluation_twin());
            }
        }
        values(&*module)
    };
    assert_eq!(train(true), train(false));
}

/// A user who keeps a clone of the module keeps its statistics too.
#[test]
fn a_clone_that_the_user_kept_does_not_change() {
    let _alone = alone();
    let net = Cnn::new(&device());
    let kept = net.clone();
    let mut module = erase(net);
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    for number in 0..3 {
        step(&mut engine, &mut *module, batch(number), number).unwrap();
    }
    assert_ne!(mean(&*module), [0.0; 4]);
    assert_eq!(mean(&*erase(kept)), [0.0; 4]);
}

/// A forward pass before the fit leaves an update pending, in the dtype and on the device of that pass.
#[test]
fn an_update_from_before_the_fit_is_taken_over() {
    let _alone = alone();
    for precision in [Precision::F32, Precision::F64] {
        // Looking at a module settles its update, so that is done with another that is alike.
        let forwarded = || {
            device().seed(3);
            let net = Cnn::new(&device());
            drop(net.training_step(batch(0), &mut context(0, 0)).unwrap());
            net
        };
        let expected = mean(&*erase(forwarded()));
        assert_ne!(expected, [0.0; 4]);
        let net = forwarded();
        let mut module = erase(net);
        let options = PrepareOptions {
            precision: precision.into(),
            ..prepare(&device())
        };
        let mut engine = Engine::new(
            &mut *module,
            &setup(),
            &options,
            EngineOptions::default(),
            Box::new(SingleDevice::new()),
        )
        .unwrap();
        assert_eq!(mean(&*module), expected);
        let dtype = if precision == Precision::F64 {
            DType::F64
        } else {
            DType::F32
        };
        step(&mut engine, &mut *module, images(1, 8, dtype, &device()), 1).unwrap();
        assert_eq!(values(&*module)["norm.running_mean"].dtype(), dtype);
        assert_ne!(mean(&*module), expected);
    }
}

#[test]
fn statistics_are_no_parameters() {
    let _alone = alone();
    let mut module = erase(Cnn::new(&device()));
    let setup = OptimizerSetup::new(AdamWConfig::new(), 0.1);
    let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let state = engine.state();
    assert!(state.tensors.keys().any(|name| name.starts_with("norm.gamma.")));
    assert!(!state.tensors.keys().any(|name| name.contains("running")));
    let error = engine
        .set_trained(&"norm.running_mean".into(), true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no parameter matches 'norm.running_mean'"),
        "{error}"
    );
}

/// A module that a user evaluated, or got back from an evaluation, is trained as any other: with dropout and batch statistics.
#[test]
fn a_module_in_validation_mode_is_trained_in_training_mode() {
    let _alone = alone();
    let train = |net: Cnn| {
        let mut module = erase(net);
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        for number in 0..5 {
            device().seed(number);
            step(&mut engine, &mut *module, batch(number), number).unwrap();
        }
        values(&*module)
    };
    let drawn = || {
        device().seed(11);
        let net = Cnn::new(&device());
        materialize(&net);
        net
    };
    assert_eq!(train(drawn().valid()), train(drawn()));
}

/// A layer that the user froze keeps its statistics, in the module that comes back too.
#[test]
fn a_frozen_norm_keeps_its_statistics() {
    let _alone = alone();
    for evaluated in [false, true] {
        let net = Cnn::new(&device());
        let norm = net.norm.freeze();
        let mut net = Cnn { norm, ..net };
        if evaluated {
            net = net.valid();
        }
        let mut module = erase(net);
        let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
        for number in 0..3 {
            step(&mut engine, &mut *module, batch(number), number).unwrap();
        }
        assert_eq!(mean(&*module), [0.0; 4]);
        let net: Cnn = restore_type(module).unwrap();
        assert!(!net.norm.training.is_enabled());
        assert!(net.dropout.training.is_enabled());
    }
}
