//! Weights are drawn where and when they are to be, and from (seed, path) alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use firebrand_core::{
    AnyTensor, ErasedModule, OptimizerSetup, ParamInfo, ParamMapper, ParamTable, downcast_module, erase,
    restore_type,
};
use firebrand_strategy::{
    Engine, EngineOptions, Gradient, GradientSink, Optimizers, PrepareOptions, SingleDevice, parameter_use,
    prepare_parameters,
};
use support::*;

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(SgdConfig::new(), 0.1)
}

fn lazy(module: &dyn ErasedModule) -> Vec<String> {
    let list = initialized(module).into_iter();
    list.filter(|(_, initialized)| !initialized)
        .map(|(path, _)| path)
        .collect()
}

#[test]
fn taking_over_draws_nothing() {
    let _alone = alone();
    let mut module = erase(Cnn::new(&device()));
    let before = lazy(&*module);
    assert!(before.contains(&"conv.weight".to_owned()));
    let table = ParamTable::take_over(&mut *module).unwrap();
    Optimizers::new(&setup(), &table).unwrap();
    assert_eq!(lazy(&*module), before);
}

#[test]
fn weights_are_a_function_of_seed_and_path() {
    let _alone = alone();
    let weights = |seed: u64, before: &dyn Fn(&mut Mlp)| {
        let mut net = Mlp::new(&device());
        before(&mut net);
        let mut module = erase(net);
        let options = PrepareOptions {
            seed,
            ..prepare(&device())
        };
        Engine::new(
            &mut *module,
            &setup(),
            &options,
            EngineOptions::default(),
            Box::new(SingleDevice::new()),
        )
        .unwrap();
        assert!(lazy(&*module).is_empty());
        values(&*module)
    };
    let expected = weights(1, &|_| {});
    assert_ne!(expected["fc1.weight"], weights(2, &|_| {})["fc1.weight"]);

    let drawn = weights(1, &|_| {
        device().seed(99);
        let _ = Tensor::<1>::random([17], Distribution::Default, &device());
    });
    assert_eq!(drawn, expected, "whatever was drawn before");

    // A layer that the user made by hand is kept, and changes nothing about the others.
    let mut kept = None;
    let kept_cell = Mutex::new(&mut kept);
    let by_hand = weights(1, &|net| {
        device().seed(1234);
        **kept_cell.lock().unwrap() = Some(net.fc1.weight.val().into_data());
    });
    let kept = kept.unwrap();
    assert_eq!(by_hand["fc1.weight"], kept);
    assert_ne!(by_hand["fc1.weight"], expected["fc1.weight"]);
    for path in ["fc1.bias", "fc2.weight", "fc2.bias"] {
        assert_eq!(by_hand[path], expected[path], "{path}");
    }
}

#[test]
fn equal_layers_at_different_paths_differ() {
    let _alone = alone();
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    let (first, second) = (value(&*module, "fc1.bias"), value(&*module, "fc2.bias"));
    // Burn draws both from (-1/sqrt(inputs), 1/sqrt(inputs)): the same numbers would be in one proportion.
    let ratio = (6.0f64 / 16.0).sqrt();
    assert!(
        first
            .iter()
            .zip(&second)
            .any(|(a, b)| (a * ratio - b).abs() > 1e-4),
        "{first:?} {second:?}"
    );
}

/// The part of the engine that a pipeline rank does with its stage, over a module of which it owns one layer.
#[test]
fn layers_of_another_rank_stay_lazy_through_everything() {
    let _alone = alone();

    #[derive(Default)]
    struct Record(Mutex<Vec<(usize, AnyTensor)>>);

    impl GradientSink for Record {
        fn push(&self, parameter: usize, gradient: AnyTensor) {
            self.0.lock().unwrap().push((parameter, gradient));
        }
    }

    struct Use<'a> {
        table: &'a ParamTable,
        trained: &'a [bool],
        sink: Arc<Record>,
    }

    impl ParamMapper for Use<'_> {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            self.table
                .index_of(info.id)
                .is_some_and(|index| self.trained[index])
        }

        fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
            assert!(requires_grad, "{}", info.path);
            let sink = Arc::clone(&self.sink) as Arc<dyn GradientSink>;
            parameter_use(
                value,
                None,
                FloatDType::F32,
                self.table.index_of(info.id).unwrap(),
                sink,
            )
        }
    }

    let others = ["fc2.bias", "fc2.weight"];
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let table = ParamTable::take_over(&mut *module).unwrap();
    let owned = |index: usize| table.entries()[index].path.starts_with("fc1");
    let trained = prepare_parameters(&mut *module, &table, &prepare(&device()), &owned).unwrap();
    assert_eq!(trained, [true, true, false, false]);
    assert_eq!(lazy(&*module), others);

    // What this rank holds is what the whole module would hold there.
    let mut whole = erase(Mlp::with_dropout(0.0, &device()));
    engine(&mut *whole, &setup(), EngineOptions::default()).unwrap();
    let weight = |module: &dyn ErasedModule| {
        downcast_module::<Mlp>(module)
            .unwrap()
            .fc1
            .weight
            .val()
            .into_data()
    };
    assert_eq!(weight(&*module), weight(&*whole));

    let sink = Arc::new(Record::default());
    let twin = module.mapped_clone(&mut Use {
        table: &table,
        trained: &trained,
        sink: Arc::clone(&sink),
    });
    assert_eq!(lazy(&*twin), others);
    let x = tensor(1, [3, 6], DType::F32, &device());
    let loss = downcast_module::<Mlp>(&*twin)
        .unwrap()
        .fc1
        .forward(x)
        .powf_scalar(2.0)
        .mean();
    drop(loss.backward());
    let gradients: Vec<Gradient> = std::mem::take(&mut *sink.0.lock().unwrap())
        .into_iter()
        .map(|(parameter, value)| Gradient { parameter, value })
        .collect();
    assert_eq!(gradients.len(), 2);

    let before = weight(&*module);
    let mut optimizers = Optimizers::new(&OptimizerSetup::new(AdamWConfig::new(), 0.1), &table).unwrap();
    optimizers.step(&mut *module, &table, gradients);
    assert_ne!(weight(&*module), before);
    assert_eq!(lazy(&*module), others);

    // The layers that another rank owns are still the user's, lazy and trainable.
    let net: Mlp = restore_type(module).unwrap();
    assert!(!net.fc2.weight.is_initialized());
    assert!(net.fc2.weight.val().is_require_grad());
}

#[test]
fn frozen_parameters_stay_frozen_lazy_or_not_on_any_device() {
    let _alone = alone();
    for device in [device(), Device::flex()] {
        for draw_first in [false, true] {
            let net = Mlp::with_dropout(0.0, &device);
            if draw_first {
                materialize(&net);
            }
            let fc1 = net.fc1.no_grad();
            let mut module = erase(Mlp { fc1, ..net });
            let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
            let flags: Vec<bool> = (0..4).map(|index| engine.is_trained(index)).collect();
            assert_eq!(
                flags,
                [false, false, true, true],
                "{device:?}, drawn first: {draw_first}"
            );
            let before = values(&*module);
            for number in 0..3 {
                step(
                    &mut engine,
                    &mut *module,
                    points(number, 4, DType::F32, &support::device()),
                    number,
                )
                .unwrap();
            }
            let after = values(&*module);
            assert_eq!(before["fc1.weight"], after["fc1.weight"]);
            assert_ne!(before["fc2.weight"], after["fc2.weight"]);
            // What comes back to the user has the flags that it came with.
            let net: Mlp = restore_type(module).unwrap();
            assert!(!net.fc1.weight.val().is_require_grad());
            assert!(net.fc2.weight.val().is_require_grad());
        }
    }
}

/// Freezing a lazy clone reaches into the original in Burn; what is trained must not depend on it.
#[test]
fn a_frozen_lazy_clone_does_not_freeze_the_original() {
    let _alone = alone();
    let net = Mlp::new(&device());
    let frozen = net.clone().no_grad();
    let mut module = erase(net);
    let engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    assert!((0..4).all(|index| engine.is_trained(index)));
    drop(frozen);
}
