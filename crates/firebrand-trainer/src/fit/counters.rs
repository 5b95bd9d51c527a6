use serde::{Deserialize, Serialize};

/// Where a run stands, always between two micro-batches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counters {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Optimizer updates that happened.
    pub global_step: u64,
    /// Updates that were tried: what random numbers inside a step are a function of.
    pub attempts: u64,
    /// Micro-batches since the last update that was tried; between updates only where a module steps its optimizers itself.
    pub micro_batches: u64,
    /// Micro-batches of this epoch.
    pub batches_in_epoch: u64,
    /// Samples of this epoch that all ranks together have consumed.
    pub samples_in_epoch: u64,
    /// Micro-batches over all epochs.
    pub total_batches: u64,
    /// Milliseconds over all parts of the run.
    pub elapsed_ms: u64,
}

impl Counters {
    /// Goes to the start of the next epoch.
    pub(crate) fn next_epoch(&mut self) {
        self.epoch += 1;
        self.batches_in_epoch = 0;
        self.samples_in_epoch = 0;
    }

    /// The epoch of the last batch. At the end of an epoch the counters stand at the start of the next one.
    pub(crate) fn last_epoch(&self) -> u64 {
        self.epoch - u64::from(self.batches_in_epoch == 0 && self.epoch > 0)
    }

    /// The name of a checkpoint here; `epoch` is that of the last update.
    pub(crate) fn checkpoint_name(epoch: u64, global_step: u64) -> String {
        format!("epoch={epoch:03}-step={global_step:06}")
    }
}
