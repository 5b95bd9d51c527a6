//! The callbacks in real fits: together, stopped, and resumed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{Device, Tensor, TensorData};
use firebrand_core::erase;

use super::test_fixture::{Tiny, values_of};
use super::*;
use crate::data::{Data, DataLoader};
use crate::profiler::Profiler;
use crate::progress::ProgressMode;
use crate::{Fitted, Trainer, TrainerBuilder};

/// Burn's generators are one per process, so two fits at once would draw from each other's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn loader(samples: u16) -> DataLoader<Tensor<2>> {
    let points: Vec<[f32; 2]> = (0..samples)
        .map(|n| [f32::from(n % 7) / 3.0 - 1.0, f32::from(n % 5) / 2.0 - 1.0])
        .collect();
    DataLoader::from_fn(points, |rows: Vec<[f32; 2]>, device: &Device| {
        let num_rows = rows.len();
        Ok(Tensor::from_data(
            TensorData::new(rows.concat(), [num_rows, 2]),
            device,
        ))
    })
    .batch_size(4)
}

fn data() -> Data<Tensor<2>> {
    Data::new().train(loader(40).shuffle(true)).validation(loader(12))
}

fn builder(root: &Path) -> TrainerBuilder {
    Trainer::builder()
        .default_root_dir(root)
        .name("tiny")
        .progress(ProgressMode::Off)
        .enable_model_summary(false)
        .log_every_n_steps(5)
}

fn with_callbacks(builder: TrainerBuilder) -> TrainerBuilder {
    builder
        .callback(EmaWeights::new(0.8).starting_at_step(5))
        .callback(EarlyStopping::monitor("val_loss").patience(100))
        .callback(LearningRateMonitor::new())
        .callback(GradientNormMonitor::new())
        .callback(Timer::unlimited())
        .callback(Unfreeze::at_epoch(1, ["body"]))
        .callback(GradientAccumulationScheduler::new([(2, 2)]))
        .callback(ModelCheckpoint::monitor("val_loss").save_top_k(2).save_last(true))
        .callback(ModelCheckpoint::new().every_n_train_steps(7))
}

fn fit(trainer: &mut Trainer) -> Fitted<Tiny> {
    trainer
        .fit(Tiny::new(&Device::flex().autodiff()), data())
        .unwrap()
}

fn values(module: &Tiny) -> BTreeMap<String, Vec<f32>> {
    values_of(&*erase(module.clone()))
}

fn checkpoints(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap());
    let directories = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = directories
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn callbacks_work_together() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let profiler = Profiler::simple().chrome_trace(root.path().join("trace.json"));
    let mut trainer = with_callbacks(builder(root.path()))
        .max_epochs(4)
        .profiler(profiler.clone())
        .build()
        .unwrap();
    let fitted = fit(&mut trainer);
    // Two epochs of 10 updates, then two of 5.
    assert_eq!(fitted.report.global_step, 30);

    let run = trainer.run_directory().unwrap();
    let saver = trainer.callback::<ModelCheckpoint>().unwrap();
    assert_eq!(saver.best_model_path(), fitted.report.best_checkpoint);
    assert_eq!(saver.last_model_path(), fitted.report.last_checkpoint);
    let best = saver.best_model_path().unwrap();
    let names = checkpoints(run);
    assert!(
        names.contains(&best.file_name().unwrap().to_string_lossy().into_owned()),
        "{names:?}"
    );
    for (path, value) in saver.best_k_models() {
        assert!(path.join("manifest.json").exists() && value.unwrap() >= saver.best_score().unwrap());
    }
    // Two of the best, the last of one callback, and the newest by steps of the other.
    assert!(
        names.len() <= 4 && names.contains(&"epoch=003-step=000028".to_owned()),
        "{names:?}"
    );

    // One row has what was logged at one step.
    let csv = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let column = |name: &str| {
        header
            .iter()
            .position(|column| *column == name)
            .unwrap_or_else(|| panic!("{name}: {csv}"))
    };
    let row: Vec<&str> = csv
        .lines()
        .find(|line| line.starts_with("5,"))
        .unwrap()
        .split(',')
        .collect();
    assert_eq!(row[column("lr")], "0.1");
    for name in ["train_loss", "grad_norm"] {
        assert!(row[column(name)].parse::<f64>().unwrap() > 0.0, "{name}: {csv}");
    }

    assert!(trainer.callback::<Timer>().unwrap().validating() > std::time::Duration::ZERO);
    let table = profiler.summary();
    for span in [
        "training_step",
        "update",
        "validation",
        "checkpoint_snapshot",
        "data_wait",
    ] {
        assert!(table.contains(span), "{span} in\n{table}");
    }
    assert!(root.path().join("trace.json").exists());
}

#[test]
fn a_resumed_fit_is_bit_equal() {
    let _alone = alone();
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut uninterrupted = with_callbacks(builder(whole.path()))
        .max_epochs(4)
        .build()
        .unwrap();
    let expected = fit(&mut uninterrupted);

    // Stopped within an epoch, after an update that no callback saves.
    let mut first = with_callbacks(builder(parts.path()))
        .max_epochs(4)
        .max_steps(13)
        .build()
        .unwrap();
    assert_eq!(fit(&mut first).report.global_step, 13);
    let mut second = with_callbacks(builder(parts.path()))
        .max_epochs(4)
        .resume("last")
        .build()
        .unwrap();
    let resumed = fit(&mut second);

    assert_eq!(resumed.report.global_step, expected.report.global_step);
    assert_eq!(values(&resumed.module), values(&expected.module));
    assert_eq!(resumed.report.metrics, expected.report.metrics);
    let score = |trainer: &Trainer| {
        trainer
            .callback::<ModelCheckpoint>()
            .unwrap()
            .best_score()
            .unwrap()
    };
    assert_eq!(score(&second), score(&uninterrupted));
    let names = |trainer: &Trainer| trainer.callback::<ModelCheckpoint>().unwrap().kept_checkpoints();
    assert_eq!(names(&second), names(&uninterrupted));
}

#[test]
fn stopping_and_missing_metrics_reach_the_user() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let stopping = EarlyStopping::monitor("val_loss").patience(1).min_delta(1e9);
    let mut trainer = builder(root.path())
        .max_epochs(50)
        .callback(stopping)
        .build()
        .unwrap();
    let report = fit(&mut trainer).report;
    assert_eq!(report.epoch, 2);
    assert!(report.stop_reason.contains("val_loss"), "{}", report.stop_reason);

    let mut trainer = builder(root.path())
        .max_epochs(1)
        .callback(EarlyStopping::monitor("val_los"))
        .build()
        .unwrap();
    let error = trainer
        .fit(Tiny::new(&Device::flex().autodiff()), data())
        .unwrap_err();
    let text = format!("{error:?}");
    assert!(
        text.contains("EarlyStopping(val_los)") && text.contains("these were: ") && text.contains("val_loss"),
        "{text}"
    );
}
