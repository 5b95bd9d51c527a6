//! What a Lightning user does besides fitting: test, predict, load, choose at run time, train a GAN.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrand::checkpoint::pytorch::{LayerKind, NameMap, export_file, import_file};
use firebrand::data::ErasedDataModule;
use firebrand::prelude::*;
use firebrand::progress::ProgressMode;
use firebrand::{
    ErasedModule, ManualOptimization, TrainerBuilder, erase, load_from_checkpoint, restore_type, weights_of,
    with_weights,
};
use firebrand_tests::{Classifier, collate, data, points};

/// Burn's generators are one per process, so two fits at once would draw from each other's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn quiet(root: &std::path::Path) -> TrainerBuilder {
    Trainer::builder()
        .default_root_dir(root)
        .name("entry")
        .max_epochs(3)
        .progress(ProgressMode::Off)
        .enable_model_summary(false)
        .logger(CsvLogger::new())
}

fn plain(root: &std::path::Path) -> Trainer {
    quiet(root).build().unwrap()
}

#[test]
fn the_best_checkpoint_tests_and_loads_as_the_module_that_was_saved() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let best = ModelCheckpoint::monitor("val_loss").save_last(true);
    let mut trainer = quiet(folder.path()).callback(best).build().unwrap();
    let fitted = trainer.fit(Classifier::new(&Device::flex()), data(0)).unwrap();
    let last = trainer.test(&fitted.module, data(0)).unwrap();
    assert_eq!(
        last,
        trainer
            .test_from("last", &Classifier::new(&Device::flex()), data(0))
            .unwrap()
    );
    trainer.test_from("best", &fitted.module, data(0)).unwrap();

    let path = fitted.report.last_checkpoint.clone().unwrap();
    let loaded = load_from_checkpoint(&path, Classifier::new(&Device::flex()), &Device::flex()).unwrap();
    assert_eq!(weights_of(&loaded), weights_of(&fitted.module));
    assert_eq!(trainer.test(&loaded, data(0)).unwrap(), last);
}

#[test]
fn a_resumed_run_still_knows_its_best_checkpoint() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let fit = |epochs| {
        let best = ModelCheckpoint::monitor("val_loss").save_last(true);
        let trainer = quiet(folder.path())
            .callback(best)
            .max_epochs(epochs)
            .resume("auto");
        trainer
            .build()
            .unwrap()
            .fit(Classifier::new(&Device::flex()), data(0))
            .unwrap()
            .report
    };
    let first = fit(2);
    // Nothing is left to train, so nothing new can be the best.
    let second = fit(2);
    assert!(first.best_checkpoint.is_some());
    assert_eq!(second.best_checkpoint, first.best_checkpoint);
    assert_eq!(second.global_step, first.global_step);
}

#[test]
fn a_run_that_is_stopped_again_and_again_leaves_no_checkpoint_for_each_stop() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // 13 updates are an epoch, so that every stop is within one.
    for steps in [3, 5, 8, 16, 18, 30] {
        let best = ModelCheckpoint::monitor("val_loss").save_last(true);
        let trainer = quiet(folder.path())
            .callback(best)
            .max_epochs(9)
            .max_steps(steps)
            .resume("auto");
        let report = trainer
            .build()
            .unwrap()
            .fit(Classifier::new(&Device::flex()), data(0))
            .unwrap()
            .report;
        assert_eq!(report.global_step, steps);
        let checkpoints = folder.path().join("entry/version_0/checkpoints");
        let names = std::fs::read_dir(checkpoints)
            .unwrap()
            .flatten()
            .filter(|entry| entry.path().is_dir());
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        let last = report.last_checkpoint.unwrap();
        assert!(names.iter().any(|name| last.ends_with(name)), "{names:?}");
        // The last one, the best one, and the newest end of an epoch, which its callback still counts on.
        assert!(names.len() <= 3, "after {steps} steps: {names:?}");
    }
}

#[test]
fn predictions_come_once_and_in_the_order_of_the_data_also_when_the_loader_shuffles() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = plain(folder.path());
    let module = trainer
        .fit(Classifier::new(&Device::flex()), data(0))
        .unwrap()
        .into_module();
    let loader = || DataLoader::from_fn(InMemDataset::new(points(50, 4)), collate).batch_size(16);
    let straight = trainer.predict(&module, Data::new().predict(loader())).unwrap();
    let shuffled = trainer
        .predict(
            &module,
            Data::new().predict(loader().shuffle(true).num_workers(2)),
        )
        .unwrap();
    let classes = |predictions: &[firebrand::Predictions]| -> Vec<i64> {
        predictions[0]
            .tensor::<1, Int>()
            .unwrap()
            .into_data()
            .iter::<i64>()
            .collect()
    };
    assert_eq!(classes(&straight).len(), 50);
    assert_eq!(classes(&straight), classes(&shuffled));
    assert!(
        classes(&straight)
            .iter()
            .any(|class| *class != classes(&straight)[0]),
        "all alike shows no order"
    );
}

#[test]
fn a_module_that_was_chosen_at_run_time_trains() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let choose = |name: &str| -> Box<dyn ErasedModule> {
        match name {
            "classifier" => erase(Classifier::new(&Device::flex())),
            other => panic!("{other}"),
        }
    };
    let mut loaders = data(0);
    let (module, report) = plain(folder.path())
        .fit_erased(choose("classifier"), &mut loaders as &mut dyn ErasedDataModule)
        .unwrap();
    assert_eq!(report.epoch, 3);
    assert!(restore_type::<Classifier>(module).is_some());
}

#[test]
fn weights_go_to_pytorch_and_back() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let fitted = plain(folder.path())
        .fit(Classifier::new(&Device::flex()), data(0))
        .unwrap();
    let map = NameMap::new()
        .layer("hidden", LayerKind::Linear)
        .layer("output", LayerKind::Linear)
        .layer("norm.Burn", LayerKind::BatchNorm);
    let file = folder.path().join("for-pytorch.safetensors");
    let weights = weights_of(&fitted.module);
    export_file(&file, weights.clone(), &map).unwrap();
    let imported: BTreeMap<String, TensorData> = import_file(&file, weights.keys().cloned(), &map).unwrap();
    let module = with_weights(Classifier::new(&Device::flex()), imported, &Device::flex()).unwrap();
    assert_eq!(weights_of(&module), weights);
}

/// Two numbers that chase each other: the second update must see the first.
#[derive(Module, Debug)]
struct Gan {
    generator: Linear,
    discriminator: Linear,
    #[module(skip)]
    manual: bool,
}

impl Gan {
    fn new(manual: bool) -> Self {
        let device = Device::flex();
        let linear = || LinearConfig::new(1, 1).init(&device);
        Self {
            generator: linear(),
            discriminator: linear(),
            manual,
        }
    }

    fn discriminator_loss(&self, x: Tensor<2>) -> Tensor<1> {
        (self
            .discriminator
            .forward(self.generator.forward(x.clone()).detach())
            - x)
            .powf_scalar(2.0)
            .mean()
    }

    fn generator_loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.discriminator
            .forward(self.generator.forward(x))
            .powf_scalar(2.0)
            .mean()
    }
}

impl LightningModule for Gan {
    type Batch = Tensor<2>;

    fn training_step(&self, batch: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
        Ok(match step.optimizer_index() {
            0 => self.discriminator_loss(batch),
            _ => self.generator_loss(batch),
        })
    }

    fn automatic_optimization(&self) -> bool {
        !self.manual
    }

    fn manual_training_step(
        gan: &mut ManualOptimization<'_, Self>,
        batch: Tensor<2>,
        _step: &mut StepContext,
    ) -> Result<()> {
        let loss = gan.forward()?.discriminator_loss(batch.clone());
        gan.backward(loss)?;
        gan.step("discriminator")?;
        let loss = gan.forward()?.generator_loss(batch);
        gan.backward(loss)?;
        gan.step("generator")
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
            .named("discriminator")
            .parameters("discriminator")
            .and(
                OptimizerSetup::new(SgdConfig::new(), 0.05)
                    .named("generator")
                    .parameters("generator"),
            )
    }
}

#[test]
fn a_gan_trains_by_itself_and_by_hand_to_the_same_weights() {
    let _alone = alone();
    let train = |manual| {
        let folder = tempfile::tempdir().unwrap();
        let make = |items: Vec<f32>, device: &Device| {
            Ok(Tensor::<1>::from_floats(items.as_slice(), device).reshape([items.len(), 1]))
        };
        let numbers: Vec<f32> = (0..40).map(|i| i as f32 / 40.0).collect();
        let loader = DataLoader::from_fn(numbers, make).batch_size(8);
        let fitted = plain(folder.path())
            .fit(Gan::new(manual), Data::new().train(loader))
            .unwrap();
        // One training step is one step, whatever the number of optimizers.
        assert_eq!(fitted.report.global_step, 15);
        weights_of(&fitted.module)
    };
    let automatic = train(false);
    assert_eq!(automatic, train(true));
    let fresh = weights_of(&Gan::new(false));
    assert!(
        automatic.iter().all(|(path, value)| fresh[path] != *value),
        "every parameter moved"
    );
}

/// Counts how often its hooks and steps are called.
#[derive(Module, Debug)]
struct Counting {
    layer: Linear,
    #[module(skip)]
    calls: Calls,
}

#[derive(Clone, Debug, Default)]
struct Calls(std::sync::Arc<Mutex<Vec<&'static str>>>);

impl Calls {
    fn add(&self, call: &'static str) {
        self.0.lock().unwrap().push(call);
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl LightningModule for Counting {
    type Batch = Tensor<2>;

    fn training_step(&self, batch: Tensor<2>, _step: &mut StepContext) -> Result<Tensor<1>> {
        self.calls.add("train");
        Ok(self.layer.forward(batch).mean())
    }

    fn predict_step(&self, batch: Tensor<2>, _step: &mut StepContext) -> Result<Prediction> {
        self.calls.add("predict");
        Ok(Prediction::from(self.layer.forward(batch)))
    }

    fn on_evaluation_start(&self, step: &mut StepContext) -> Result<()> {
        assert_eq!(step.stage(), Stage::Predict);
        self.calls.add("start");
        Ok(())
    }

    fn on_evaluation_end(&self, _step: &mut StepContext) -> Result<()> {
        self.calls.add("end");
        Ok(())
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

fn counting() -> (Counting, Calls, DataLoader<Tensor<2>>) {
    let calls = Calls::default();
    let layer = LinearConfig::new(1, 1).init(&Device::flex());
    let make = |items: Vec<f32>, device: &Device| {
        Ok(Tensor::<1>::from_floats(items.as_slice(), device).reshape([items.len(), 1]))
    };
    let numbers: Vec<f32> = (0..80).map(|i| i as f32).collect();
    (
        Counting {
            layer,
            calls: calls.clone(),
        },
        calls,
        DataLoader::from_fn(numbers, make).batch_size(8),
    )
}

#[test]
fn a_prediction_calls_the_hooks_of_an_evaluation() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (module, calls, loader) = counting();
    plain(folder.path())
        .predict(&module, Data::new().predict(loader.batch_size(40)))
        .unwrap();
    assert_eq!(calls.take(), ["start", "predict", "predict", "end"]);
}

#[test]
fn a_share_of_the_batches_is_overfitted_once() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (module, calls, loader) = counting();
    let mut trainer = quiet(folder.path())
        .max_epochs(1)
        .overfit_batches(0.5)
        .build()
        .unwrap();
    trainer.fit(module, Data::new().train(loader)).unwrap();
    // Half of ten batches, and not half of that half.
    assert_eq!(calls.take().len(), 5);
}

/// A trainer whose two ranks are threads.
fn threads(root: &std::path::Path) -> TrainerBuilder {
    quiet(root).devices(2).launcher(Launcher::Thread)
}

#[test]
fn threads_make_their_modules_themselves_and_what_cannot_be_says_so() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = threads(folder.path()).build().unwrap();
    assert_eq!(trainer.topology().world_size, 2);
    let error = trainer
        .fit(Classifier::new(&Device::flex()), data(0))
        .err()
        .unwrap();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("`fit_with(|| Ok((module, data)))`"),
        "{error}"
    );
    let stopping = EarlyStopping::monitor("val_loss");
    let error = threads(folder.path()).callback(stopping).build().err().unwrap();
    assert!(error.to_string().contains("`callback_with(|| ..)`"), "{error}");
    let error = threads(folder.path()).num_nodes(2).build().err().unwrap();
    assert!(
        error.to_string().contains("on one node, and 2 are asked for"),
        "{error}"
    );

    let fitted = trainer
        .fit_with(|| Ok((Classifier::new(&Device::flex()), data(0))))
        .unwrap();
    // All of the data, on the first rank alone.
    let tested = trainer.test(&fitted.module, data(0)).unwrap();
    assert_eq!(
        tested,
        plain(folder.path()).test(&fitted.module, data(0)).unwrap()
    );
}

#[test]
fn a_thread_that_cannot_make_its_module_is_named_and_the_next_fit_has_all_ranks_again() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let stopping = || EarlyStopping::monitor("val_loss").patience(1000);
    let mut trainer = threads(folder.path()).callback_with(stopping).build().unwrap();
    let made = AtomicUsize::new(0);
    let error = trainer
        .fit_with(move || match made.fetch_add(1, Ordering::SeqCst) {
            0 => Ok((Classifier::new(&Device::flex()), data(0))),
            _ => Err("there is no second module".into()),
        })
        .err()
        .unwrap();
    let text = format!("{error:?}");
    assert!(text.contains("there is no second module"), "{text}");
    for _ in 0..2 {
        let fitted = trainer
            .fit_with(|| Ok((Classifier::new(&Device::flex()), data(0))))
            .unwrap();
        assert!(fitted.report.global_step > 0);
    }
    let _caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        trainer.fit_with(|| -> Result<(Classifier, firebrand::data::Data<_>)> { panic!("no module at all") })
    }))
    .unwrap_err();
    // It still has two ranks.
    assert_eq!(trainer.topology().world_size, 2);
    trainer
        .fit_with(|| Ok((Classifier::new(&Device::flex()), data(0))))
        .unwrap();
}
