use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::tensor::Device;
use firebrand::data::{Data, DataLoader};
use firebrand::progress::ProgressMode;
use firebrand::{Strategy, Trainer};

use super::Workload;
use super::model::{Mlp, batches};

/// The first steps meet new memory, and the buckets are laid out anew after the first.
const WARMUP: usize = 5;
const NUM_WINDOWS: usize = 3;
/// Few, so that they are made in no time.
const NUM_BATCHES: usize = 8;

/// Trains on so many ranks of this machine, with nothing but the updates; the first prints the milliseconds per step of each window
/// of so many steps.
pub(crate) fn train(workload: Workload, ranks: usize, window: usize) -> Result<()> {
    ensure!(window > 0, "a window has at least one step");
    // One more step begins when the last window ends, and the trainer reads one ahead.
    let num_steps = WARMUP + window * NUM_WINDOWS + 2;
    let is_mark =
        move |step: usize| step >= WARMUP && (step - WARMUP).is_multiple_of(window) && step < num_steps - 1;
    let marks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&marks);
    // Made beforehand, and used again and again. The clock is read where the trainer asks for the batch that opens a window.
    let made = batches(workload, NUM_BATCHES, &Device::flex());
    let loader = DataLoader::from_stream(move |_| {
        let (made, seen) = (made.clone(), Arc::clone(&seen));
        Ok((0..num_steps).map(move |step| {
            if is_mark(step) {
                seen.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Instant::now());
            }
            Ok(made[step % made.len()].clone())
        }))
    })
    .epoch_batches(num_steps as u64);

    let folder = tempfile::tempdir()?;
    let strategy = if ranks > 1 {
        Strategy::ddp()
    } else {
        Strategy::single_device()
    };
    let mut trainer = Trainer::builder()
        .strategy(strategy)
        .devices(ranks)
        .max_epochs(1)
        .no_logger()
        .enable_checkpointing(false)
        .enable_model_summary(false)
        .progress(ProgressMode::Off)
        .default_root_dir(folder.path())
        .build()?;
    let module = Mlp::new(workload.width, &Device::flex());
    let fitted = trainer.fit(module, Data::new().train(loader))?;
    ensure!(
        fitted.report.global_step == num_steps as u64 && trainer.topology().world_size == ranks,
        "{} updates were made on {} ranks instead of {num_steps} on {ranks}",
        fitted.report.global_step,
        trainer.topology().world_size
    );
    let marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
    let windows: Vec<f64> = marks
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3 / window as f64)
        .collect();
    ensure!(
        windows.len() == NUM_WINDOWS,
        "the run ended after {} windows",
        windows.len()
    );
    if trainer.is_global_zero() {
        println!("{}", serde_json::to_string(&windows)?);
    }
    Ok(())
}
