use anyhow::{Result, ensure};
use burn::tensor::Device;
use firebrand::data::Data;
use firebrand::progress::ProgressMode;
use firebrand::{Accelerator, Precision, Trainer};

use super::model::{Model, Workload};
use crate::clock::Clock;
use crate::memory::peak_mib;

/// The first steps meet new memory.
const WARMUP: usize = 2;
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
    let clock = Clock::new(WARMUP, workload.size().window)?;
    let num_steps = clock.num_steps();
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
    let loader = clock.loader(workload.batches(NUM_BATCHES, trainer.device()));
    let module = Model::new(workload, &Device::flex()).map_err(anyhow::Error::from_boxed)?;
    let fitted = trainer.fit(module, Data::new().train(loader))?;
    ensure!(
        fitted.report.global_step == num_steps as u64,
        "{} updates were made instead of {num_steps}",
        fitted.report.global_step
    );
    let mut numbers = clock.windows()?;
    numbers.push(peak_mib().unwrap_or(-1.0));
    println!("{}", serde_json::to_string(&numbers)?);
    Ok(())
}
