use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use burn::tensor::Device;
use firebrand::data::{Data, DataLoader};
use firebrand::progress::ProgressMode;
use firebrand::{Accelerator, Precision, Trainer};

use super::model::{Model, Workload};
use crate::memory::peak_mib;

/// The first steps meet new memory.
const WARMUP: usize = 2;
const NUM_WINDOWS: usize = 3;
const NUM_BATCHES: usize = 2;

/// Trains with nothing but the updates; prints the milliseconds per step of each window of so many steps, and the peak of the
/// resident memory in MiB.
pub(crate) fn train(workload: Workload, precision: &str, accelerator: Accelerator) -> Result<()> {
    let known = Precision::ALL
        .into_iter()
        .find(|known| known.as_str() == precision);
    let Some(precision) = known else {
        anyhow::bail!("there is no precision '{precision}'");
    };
    let window = workload.size().window;
    // One more step begins when the last window ends, and the trainer reads one ahead.
    let num_steps = WARMUP + window * NUM_WINDOWS + 2;
    let folder = tempfile::tempdir()?;
    let mut trainer = Trainer::builder()
        .accelerator(accelerator)
        .precision(precision)
        .max_epochs(1)
        .no_logger()
        .enable_checkpointing(false)
        .enable_model_summary(false)
        .progress(ProgressMode::Off)
        .default_root_dir(folder.path())
        .build()?;
    let is_mark =
        move |step: usize| step >= WARMUP && (step - WARMUP).is_multiple_of(window) && step < num_steps - 1;
    let marks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&marks);
    let made = workload.batches(NUM_BATCHES, trainer.device());
    // The clock is read where the trainer asks for the batch that opens a window. LibTorch and Flex compute at once.
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
    let module = Model::new(workload, &Device::flex()).map_err(anyhow::Error::from_boxed)?;
    let fitted = trainer.fit(module, Data::new().train(loader))?;
    ensure!(
        fitted.report.global_step == num_steps as u64,
        "{} updates were made instead of {num_steps}",
        fitted.report.global_step
    );
    let marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
    let mut numbers: Vec<f64> = marks
        .windows(2)
        .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3 / window as f64)
        .collect();
    ensure!(
        numbers.len() == NUM_WINDOWS,
        "the run ended after {} windows",
        numbers.len()
    );
    numbers.push(peak_mib().unwrap_or(-1.0));
    println!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}
