//! Learning rates in the engine: when they advance, when they do not, and that they come back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::{Module, Param};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use firebrand_core::{
    ErasedModule, FitInfo, LightningModule, OptimizerSetup, PlateauConfig, Result, Schedule, StepContext,
    erase,
};
use firebrand_strategy::{Engine, EngineOptions, Error, NonFinite, Update};
use support::*;

/// Its loss is the sum of its weight times the batch, so that plain SGD subtracts rate times batch.
#[derive(Module, Debug)]
struct Weight {
    weight: Param<Tensor<1>>,
}

impl LightningModule for Weight {
    type Batch = Tensor<1>;

    fn training_step(&self, x: Tensor<1>, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok((self.weight.val() * x).sum())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1.0)
    }
}

fn fresh(schedule: Schedule) -> (Box<dyn ErasedModule>, Engine) {
    let weight = Param::from_tensor(Tensor::zeros([1], &device()));
    let mut module = erase(Weight { weight });
    let options = EngineOptions {
        non_finite: NonFinite::Skip,
        ..EngineOptions::default()
    };
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.5).schedule(schedule);
    let engine = engine(&mut *module, &setup, options).unwrap();
    (module, engine)
}

fn go(module: &mut dyn ErasedModule, engine: &mut Engine, x: f32) -> Update {
    step(engine, module, Tensor::<1>::from_floats([x], &device()), 0).unwrap()
}

/// The rates by which the weight really moved, one per update.
fn moves(module: &mut dyn ErasedModule, engine: &mut Engine, count: usize) -> Vec<f64> {
    (0..count)
        .map(|_| {
            let (told, before) = (engine.learning_rates()[0].rate, value(module, "weight")[0]);
            go(module, engine, 1.0);
            let moved = before - value(module, "weight")[0];
            assert!(
                (moved - told).abs() < 1e-6,
                "the rate that is told is the one that is used: {told} {moved}"
            );
            told
        })
        .collect()
}

fn no_metrics(engine: &mut Engine) {
    engine.end_epoch(&|_| None, &[]).unwrap();
}

#[test]
fn a_schedule_advances_after_every_update() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(Schedule::factor(|n| 1.0 / (n + 1) as f64));
    assert_eq!(moves(&mut *module, &mut engine, 4), [0.5, 0.25, 0.5 / 3.0, 0.125]);
    // The end of an epoch is nothing to it.
    no_metrics(&mut engine);
    assert_eq!(moves(&mut *module, &mut engine, 1), [0.1]);
    let name = &engine.learning_rates()[0].optimizer;
    assert_eq!(name, "optimizer");
}

#[test]
fn warmup_starts_above_nothing_and_ends_at_the_full_rate() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(Schedule::linear_warmup(3));
    assert_eq!(
        moves(&mut *module, &mut engine, 5),
        [0.125, 0.25, 0.375, 0.5, 0.5]
    );
}

#[test]
fn an_epoch_schedule_advances_at_the_end_of_an_epoch() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(Schedule::factor(|n| 1.0 / (n + 1) as f64).per_epoch().every(2));
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.extend(moves(&mut *module, &mut engine, 2));
        no_metrics(&mut engine);
    }
    assert_eq!(
        rates,
        [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5 / 3.0, 0.5 / 3.0]
    );
}

#[test]
fn a_skipped_update_does_not_count() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(Schedule::factor(|n| 1.0 / (n + 1) as f64).every(2));
    let mut rates = Vec::new();
    for number in 0..5 {
        rates.extend(moves(&mut *module, &mut engine, 1));
        if number % 2 == 0 {
            let rate = engine.learning_rates();
            assert_eq!(go(&mut *module, &mut engine, f32::NAN), Update::Skipped);
            assert_eq!(engine.learning_rates(), rate);
        }
    }
    assert_eq!(rates, [0.5, 0.5, 0.25, 0.25, 0.5 / 3.0]);
}

#[test]
fn burns_schedulers_give_their_own_rates() {
    let _alone = alone();
    let cosine = CosineAnnealingLrSchedulerConfig::new(0.8, 5).with_min_lr(0.1);
    let linear = LinearLrSchedulerConfig::new(0.8, 0.2, 4);
    let noam = NoamLrSchedulerConfig::new(1.0)
        .with_warmup_steps(3)
        .with_model_size(16);
    macro_rules! check {
        ($config:expr) => {{
            let mut reference =
                burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler::from($config.init().unwrap());
            let expected: Vec<f64> = (0..7).map(|_| reference.step().base()).collect();
            let (mut module, mut engine) = fresh(Schedule::burn($config.init().unwrap()));
            assert_eq!(moves(&mut *module, &mut engine, 7), expected);
            assert!(expected.windows(2).any(|pair| pair[0] != pair[1]));
        }};
    }
    check!(cosine);
    check!(linear);
    check!(noam);
}

#[test]
fn a_plateau_lowers_the_rate_when_its_metric_stands_still() {
    let _alone = alone();
    let config = PlateauConfig::new("val_loss").factor(0.5).patience(1);
    let (mut module, mut engine) = fresh(Schedule::reduce_on_plateau(config));
    let mut rates = Vec::new();
    for value in [1.0, 0.8, 0.8, 0.8, 0.8, 0.8] {
        rates.extend(moves(&mut *module, &mut engine, 1));
        engine
            .end_epoch(
                &|name| (name == "val_loss").then_some(value),
                &["val_loss".to_owned()],
            )
            .unwrap();
    }
    rates.extend(moves(&mut *module, &mut engine, 1));
    assert_eq!(rates, [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]);

    let logged = ["train_loss".to_owned(), "val_acc".to_owned()];
    let error = engine.end_epoch(&|_| None, &logged).unwrap_err();
    assert!(matches!(error, Error::MissingMetric { .. }));
    assert!(
        error
            .to_string()
            .contains("'val_loss', which was not logged; logged were: train_loss, val_acc"),
        "{error}"
    );
}

/// Resumed at any point, a schedule goes on as if nothing had been.
#[test]
fn every_schedule_survives_a_resume_at_any_step() {
    let _alone = alone();
    let cosine = || CosineAnnealingLrSchedulerConfig::new(0.8, 5).init().unwrap();
    let plateau = || PlateauConfig::new("loss").factor(0.5).patience(1).cooldown(1);
    let schedules: [&dyn Fn() -> Schedule; 5] = [
        &|| Schedule::warmup_cosine(2, 9),
        &|| Schedule::burn(cosine()),
        &|| Schedule::burn(cosine()).every(2),
        &|| Schedule::factor(|n| 1.0 / (n + 1) as f64).per_epoch(),
        &|| Schedule::reduce_on_plateau(plateau()),
    ];
    for (number, make) in schedules.into_iter().enumerate() {
        let run = |resume_at: Option<usize>| {
            let (mut module, mut engine) = fresh(make());
            let mut rates = Vec::new();
            for epoch in 0..8 {
                if resume_at == Some(epoch) {
                    let (weights, state) = (values(&*module), engine.state());
                    (module, engine) = fresh(make());
                    set_values(&mut *module, &weights);
                    engine.load_state(state).unwrap();
                }
                rates.extend(moves(&mut *module, &mut engine, 2));
                engine
                    .end_epoch(&|_| Some(if epoch < 2 { -(epoch as f64) } else { 1.0 }), &[])
                    .unwrap();
            }
            (rates, values(&*module))
        };
        let expected = run(None);
        for resume_at in 0..8 {
            assert_eq!(
                run(Some(resume_at)),
                expected,
                "schedule {number}, resumed at {resume_at}"
            );
        }
    }
}
