//! How the network trains.

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use firebrand::prelude::*;

use crate::data::NameBatch;
use crate::gpt::Gpt;
use crate::settings::Settings;
use crate::surnames::NUM_TOKENS;

/// The network, and how it trains.
#[derive(Module, Debug)]
pub struct LitSurnames {
    /// The network.
    pub gpt: Gpt,
    learning_rate: f64,
}

impl LitSurnames {
    /// Burn's layers draw their weights when they are first used, so the trainer's seed decides about them.
    ///
    /// # Errors
    ///
    /// For sizes that do not go together.
    pub fn new(settings: &Settings) -> Result<Self> {
        Ok(Self {
            gpt: Gpt::new(settings, &Device::default())?,
            learning_rate: settings.learning_rate,
        })
    }

    /// The mean of −ln p over all targets of a batch, a tensor of one element, and the number of targets.
    fn loss(&self, batch: NameBatch, step: &StepContext) -> Result<(Tensor<1>, f64)> {
        let [rows, places] = batch.tokens.dims();
        let count = batch.num_targets.iter().sum::<usize>() as f64;
        let empty = batch.names.clone().equal_scalar(0).reshape([rows * places, 1]);
        let cast = |embedded| step.cast(embedded);
        let logits = self
            .gpt
            .forward(batch.tokens, batch.positions, batch.names, cast)?;
        // In 16 bits neither the exponentials nor their sums would do.
        let logits = step.full_precision(logits).reshape([rows * places, NUM_TOKENS]);
        let targets = batch.targets.reshape([rows * places, 1]);
        let losses = log_softmax(logits, 1).gather(1, targets).mask_fill(empty, 0.0);
        Ok((losses.sum().div_scalar(-count), count))
    }
}

impl LightningModule for LitSurnames {
    type Batch = NameBatch;

    fn training_step(&self, batch: NameBatch, step: &mut StepContext) -> Result<Tensor<1>> {
        let (loss, count) = self.loss(batch, step)?;
        // Rows are not equally full, so that micro-batches and ranks count by their targets.
        step.loss_weight(count);
        step.log_with("train_loss", &loss, LogOptions::new().weight(count));
        Ok(loss)
    }

    fn validation_step(&self, batch: NameBatch, step: &mut StepContext) -> Result<()> {
        let (loss, count) = self.loss(batch, step)?;
        step.log_with("val_loss", loss, LogOptions::new().weight(count));
        Ok(())
    }

    fn test_step(&self, batch: NameBatch, step: &mut StepContext) -> Result<()> {
        let (loss, count) = self.loss(batch, step)?;
        step.log_with("test_loss", loss, LogOptions::new().weight(count));
        Ok(())
    }

    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup {
        let adamw = |decay| AdamWConfig::new().with_beta_2(0.99).with_weight_decay(decay);
        // Weights of linear layers decay; what is added or looked up does not.
        let setup = OptimizerSetup::new(adamw(0.1), self.learning_rate)
            .group("*norm*", adamw(0.0))
            .group("gpt.tokens", adamw(0.0))
            .group("gpt.positions", adamw(0.0));
        match fit.estimated_stepping_batches() {
            Some(total) => setup.schedule(Schedule::warmup_cosine_to(total / 20, total, 0.05)),
            // A run that only time limits has no known end to come down to.
            None => setup.schedule(Schedule::linear_warmup(100)),
        }
    }
}
