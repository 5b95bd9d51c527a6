use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;

/// What a fit came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FitReport {
    /// The number of optimizer updates, over all parts of the run.
    pub global_step: u64,
    /// The number of epochs that are complete.
    pub epoch: u64,
    /// Why it ended.
    pub stop_reason: String,
    /// The newest value of everything that was logged.
    pub metrics: BTreeMap<String, f64>,
    /// Where the run wrote; `None` if it wrote nothing.
    pub run_directory: Option<PathBuf>,
    /// The checkpoint that `last` points to.
    pub last_checkpoint: Option<PathBuf>,
    /// The checkpoint that `best` points to.
    pub best_checkpoint: Option<PathBuf>,
    /// The number of checkpoints that could not be written.
    pub failed_saves: u64,
    /// The epoch of the last batch.
    pub(crate) last_epoch: u64,
}

/// A module that was fitted, and what the fit came to. It can be used as the module.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fitted<M> {
    /// The module with its final weights, on the training device.
    pub module: M,
    /// What the fit came to.
    pub report: FitReport,
}

impl<M> Fitted<M> {
    pub(crate) fn new(module: M, report: FitReport) -> Self {
        Self { module, report }
    }

    /// The module alone.
    pub fn into_module(self) -> M {
        self.module
    }
}

impl<M> Deref for Fitted<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

/// What an evaluation came to: the metrics in the order in which they were first logged.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Evaluated {
    /// Name and value.
    pub metrics: Vec<(String, f64)>,
    /// The number of batches of all loaders.
    pub num_batches: u64,
}

impl Evaluated {
    /// The value of a metric.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| *value)
    }
}
