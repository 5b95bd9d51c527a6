use std::path::Path;

use anyhow::Result;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use firebrand::data::{Data, DataLoader};
use firebrand::progress::ProgressMode;
use firebrand::{Accelerator, FitInfo, LightningModule, OptimizerSetup, StepContext, Trainer};

use super::feed::Source;
use super::model::{Batch, LEARNING_RATE, LOG_EVERY_N_STEPS, Mlp, Optimizer, Size};

impl LightningModule for Mlp {
    type Batch = Batch;

    fn training_step(&self, batch: Batch, step: &mut StepContext) -> firebrand::Result<Tensor<1>> {
        let loss = self.loss(batch);
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
        match self.optimizer {
            Optimizer::AdamW => OptimizerSetup::new(AdamWConfig::new(), LEARNING_RATE),
            Optimizer::Sgd => OptimizerSetup::new(SgdConfig::new(), LEARNING_RATE),
        }
    }
}

/// The trainer with its default loggers, `metrics.csv` and TensorBoard, and one logged value per step. It prints nothing, and
/// as in the Lightning script there are no checkpoints.
pub(super) fn train(size: Size, optimizer: Optimizer, source: Source, folder: &Path) -> Result<Mlp> {
    let num_steps = source.num_steps() as u64;
    let device = Device::flex();
    let module = Mlp::new(size, optimizer, &device);
    let loader = DataLoader::from_stream(move |_| Ok(source.open(&device).map(Ok))).epoch_batches(num_steps);
    let mut trainer = Trainer::builder()
        // A build with LibTorch would take that.
        .accelerator(Accelerator::Cpu)
        .max_epochs(1)
        .log_every_n_steps(LOG_EVERY_N_STEPS)
        .default_root_dir(folder)
        .progress(ProgressMode::Off)
        .enable_model_summary(false)
        .enable_checkpointing(false)
        .build()?;
    let fitted = trainer.fit(module, Data::new().train(loader))?;
    anyhow::ensure!(
        fitted.report.global_step == num_steps,
        "the trainer made {} updates instead of {num_steps}",
        fitted.report.global_step
    );
    Ok(fitted.module)
}
