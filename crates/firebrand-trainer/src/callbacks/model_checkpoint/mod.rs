//! Saving checkpoints: when, under which names, and which of them are kept.

mod file_name;
mod kept;
mod saved_models;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::TensorData;
use firebrand_core::{Result, Stage};
use firebrand_strategy::Update;
use serde::{Deserialize, Serialize};

use super::monitor::{Monitor, Seen};
use super::state::read_state;
use super::{Callback, CallbackError, CheckpointRequest, Commands, Mode, View};
use file_name::FileName;
use kept::{Entry, Kept};
pub use saved_models::SavedModels;

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
/// let saved = checkpoint.saved_models(); // Knows the best model's path after the fit.
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
    fitting: bool,
    restored: bool,
    state: State,
    saved: SavedModels,
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
            fitting: false,
            restored: false,
            state: State::default(),
            saved: SavedModels::default(),
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

    /// A handle to what was saved, for after the fit.
    pub fn saved_models(&self) -> SavedModels {
        self.saved.clone()
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

    fn epoch_is_due(&self, view: &View<'_>) -> bool {
        let only_others = self.every_n_train_steps.is_some() || self.train_time_interval.is_some();
        let every = self.every_n_epochs.unwrap_or(if only_others { 0 } else { 1 });
        every > 0 && (view.epoch + 1).is_multiple_of(every)
    }

    /// Asks for a checkpoint, with the value by which it is ranked; with a monitor and no value it is the last at most.
    fn save(&mut self, view: &View<'_>, value: Option<f64>, commands: &mut Commands) {
        let (Some(_), Some(file_name)) = (view.run, &self.file_name) else {
            return;
        };
        let step = view.global_step;
        let name = file_name.format(view.epoch, step, view.metrics);
        let entry = Entry {
            name: name.clone(),
            global_step: step,
            value,
            written: false,
        };
        let kept = &mut self.state.kept;
        let ranked = value.is_some() || self.monitor.is_none();
        let top = ranked && !kept.has_step(step) && kept.admits(self.top_k, self.mode, &entry);
        let last = self.save_last
            && self
                .state
                .newest
                .as_ref()
                .is_none_or(|(newest, _)| *newest != step);
        if !top && !last {
            return;
        }
        let change = kept.add(entry, top.then_some((self.top_k, self.mode)), self.save_last);
        self.state.newest = Some((step, name.clone()));
        commands.checkpoint(CheckpointRequest {
            name: Some(name),
            last: self.save_last,
            best: change.best,
            remove: change
                .remove
                .into_iter()
                .map(|name| self.directory.join(name))
                .collect(),
        });
    }

    fn publish(&self) {
        self.saved.publish(&self.directory, &self.state.kept);
    }
}

impl Callback for ModelCheckpoint {
    fn name(&self) -> String {
        let metric = self.monitor.as_ref().map(|monitor| monitor.metric.as_str());
        let steps = self.every_n_train_steps.map(|_| "steps");
        let time = self.train_time_interval.map(|_| "time");
        let parts: Vec<&str> = metric.into_iter().chain(steps).chain(time).collect();
        if parts.is_empty() {
            "ModelCheckpoint".to_owned()
        } else {
            format!("ModelCheckpoint({})", parts.join(", "))
        }
    }

    fn saves_checkpoints(&self) -> bool {
        true
    }

    fn kept_checkpoints(&self) -> Vec<String> {
        self.state.kept.names()
    }

    fn on_fit_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        self.check()?;
        self.file_name = Some(FileName::parse(&self.template)?);
        if !std::mem::take(&mut self.restored) {
            self.state = State::default();
        }
        if let Some(run) = view.run {
            self.directory = run.checkpoints();
            self.state.kept.settle(|name| self.directory.join(name).is_dir());
        }
        self.fitting = true;
        if let Some(monitor) = &mut self.monitor {
            monitor.on_train_epoch_end = self.save_on_train_epoch_end;
            monitor.begin_fit();
        }
        self.publish();
        Ok(())
    }

    fn on_fit_end(&mut self, _: &View<'_>, _: &mut Commands) -> Result<()> {
        self.fitting = false;
        if let Some(monitor) = &mut self.monitor {
            monitor.end_fit();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if !matches!(view.update, Some(Update::Stepped { .. })) {
            return Ok(());
        }
        let step_is_due = self
            .every_n_train_steps
            .is_some_and(|steps| view.global_step.is_multiple_of(steps));
        let since = view.elapsed.saturating_sub(self.state.fired_at);
        let time_is_due = self.train_time_interval.is_some_and(|interval| since >= interval);
        if time_is_due {
            self.state.fired_at = view.elapsed;
        }
        if step_is_due || time_is_due {
            let newest = self.monitor.as_ref().and_then(|monitor| monitor.newest(view));
            let value = newest.filter(|_| !self.state.seen.from_validation);
            self.state.due |= self.monitor.is_some() && value.is_none();
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_evaluation_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        if let Some(monitor) = &mut self.monitor {
            monitor.on_evaluation_start(view);
        }
        Ok(())
    }

    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let value = match &mut self.monitor {
            Some(monitor) => match monitor.on_evaluation_end(&mut self.state.seen, view)? {
                Some(value) => Some(value),
                None => return Ok(()),
            },
            None if self.save_on_train_epoch_end != Some(false) => return Ok(()),
            None if !self.fitting || view.stage != Stage::Validate || view.sanity_checking => return Ok(()),
            None => None,
        };
        if std::mem::take(&mut self.state.due) || self.epoch_is_due(view) {
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        let value = match &mut self.monitor {
            Some(monitor) => monitor.on_train_epoch_end(&self.state.seen, view)?,
            None if self.save_on_train_epoch_end == Some(false) => return Ok(()),
            None => None,
        };
        let was_due = value.is_some() && std::mem::take(&mut self.state.due);
        if was_due || self.epoch_is_due(view) {
            self.save(view, value, commands);
        }
        Ok(())
    }

    fn on_checkpoint_saved(&mut self, path: &Path) {
        self.state.kept.saved(&name_of(path));
        self.publish();
    }

    fn on_checkpoint_failed(&mut self, path: &Path) {
        let name = name_of(path);
        self.state.kept.failed(self.mode, &name);
        // Another try at the same step is welcome.
        self.state.newest = self.state.newest.take().filter(|(_, newest)| *newest != name);
        self.publish();
    }

    fn state(&self) -> Option<serde_json::Value> {
        serde_json::to_value(&self.state).ok()
    }

    fn load_state(&mut self, state: &serde_json::Value, _: BTreeMap<String, TensorData>) -> Result<()> {
        self.state = read_state(&self.name(), state)?;
        self.restored = true;
        Ok(())
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}
