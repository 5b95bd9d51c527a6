//! Bad input gives a message that names what is wrong and what to do, and loses no checkpoint.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use firebrand::checkpoint::{Checkpoint, CheckpointDir, Resume};
use firebrand::prelude::*;
use firebrand::progress::ProgressMode;
use firebrand::{Error, TrainerBuilder};
use firebrand_tests::{Classifier, data, points};

fn builder(root: &Path) -> TrainerBuilder {
    Trainer::builder()
        .default_root_dir(root)
        .name("bad")
        .max_epochs(1)
        .progress(ProgressMode::Off)
        .enable_model_summary(false)
        .logger(CsvLogger::new())
}

/// The message as a program prints it.
fn message(error: &Error) -> String {
    format!("{error:?}")
}

/// Fits the classifier and returns why that failed.
fn refused(builder: TrainerBuilder) -> String {
    let mut trainer = builder.build().unwrap();
    let error = trainer
        .fit(Classifier::new(&Device::flex()), data(0))
        .unwrap_err();
    assert_ne!(error.exit_code(), 0);
    message(&error)
}

/// A run whose last checkpoint is there to be damaged.
fn trained(root: &Path) -> PathBuf {
    let mut trainer = builder(root).build().unwrap();
    trainer
        .fit(Classifier::new(&Device::flex()), data(0))
        .unwrap()
        .report
        .last_checkpoint
        .unwrap()
}

/// The checkpoint that `last` points to, verified.
fn last(root: &Path) -> Checkpoint {
    CheckpointDir::new(root.join("bad/version_0/checkpoints"))
        .resolve(&Resume::Last)
        .unwrap()
        .unwrap()
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
}

/// What a module of the wrong kind does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    TwoLosses,
    NoGraph,
    NotANumber,
    Fails,
    Harmless,
}

#[derive(Module, Debug)]
struct Faulty {
    layer: Linear,
    #[module(skip)]
    fault: Fault,
}

impl LightningModule for Faulty {
    type Batch = Tensor<2>;

    fn training_step(&self, batch: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
        let output = self.layer.forward(batch);
        match self.fault {
            Fault::TwoLosses => Ok(output.sum_dim(0).reshape([2])),
            Fault::NoGraph => Ok(output.mean().inner()),
            Fault::NotANumber if step.global_step() == 3 => Ok(output.mean().mul_scalar(f32::NAN)),
            Fault::Fails if step.global_step() == 3 => Err("the camera is off".into()),
            _ => Ok(output.mean()),
        }
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

fn numbers(count: usize) -> DataLoader<Tensor<2>> {
    let make = |items: Vec<f32>, device: &Device| {
        Ok(Tensor::<1>::from_floats(items.as_slice(), device).reshape([items.len(), 1]))
    };
    DataLoader::from_fn((0..count).map(|i| i as f32).collect::<Vec<f32>>(), make).batch_size(4)
}

fn faulty(root: &Path, fault: Fault, loader: DataLoader<Tensor<2>>) -> String {
    let module = Faulty {
        layer: LinearConfig::new(1, 2).init(&Device::flex()),
        fault,
    };
    let every_step = ModelCheckpoint::new().every_n_train_steps(1);
    let mut trainer = builder(root).callback(every_step).build().unwrap();
    message(&trainer.fit(module, Data::new().train(loader)).unwrap_err())
}

#[test]
fn a_damaged_checkpoint_is_named_with_its_file() {
    for file in [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "manifest.json",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = trained(folder.path());
        let path = checkpoint.join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x20;
        std::fs::write(&path, bytes).unwrap();
        let text = refused(builder(folder.path()).max_epochs(2).resume("last"));
        assert_says(&text, &[file, "damaged"]);
        // It is still there to be looked at.
        assert!(path.exists());
    }
}

#[test]
fn another_models_checkpoint_is_refused_by_its_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = trained(folder.path());
    let module = Faulty {
        layer: LinearConfig::new(1, 2).init(&Device::flex()),
        fault: Fault::Harmless,
    };
    let mut trainer = builder(folder.path())
        .resume(checkpoint.as_path())
        .build()
        .unwrap();
    let text = message(&trainer.fit(module, Data::new().train(numbers(8))).unwrap_err());
    assert_says(&text, &["does not fit the module", "layer.weight"]);
}

#[test]
fn a_metric_that_nobody_logs_is_named_beside_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    for callback in [true, false] {
        let builder = builder(folder.path());
        let text = refused(if callback {
            builder.callback(ModelCheckpoint::monitor("val_los"))
        } else {
            builder.callback(EarlyStopping::monitor("val_los"))
        });
        assert_says(&text, &["val_los", "val_loss"]);
    }
}

#[test]
fn options_that_cannot_be_are_named_with_their_values() {
    let fail = |builder: TrainerBuilder| message(&builder.build().err().unwrap());
    assert_says(
        &fail(Trainer::builder().accumulate_grad_batches(0)),
        &["accumulate_grad_batches", "0"],
    );
    assert_says(
        &fail(Trainer::builder().limit_train_batches(1.5)),
        &["limit_train_batches", "1.5"],
    );
    assert_says(
        &fail(Trainer::builder().gradient_clip(GradientClip::Norm(-1.0))),
        &["gradient_clip", "-1"],
    );
}

#[test]
fn empty_data_and_batches_of_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_says(
        &faulty(folder.path(), Fault::Harmless, numbers(0)),
        &["train", "empty"],
    );
    assert_says(
        &faulty(folder.path(), Fault::Harmless, numbers(8).batch_size(0)),
        &["batch_size", "0"],
    );
}

#[test]
fn a_loss_that_is_none_says_what_a_loss_is() {
    let folder = tempfile::tempdir().unwrap();
    assert_says(
        &faulty(folder.path(), Fault::TwoLosses, numbers(8)),
        &["one element", "2", "mean"],
    );
    assert_says(
        &faulty(folder.path(), Fault::NoGraph, numbers(8)),
        &["does not depend", "parameter"],
    );
}

#[test]
fn not_a_number_stops_at_its_step_and_the_checkpoints_before_are_whole() {
    for (fault, words) in [
        (Fault::NotANumber, ["NaN", "global step 3"]),
        (Fault::Fails, ["the camera is off", "global step 3"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let text = faulty(folder.path(), fault, numbers(40));
        assert_says(&text, &words);
        assert_eq!(last(folder.path()).manifest().global_step, Some(3));
    }
}

#[test]
fn a_directory_that_is_a_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs");
    std::fs::write(&file, "not a directory").unwrap();
    assert_says(&refused(builder(&file)), &["runs"]);
}

#[test]
fn nothing_to_resume_says_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    assert_says(
        &refused(builder(folder.path()).resume("last")),
        &["last", "bad", "auto"],
    );
    // And `auto` starts afresh.
    let mut trainer = builder(folder.path()).resume("auto").build().unwrap();
    trainer.fit(Classifier::new(&Device::flex()), data(0)).unwrap();
}

#[test]
fn a_full_disk_keeps_the_run_alive_and_the_previous_checkpoint_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=200k", "tmpfs"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a small file system can only be mounted by root");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let every = ModelCheckpoint::new()
            .every_n_train_steps(5)
            .save_top_k(firebrand::callbacks::TopK::All);
        let fill = folder.path().join("fill");
        let pointer = folder.path().join("bad/version_0/checkpoints/last");
        let lambda = Lambda::new("fill").on_train_batch_end(move |view, _| {
            if view.global_step == 7 {
                // The first checkpoint is written in the background.
                let written = std::time::Instant::now();
                while !pointer.exists() && written.elapsed().as_secs() < 20 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                let _ = std::fs::write(&fill, vec![0u8; 1 << 20]);
            }
            Ok(())
        });
        let mut trainer = builder(folder.path())
            .callback(every)
            .callback(lambda)
            .build()
            .unwrap();
        let report = trainer
            .fit(Classifier::new(&Device::flex()), data(0))
            .unwrap()
            .report;
        assert_eq!(report.global_step, 13, "the run went on to its end");
        assert!(report.failed_saves > 0);
        let checkpoint = last(folder.path());
        assert_eq!(checkpoint.manifest().global_step, Some(5));
        checkpoint.snapshot().unwrap();
    });
    std::process::Command::new("umount")
        .arg(folder.path())
        .status()
        .unwrap();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_run_that_another_process_writes_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let other = std::fs::File::create(folder.path().join("bad/version_0/.lock")).unwrap();
    other.lock().unwrap();
    let text = refused(builder(folder.path()).max_epochs(2).resume("last"));
    assert_says(&text, &["another process", "version_0"]);
    drop(other);
    let mut trainer = builder(folder.path())
        .max_epochs(2)
        .resume("last")
        .build()
        .unwrap();
    trainer.fit(Classifier::new(&Device::flex()), data(0)).unwrap();
}

#[test]
fn samples_that_fail_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let samples = firebrand::data::Samples::new(InMemDataset::new(points(20, 1))).map(|point, rng| match rng
        .sample()
    {
        13 => Err("the file is gone".into()),
        _ => Ok(point),
    });
    let loader = DataLoader::from_fn(samples, firebrand_tests::collate).batch_size(4);
    let mut trainer = builder(folder.path()).build().unwrap();
    let error = trainer
        .fit(Classifier::new(&Device::flex()), Data::new().train(loader))
        .unwrap_err();
    assert_says(&message(&error), &["13", "the file is gone"]);
}
