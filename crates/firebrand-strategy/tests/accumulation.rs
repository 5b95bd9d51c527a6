//! Several micro-batches make one update: the mean over what they really held.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Tensor};
use firebrand_core::{
    AnyBatch, Batch, ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase,
};
use firebrand_strategy::{Engine, EngineOptions, Error, Update};
use support::*;

fn setup() -> OptimizerSetup {
    OptimizerSetup::new(SgdConfig::new(), 0.5)
}

fn fresh() -> (Box<dyn ErasedModule>, Engine) {
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    (module, engine)
}

/// One update from the samples of a batch, cut into micro-batches of the given sizes.
fn accumulate(sizes: &[usize]) -> Box<dyn ErasedModule> {
    let (mut module, mut engine) = fresh();
    let batch = points(3, sizes.iter().sum(), DType::F32, &device());
    let mut start = 0;
    for (number, size) in sizes.iter().enumerate() {
        let samples = Batch::slice(&batch, start..start + size);
        let last = number + 1 == sizes.len();
        let given = engine
            .micro_batch(&*module, AnyBatch::new(samples), &mut context(0, 0), last)
            .unwrap();
        assert_eq!(given.weight, 1.0);
        start += size;
    }
    assert!(matches!(
        update(&mut engine, &mut *module).unwrap(),
        Update::Stepped { .. }
    ));
    module
}

#[test]
fn equal_micro_batches_are_one_big_batch() {
    let _alone = alone();
    let whole = accumulate(&[24]);
    for sizes in [&[12, 12][..], &[8; 3], &[2; 12]] {
        let distance = distance(&*whole, &*accumulate(sizes));
        assert!(distance < 1e-6, "{sizes:?}: {distance}");
    }
    // A step that went nowhere would pass all of that.
    assert!(distance(&*whole, &*fresh().0) > 1e-2);
}

/// The last group of an epoch is averaged over the micro-batches that it has, with the same call.
#[test]
fn a_partial_group_is_averaged_over_its_own_count() {
    let _alone = alone();
    let (mut module, mut engine) = fresh();
    let batch = |number| points(number, 8, DType::F32, &device());
    for number in 0..3 {
        micro_batch(&mut engine, &*module, batch(number), 0).unwrap();
    }
    update(&mut engine, &mut *module).unwrap();
    let middle = values(&*module);
    for number in 3..5 {
        micro_batch(&mut engine, &*module, batch(number), 1).unwrap();
    }
    update(&mut engine, &mut *module).unwrap();

    let (mut expected, mut other) = fresh();
    set_values(&mut *expected, &middle);
    let (a, b) = (batch(3), batch(4));
    let both = (Tensor::cat(vec![a.0, b.0], 0), Tensor::cat(vec![a.1, b.1], 0));
    step(&mut other, &mut *expected, both, 0).unwrap();
    assert!(distance(&*module, &*expected) < 1e-6);
}

/// A model whose loss is the mean over the items of its sequences that count, as over tokens.
#[derive(Module, Debug)]
struct Tokens {
    linear: Linear,
    weighted: bool,
}

impl Tokens {
    fn new(weighted: bool) -> Self {
        Self {
            linear: LinearConfig::new(3, 1).init(&device()),
            weighted,
        }
    }
}

/// Items with three features each, and whether each counts.
type Items = (Tensor<2>, Tensor<1>);

impl LightningModule for Tokens {
    type Batch = Items;

    fn training_step(&self, (x, counts): Items, step: &mut StepContext) -> Result<Tensor<1>> {
        let squares = self.linear.forward(x).powf_scalar(2.0).squeeze_dim::<1>(1);
        let count = counts.clone().sum();
        if self.weighted {
            step.loss_weight(count.clone().into_scalar::<f64>());
        }
        Ok((squares * counts).sum() / count)
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }
}

/// Items of which the first `counted` of each ten count.
fn items(seed: u64, sizes: &[usize]) -> Vec<Items> {
    sizes
        .iter()
        .enumerate()
        .map(|(number, counted)| {
            let x = tensor(seed + number as u64, [10, 3], DType::F32, &device());
            let counts: Vec<f32> = (0..10)
                .map(|item| if item < *counted { 1.0 } else { 0.0 })
                .collect();
            (x, Tensor::from_floats(counts.as_slice(), &device()))
        })
        .collect()
}

fn together(parts: &[Items]) -> Items {
    let (x, counts): (Vec<_>, Vec<_>) = parts.iter().cloned().unzip();
    (Tensor::cat(x, 0), Tensor::cat(counts, 0))
}

fn tokens(weighted: bool) -> (Box<dyn ErasedModule>, Engine) {
    let mut module = erase(Tokens::new(weighted));
    let engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    (module, engine)
}

#[test]
fn means_over_items_are_weighed_by_their_counts() {
    let _alone = alone();
    let parts = items(1, &[10, 1, 3, 7]);
    let accumulated = |weighted| {
        let (mut module, mut engine) = tokens(weighted);
        for (part, expected) in parts.iter().zip([10.0, 1.0, 3.0, 7.0]) {
            let given = micro_batch(&mut engine, &*module, part.clone(), 0).unwrap();
            assert_eq!(given.weight, if weighted { expected } else { 1.0 });
        }
        update(&mut engine, &mut *module).unwrap();
        module
    };
    let (mut whole, mut engine) = tokens(true);
    step(&mut engine, &mut *whole, together(&parts), 0).unwrap();
    assert!(distance(&*whole, &*accumulated(true)) < 1e-6);
    // The mean of means is something else, or the test would say nothing.
    assert!(distance(&*whole, &*accumulated(false)) > 1e-3);
}

/// A micro-batch without a single item has a loss that is no number; it must neither stop nor spoil the update.
#[test]
fn a_micro_batch_without_items_is_left_out() {
    let _alone = alone();
    let parts = items(1, &[4, 0, 6]);
    let (mut module, mut engine) = tokens(true);
    for (number, part) in parts.iter().enumerate() {
        let given = micro_batch(&mut engine, &*module, part.clone(), 0).unwrap();
        let loss: f64 = given.loss.into_scalar();
        assert_eq!(loss.is_nan(), number == 1);
    }
    assert!(matches!(
        update(&mut engine, &mut *module).unwrap(),
        Update::Stepped { .. }
    ));
    let (mut whole, mut engine) = tokens(true);
    step(&mut engine, &mut *whole, together(&parts), 0).unwrap();
    assert!(distance(&*whole, &*module) < 1e-6);
}

#[test]
fn an_update_without_items_is_skipped() {
    let _alone = alone();
    let (mut module, mut engine) = tokens(true);
    let before = values(&*module);
    for part in items(1, &[0, 0]) {
        micro_batch(&mut engine, &*module, part, 0).unwrap();
    }
    assert_eq!(update(&mut engine, &mut *module).unwrap(), Update::Skipped);
    assert_eq!(values(&*module), before);
    // The next group is not affected.
    for part in items(1, &[5]) {
        micro_batch(&mut engine, &*module, part, 0).unwrap();
    }
    assert!(matches!(
        update(&mut engine, &mut *module).unwrap(),
        Update::Stepped { .. }
    ));
}

#[test]
fn weights_that_are_none_are_errors() {
    let _alone = alone();

    #[derive(Module, Debug)]
    struct Given {
        linear: Linear,
    }

    impl LightningModule for Given {
        type Batch = (Tensor<2>, Vec<Option<f64>>);

        fn training_step(&self, (x, weights): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
            if let Some(Some(weight)) = weights.first() {
                step.loss_weight(*weight);
            }
            Ok(self.linear.forward(x).mean())
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            setup()
        }
    }

    let mut module = erase(Given {
        linear: LinearConfig::new(3, 1).init(&device()),
    });
    let mut engine = engine(&mut *module, &setup(), EngineOptions::default()).unwrap();
    let mut run = |weight: Option<f64>| {
        let batch = (tensor(1, [1, 3], DType::F32, &device()), vec![weight]);
        micro_batch(&mut engine, &*module, batch, 0)
    };
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let error = run(Some(weight)).unwrap_err();
        assert!(matches!(error, Error::Step { .. }), "{error:?}");
        assert!(
            format!("{error:?}").contains(&format!("loss_weight({weight})")),
            "{error:?}"
        );
    }
    run(Some(2.0)).unwrap();
    let error = format!("{:?}", run(None).unwrap_err());
    assert!(
        error.contains("for some micro-batches of this update and not for others"),
        "{error}"
    );
}

/// The count to which weights are put in proportion is part of the state: a resumed run scales its losses alike, bit by bit.
#[test]
fn the_proportion_of_weights_survives_a_resume() {
    let _alone = alone();
    let first = items(1, &[7]);
    let later = items(9, &[3, 5]);
    let (mut module, mut engine) = tokens(true);
    for part in first {
        micro_batch(&mut engine, &*module, part, 0).unwrap();
    }
    update(&mut engine, &mut *module).unwrap();
    let state = engine.state();
    let weights = values(&*module);
    let go_on = |module: &mut dyn ErasedModule, engine: &mut Engine| {
        for part in &later {
            micro_batch(engine, module, part.clone(), 1).unwrap();
        }
        let Update::Stepped { gradient_norm } = update(engine, module).unwrap() else {
            panic!("skipped")
        };
        gradient_norm
    };
    let norm = go_on(&mut *module, &mut engine);
    let text = serde_json::to_string(&state.scalars).unwrap();
    let scalars: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        scalars["loss_reference_bits"].as_u64().map(f64::from_bits),
        Some(8.0),
        "a power of two near 7"
    );
    let scalars_before = scalars["loss_reference_bits"].clone();
    let (mut resumed, mut engine) = tokens(true);
    set_values(&mut *resumed, &weights);
    engine
        .load_state(firebrand_strategy::EngineState { scalars, ..state })
        .unwrap();
    assert_eq!(engine.state().scalars["loss_reference_bits"], scalars_before);
    assert_eq!(go_on(&mut *resumed, &mut engine).to_bits(), norm.to_bits());
    assert_eq!(values(&*resumed), values(&*module));
}

/// An epoch that is cut short leaves a group unfinished; what it held must not reach the next update.
#[test]
fn a_discarded_group_leaves_nothing_behind() {
    let _alone = alone();
    let batch = |number| points(number, 8, DType::F32, &device());
    let run = |unfinished: bool| {
        let (mut module, mut engine) = fresh();
        if unfinished {
            micro_batch(&mut engine, &*module, batch(7), 0).unwrap();
            engine.discard().unwrap();
        }
        step(&mut engine, &mut *module, batch(1), 0).unwrap();
        values(&*module)
    };
    assert_eq!(run(true), run(false));
}

/// Loading a state is a new start: the gradients of before belong to other weights.
#[test]
fn loading_a_state_forgets_an_unfinished_group() {
    let _alone = alone();
    let (mut module, mut engine) = fresh();
    let state = engine.state();
    micro_batch(&mut engine, &*module, points(1, 8, DType::F32, &device()), 0).unwrap();
    engine.load_state(state).unwrap();
    assert_eq!(update(&mut engine, &mut *module).unwrap(), Update::Skipped);
}
