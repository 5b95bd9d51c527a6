//! Saving checkpoints: when, under which names, and which of them are kept.

mod events;
mod file_name;
mod kept;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::monitor::{Monitor, Seen};
use super::{CallbackError, Mode};
use file_name::FileName;
use kept::{Entry, Kept};

/// How many checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopK {
    /// Every one.
    All,
    /// The best of the monitored metric, or without a monitor the newest.
    Best(usize),
}

impl From<usize> for TopK {
    fn from(k: usize) -> Self {
        Self::Best(k)
    }
}

/// Saves checkpoints, and keeps the best of them by a metric, or the newest.
///
/// ```
/// use firebrand_trainer::callbacks::{Mode, ModelCheckpoint};
///
/// let checkpoint = ModelCheckpoint::monitor("val_acc").mode(Mode::Max).save_top_k(3).save_last(true);
/// // Trainer::builder().callback(checkpoint) …; after the fit the trainer gives it back:
/// // trainer.callback::<ModelCheckpoint>().and_then(ModelCheckpoint::best_model_path)
/// ```
///
/// When it is due:
///
/// - by default at the end of every epoch; of every n-th with [`every_n_epochs`](Self::every_n_epochs);
/// - with [`every_n_train_steps`](Self::every_n_train_steps) or [`train_time_interval`](Self::train_time_interval) after
///   updates instead, or as well if `every_n_epochs` is set too. A step whose update was skipped does not count.
///
/// With a monitor, the end of an epoch means the end of each validation in it, or of its training if there is no validation, see
/// [`save_on_train_epoch_end`](Self::save_on_train_epoch_end). A step or time that is due waits for the next validation if the
/// metric is one that only a validation changes, so that a checkpoint never carries the value of older weights.
///
/// Not-a-number is worse than every other value; it is kept while there is room, and never the best. A checkpoint that cannot
/// be written is forgotten, and what it would have replaced stays.
#[must_use]
#[derive(Debug)]
pub struct ModelCheckpoint {
    monitor: Option<Monitor>,
    mode: Mode,
    top_k: TopK,
    save_last: bool,
    every_n_train_steps: Option<u64>,
    every_n_epochs: Option<u64>,
    train_time_interval: Option<Duration>,
    save_on_train_epoch_end: Option<bool>,
    template: String,
    file_name: Option<FileName>,
    directory: PathBuf,
    restored: bool,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    kept: Kept,
    /// The newest checkpoint that was asked for: its step and name.
    newest: Option<(u64, String)>,
    /// The time of the fit at which `train_time_interval` last fired.
    fired_at: Duration,
    /// Whether a step or time was due and waits for a validation.
    due: bool,
    seen: Seen,
}

impl Default for ModelCheckpoint {
    fn default() -> Self {
        Self::new()
    }
}

impl ModelCheckpoint {
    /// Keeps the newest checkpoint, to which `last` points.
    pub fn new() -> Self {
        Self {
            monitor: None,
            mode: Mode::Min,
            top_k: TopK::Best(1),
            save_last: true,
            every_n_train_steps: None,
            every_n_epochs: None,
            train_time_interval: None,
            save_on_train_epoch_end: None,
            template: FileName::DEFAULT.to_owned(),
            file_name: None,
            directory: PathBuf::new(),
            restored: false,
            state: State::default(),
        }
    }

    /// Keeps the checkpoint with the best value of a logged metric, to which `best` points; the smallest, unless
    /// [`mode`](Self::mode) says otherwise.
    pub fn monitor(metric: impl Into<String>) -> Self {
        Self {
            monitor: Some(Monitor::new(metric)),
            save_last: false,
            ..Self::new()
        }
    }

    /// Whether a smaller or a larger value is better; default: a smaller one.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How many checkpoints are kept: a number, or [`TopK::All`]; default 1. `0` keeps none but the last.
    pub fn save_top_k(mut self, k: impl Into<TopK>) -> Self {
        self.top_k = k.into();
        self
    }

    /// Whether a checkpoint is saved whenever one is due, also if it is not among the best, and `last` points to it. Default:
    /// no with a monitor, yes without.
    pub fn save_last(mut self, on: bool) -> Self {
        self.save_last = on;
        self
    }

    /// Save after every n-th optimizer update.
    pub fn every_n_train_steps(mut self, steps: u64) -> Self {
        self.every_n_train_steps = Some(steps);
        self
    }

    /// Save in every n-th epoch; default 1, unless steps or a time are given.
    pub fn every_n_epochs(mut self, epochs: u64) -> Self {
        self.every_n_epochs = Some(epochs);
        self
    }

    /// Save after the first update that ends this long after the last save for its sake.
    pub fn train_time_interval(mut self, interval: Duration) -> Self {
        self.train_time_interval = Some(interval);
        self
    }

    /// Save at the end of the epoch's training (`true`) or of each validation (`false`). Default: with a monitor after
    /// validations, or after training while there are none; without a monitor after training.
    pub fn save_on_train_epoch_end(mut self, on: bool) -> Self {
        self.save_on_train_epoch_end = Some(on);
        self
    }

    /// How checkpoints are called; default `{epoch}-{step}`, which gives `epoch=003-step=001200`. Logged metrics can be part
    /// of it: `{epoch}-{step}-{val_loss:.3}` gives `epoch=003-step=001200-val_loss=0.250`. It must contain `{step}`.
    pub fn filename(mut self, template: impl Into<String>) -> Self {
        self.template = template.into();
        self
    }

    /// The checkpoint with the best value of the monitored metric that is written; `None` without a monitor, and while every
    /// value is not-a-number.
    pub fn best_model_path(&self) -> Option<PathBuf> {
        self.best().map(|best| self.directory.join(&best.name))
    }

    /// The value of the monitored metric that belongs to [`best_model_path`](Self::best_model_path).
    pub fn best_score(&self) -> Option<f64> {
        self.best().and_then(|best| best.value)
    }

    /// The written checkpoint that `last` points to, if [`save_last`](Self::save_last) is on.
    pub fn last_model_path(&self) -> Option<PathBuf> {
        let last = self.state.kept.last.as_ref().filter(|last| last.written);
        last.map(|last| self.directory.join(&last.name))
    }

    /// The written checkpoints that are kept, with their values: from the best to the worst, or without a monitor from the
    /// newest to the oldest.
    pub fn best_k_models(&self) -> Vec<(PathBuf, Option<f64>)> {
        self.written()
            .map(|entry| (self.directory.join(&entry.name), entry.value))
            .collect()
    }

    fn written(&self) -> impl Iterator<Item = &Entry> {
        self.state.kept.top.iter().filter(|entry| entry.written)
    }

    fn best(&self) -> Option<&Entry> {
        self.written()
            .find(|entry| entry.value.is_some_and(|value| !value.is_nan()))
    }

    fn check(&self) -> Result<(), CallbackError> {
        let numbers = [
            ("every_n_train_steps", self.every_n_train_steps),
            ("every_n_epochs", self.every_n_epochs),
        ];
        for (option, value) in numbers {
            if value == Some(0) {
                return Err(CallbackError::Option {
                    option,
                    value: "0".into(),
                    expected: "a number of at least 1",
                });
            }
        }
        if self.top_k == TopK::Best(0) && !self.save_last {
            return Err(CallbackError::Option {
                option: "save_top_k",
                value: "0".into(),
                expected: "a number of at least 1, unless `save_last(true)` gives it something to save",
            });
        }
        Ok(())
    }
}
