use burn::module::Module;
use burn::tensor::Tensor;

use crate::{Batch, FitInfo, ManualOptimization, OptimizerSetup, Prediction, Result, StepContext};

/// What a user implements: how a module steps, and with which optimizers.
///
/// The trainer takes the module by value, calls the hooks and steps below, and gives the module back. It calls, in this order:
///
/// ```text
/// on_fit_start
/// per epoch:      on_train_epoch_start
/// per micro-batch:    on_train_batch_start ─► training_step ─► [backward] ─► on_train_batch_end
/// per update:         on_before_optimizer_step ─► [update]
/// when due:           on_evaluation_start ─► validation_step … ─► on_evaluation_end
///                 on_train_epoch_end
/// on_fit_end
/// ```
///
/// Steps see the module by reference: during training its parameters are nodes that hand their gradients to the trainer,
/// during evaluation it is in validation mode and without autodiff.
///
/// Only `Batch`, `training_step` and `configure_optimizers` are required to fit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be trained: it does not implement `LightningModule`",
    label = "not a `LightningModule`",
    note = "derive `Module` and `Debug` for `{Self}` and implement `LightningModule` with `type Batch`, `training_step` and `configure_optimizers`"
)]
pub trait LightningModule: Module + 'static {
    /// What the data loaders give to a step.
    type Batch: Batch;

    /// The loss of one micro-batch: a tensor of one element that depends on the parameters.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; the trainer adds where it happened and stops.
    fn training_step(&self, batch: Self::Batch, step: &mut StepContext) -> Result<Tensor<1>>;

    /// Which optimizers train the module.
    fn configure_optimizers(&self, fit: &FitInfo) -> OptimizerSetup;

    /// Evaluates one batch of the validation loader: log what is of interest.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn validation_step(&self, batch: Self::Batch, step: &mut StepContext) -> Result<()> {
        let _ = (batch, step);
        Err(missing::<Self>("validation_step", "validate"))
    }

    /// Evaluates one batch of the test loader.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn test_step(&self, batch: Self::Batch, step: &mut StepContext) -> Result<()> {
        let _ = (batch, step);
        Err(missing::<Self>("test_step", "test"))
    }

    /// Predicts one batch. The trainer returns all predictions in the order of the samples, each once.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn predict_step(&self, batch: Self::Batch, step: &mut StepContext) -> Result<Prediction> {
        let _ = (batch, step);
        Err(missing::<Self>("predict_step", "predict"))
    }

    /// Whether the trainer calls backward and the optimizers by itself (the default) or
    /// [`manual_training_step`](Self::manual_training_step) does.
    fn automatic_optimization(&self) -> bool {
        true
    }

    /// One training step with optimizers in your own hands, for modules such as a GAN in which the second optimizer must
    /// see the update of the first. See [`ManualOptimization`].
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn manual_training_step(
        optimization: &mut ManualOptimization<'_, Self>,
        batch: Self::Batch,
        step: &mut StepContext,
    ) -> Result<()> {
        let _ = (optimization, batch, step);
        Err(missing::<Self>(
            "manual_training_step",
            "fit without automatic optimization",
        ))
    }

    /// Sets of parameter paths that share one value, such as an embedding and the output layer of a language model.
    ///
    /// Their gradients are summed and one update is written to all; the one that comes first among the module's fields
    /// gives the initial value.
    fn tied_parameters(&self) -> Vec<Vec<String>> {
        Vec::new()
    }

    /// Before the first epoch, after the weights are in place.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_fit_start(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// After the last epoch.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_fit_end(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Before the first batch of an epoch.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_train_epoch_start(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// After the last batch of an epoch and a validation that is due.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_train_epoch_end(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Before a training step.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_train_batch_start(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// After a training step, and after its update if there was one.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_train_batch_end(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Before an update, when the gradients are complete and clipped.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_before_optimizer_step(&mut self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Before the first batch of a validation, test or prediction; [`StepContext::stage`] says which.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_evaluation_start(&self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// After the last batch of a validation, test or prediction. What it logs counts as one value of the epoch.
    ///
    /// # Errors
    ///
    /// As [`training_step`](Self::training_step).
    fn on_evaluation_end(&self, step: &mut StepContext) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// State of your own that belongs in a checkpoint and is not a parameter or buffer.
    fn on_save_checkpoint(&self) -> Option<serde_json::Value> {
        None
    }

    /// Takes the state of [`on_save_checkpoint`](Self::on_save_checkpoint) back.
    ///
    /// # Errors
    ///
    /// If the state cannot be used; the resume is refused then.
    fn on_load_checkpoint(&mut self, state: &serde_json::Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

fn missing<M: ?Sized>(method: &'static str, entry: &'static str) -> crate::BoxError {
    crate::Error::MissingStep {
        module: std::any::type_name::<M>(),
        method,
        entry,
    }
    .into()
}
