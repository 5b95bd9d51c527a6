use anyhow::{Result, ensure};
use burn::tensor::Device;
use firebrand::data::Data;
use firebrand::progress::ProgressMode;
use firebrand::{Accelerator, Strategy, Trainer};

use super::Workload;
use super::model::{Classifier, batches};
use crate::clock::Clock;

/// The first steps meet new memory, and the buckets are laid out anew after the first.
const WARMUP: usize = 5;
/// Few, so that they are made in no time.
const NUM_BATCHES: usize = 8;

/// Trains on so many ranks of this machine, with nothing but the updates; the first prints the milliseconds per step of each window
/// of so many steps.
pub(crate) fn train(workload: Workload, ranks: usize, window: usize) -> Result<()> {
    let clock = Clock::new(WARMUP, window)?;
    let num_steps = clock.num_steps();
    let loader = clock.loader(batches(workload, NUM_BATCHES, &Device::flex()));

    let folder = tempfile::tempdir()?;
    let strategy = if ranks > 1 {
        Strategy::ddp()
    } else {
        Strategy::single_device()
    };
    let mut trainer = Trainer::builder()
        // A build with LibTorch would take that.
        .accelerator(Accelerator::Cpu)
        .strategy(strategy)
        .devices(ranks)
        .max_epochs(1)
        .no_logger()
        .enable_checkpointing(false)
        .enable_model_summary(false)
        .progress(ProgressMode::Off)
        .default_root_dir(folder.path())
        .build()?;
    let module = Classifier::new(workload.width, &Device::flex());
    let fitted = trainer.fit(module, Data::new().train(loader))?;
    ensure!(
        fitted.report.global_step == num_steps as u64 && trainer.topology().world_size == ranks,
        "{} updates were made on {} ranks instead of {num_steps} on {ranks}",
        fitted.report.global_step,
        trainer.topology().world_size
    );
    let windows = clock.windows()?;
    if trainer.is_global_zero() {
        println!("{}", serde_json::to_string(&windows)?);
    }
    Ok(())
}
