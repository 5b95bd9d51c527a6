use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::TensorData;
use firebrand_core::{AnyTensor, ErasedModule, ParamTable, PathPattern, Result, Stage};
use firebrand_strategy::{LearningRate, Update};

use crate::TrainerConfig;
use crate::loggers::RunDirectory;

/// What a callback sees of a run. It cannot change anything through it.
pub struct View<'a> {
    /// The resolved options.
    pub config: &'a TrainerConfig,
    /// What is going on.
    pub stage: Stage,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The number of optimizer updates so far.
    pub global_step: u64,
    /// The number of micro-batches of this epoch so far.
    pub batches_in_epoch: u64,
    /// The number of micro-batches of an epoch, if it is known.
    pub num_training_batches: Option<u64>,
    /// The newest value of everything that was logged, by name: what `monitor` looks at.
    pub metrics: &'a BTreeMap<String, f64>,
    /// The rates that the next update uses.
    pub learning_rates: &'a [LearningRate],
    /// The module, with its master weights.
    pub module: &'a dyn ErasedModule,
    /// The module's parameters and buffers.
    pub table: &'a ParamTable,
    /// Whether each entry of the table is trained now.
    pub trained: &'a dyn Fn(usize) -> bool,
    /// In `on_train_batch_end`: what became of the update, or `None` if the micro-batch did not complete one.
    pub update: Option<Update>,
    /// The time since the fit began, over all parts of the run.
    pub elapsed: Duration,
    /// Where the run writes; `None` if it writes nothing.
    pub run: Option<&'a RunDirectory>,
    /// Whether this rank is the one that writes and prints.
    pub is_global_zero: bool,
}

/// What a callback wants done. The loop does it when all callbacks of the event have spoken, in this order: log, freeze,
/// accumulation, weights, checkpoint, stop.
#[derive(Debug, Default)]
pub struct Commands {
    pub(crate) log: Vec<(String, f64)>,
    pub(crate) histograms: Vec<(String, Vec<f64>)>,
    pub(crate) freeze: Vec<(PathPattern, bool)>,
    pub(crate) accumulate: Option<u64>,
    pub(crate) weights: Option<BTreeMap<String, AnyTensor>>,
    pub(crate) checkpoints: Vec<CheckpointRequest>,
    pub(crate) stop: Option<String>,
}

impl Commands {
    /// Logs a value at the current step.
    pub fn log(&mut self, name: impl Into<String>, value: f64) {
        self.log.push((name.into(), value));
    }

    /// Logs a distribution at the current step; loggers that know none ignore it.
    pub fn log_histogram(&mut self, name: impl Into<String>, values: Vec<f64>) {
        self.histograms.push((name.into(), values));
    }

    /// Stops training the parameters that match.
    pub fn freeze(&mut self, paths: impl Into<PathPattern>) {
        self.freeze.push((paths.into(), false));
    }

    /// Trains the parameters that match again.
    pub fn unfreeze(&mut self, paths: impl Into<PathPattern>) {
        self.freeze.push((paths.into(), true));
    }

    /// Takes this many micro-batches per update, from the next epoch's start or the next update on.
    pub fn accumulate_grad_batches(&mut self, micro_batches: u64) {
        self.accumulate = Some(micro_batches);
    }

    /// Uses these values, by path, in place of the module's: in `on_evaluation_start` for this evaluation only, in
    /// `on_fit_end` for the module that `fit` returns. Other events ignore it.
    pub fn use_weights(&mut self, weights: BTreeMap<String, AnyTensor>) {
        self.weights = Some(weights);
    }

    /// Writes a checkpoint when the current update is complete.
    pub fn checkpoint(&mut self, request: CheckpointRequest) {
        self.checkpoints.push(request);
    }

    /// Stops training after the current update, unless a minimum vetoes it. The reason is printed.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.stop.get_or_insert_with(|| reason.into());
    }
}

/// A checkpoint that a callback wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointRequest {
    /// The name of its directory below `checkpoints`; `None` only renews what `last` points to, as `epoch=003-step=001200`.
    pub name: Option<String>,
    /// Whether `last` points to it.
    pub last: bool,
    /// Whether `best` points to it.
    pub best: bool,
    /// Checkpoints to delete once it is written.
    pub remove: Vec<PathBuf>,
}

/// A part that looks on while the trainer runs, with state of its own and without hands on the module.
///
/// ```text
/// on_fit_start
/// per epoch:      on_train_epoch_start ─► per micro-batch: on_train_batch_end ─► on_train_epoch_end
/// when due:           on_evaluation_start ─► on_evaluation_end
/// on_fit_end
/// ```
///
/// Callbacks are called in the order in which they were added, those that save checkpoints last. An error that one returns
/// stops the run and names it.
pub trait Callback: std::any::Any + Send {
    /// The name under which its state is saved; two callbacks of a trainer must not share one.
    fn name(&self) -> String;

    /// Whether it is called after all others because it saves what they did.
    fn saves_checkpoints(&self) -> bool {
        false
    }

    /// Before the first epoch, after the weights are in place and before the sanity validation.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_fit_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// After the last epoch, also after an early stop.
    ///
    /// # Errors
    ///
    /// What must fail the run.
    fn on_fit_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// Before the first micro-batch of an epoch.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_train_epoch_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// After each micro-batch, and after its update if it completed one.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// After the last micro-batch of an epoch, a validation that is due, and the epoch's schedules.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_train_epoch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// Before a validation; not before the sanity validation, which leaves no trace.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_evaluation_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// After a validation, when its metrics are known.
    ///
    /// # Errors
    ///
    /// What must stop the run.
    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let _ = (view, commands);
        Ok(())
    }

    /// A checkpoint that it asked for was written.
    fn on_checkpoint_saved(&mut self, path: &Path) {
        let _ = path;
    }

    /// A checkpoint that it asked for could not be written; the run goes on.
    fn on_checkpoint_failed(&mut self, path: &Path) {
        let _ = path;
    }

    /// The names of the checkpoints that it still needs: none of them is deleted for another callback, which may have asked for
    /// the same one.
    fn kept_checkpoints(&self) -> Vec<String> {
        Vec::new()
    }

    /// State for the checkpoint, as JSON. It is asked for after the event in which the checkpoint was requested.
    fn state(&self) -> Option<serde_json::Value> {
        None
    }

    /// Tensors for the checkpoint, in a file of their own.
    fn tensors(&self) -> BTreeMap<String, TensorData> {
        BTreeMap::new()
    }

    /// Takes back what [`state`](Self::state) and [`tensors`](Self::tensors) gave.
    ///
    /// # Errors
    ///
    /// If it cannot be used; the resume is refused then.
    fn load_state(&mut self, state: &serde_json::Value, tensors: BTreeMap<String, TensorData>) -> Result<()> {
        let _ = (state, tensors);
        Ok(())
    }
}
