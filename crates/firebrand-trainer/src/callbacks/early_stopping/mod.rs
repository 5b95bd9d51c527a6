//! Stopping when a metric no longer improves.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_core::Result;
use serde::{Deserialize, Serialize};

use super::monitor::{Monitor, Seen};
use super::state::{exact_f64, read_state};
use super::{Callback, CallbackError, Commands, Mode, View};

/// Stops the training when a logged metric no longer improves.
///
/// It looks at the metric after each validation, or after each epoch of training if there is no validation. A look counts as
/// an improvement if the value is better than the best so far by more than [`min_delta`](Self::min_delta); after
/// [`patience`](Self::patience) looks in a row without one the training stops.
///
/// ```
/// use firebrand_trainer::callbacks::{EarlyStopping, Mode};
///
/// let stopping = EarlyStopping::monitor("val_acc").mode(Mode::Max).patience(5).min_delta(1e-3);
/// ```
#[must_use]
#[derive(Debug)]
pub struct EarlyStopping {
    monitor: Monitor,
    mode: Mode,
    patience: u64,
    min_delta: f64,
    stopping_threshold: Option<f64>,
    divergence_threshold: Option<f64>,
    check_finite: bool,
    restored: bool,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Looks without an improvement since the last one.
    wait_count: u64,
    #[serde(with = "exact_f64")]
    best: Option<f64>,
    seen: Seen,
}

impl EarlyStopping {
    /// Watches a metric with a patience of 3 looks; a smaller value is better.
    pub fn monitor(metric: impl Into<String>) -> Self {
        Self {
            monitor: Monitor::new(metric),
            mode: Mode::Min,
            patience: 3,
            min_delta: 0.0,
            stopping_threshold: None,
            divergence_threshold: None,
            check_finite: true,
            restored: false,
            state: State::default(),
        }
    }

    /// Whether a smaller or a larger value is better; default: a smaller one.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The number of looks in a row without improvement after which the training stops; default 3.
    pub fn patience(mut self, looks: u64) -> Self {
        self.patience = looks;
        self
    }

    /// How much better than the best a value must be; default 0: any better value is an improvement.
    pub fn min_delta(mut self, delta: f64) -> Self {
        self.min_delta = delta;
        self
    }

    /// Stop as soon as the value is better than this.
    pub fn stopping_threshold(mut self, value: f64) -> Self {
        self.stopping_threshold = Some(value);
        self
    }

    /// Stop as soon as the value is worse than this.
    pub fn divergence_threshold(mut self, value: f64) -> Self {
        self.divergence_threshold = Some(value);
        self
    }

    /// Whether to stop when the value is infinite or not-a-number; default yes. Otherwise not-a-number is never an improvement.
    pub fn check_finite(mut self, on: bool) -> Self {
        self.check_finite = on;
        self
    }

    /// Look after each epoch of training (`true`) or each validation (`false`). Default: after validations, or after epochs of
    /// training while there are none.
    pub fn check_on_train_epoch_end(mut self, on: bool) -> Self {
        self.monitor.on_train_epoch_end = Some(on);
        self
    }

    fn check(&self) -> Result<(), CallbackError> {
        if !(self.min_delta.is_finite() && self.min_delta >= 0.0) {
            let value = self.min_delta.to_string();
            return Err(CallbackError::Option {
                option: "min_delta",
                value,
                expected: "a finite number of at least 0",
            });
        }
        Ok(())
    }

    fn improves(&self, value: f64) -> bool {
        let Some(best) = self.state.best else {
            return !value.is_nan();
        };
        let reduced = match self.mode {
            Mode::Min => value + self.min_delta,
            Mode::Max => value - self.min_delta,
        };
        self.mode.is_better(reduced, best)
    }

    /// Looks at a value; the reason if the training is to stop.
    fn look(&mut self, value: f64) -> Option<String> {
        let metric = &self.monitor.metric;
        let best = self
            .state
            .best
            .map_or_else(|| "none".to_owned(), |best| best.to_string());
        if self.check_finite && !value.is_finite() {
            return Some(format!("{metric} = {value} is not finite; the best was {best}"));
        }
        let improves = self.improves(value);
        if improves {
            self.state.best = Some(value);
            self.state.wait_count = 0;
        } else {
            self.state.wait_count += 1;
        }
        let (looks, mode) = (self.state.wait_count, self.mode);
        if let Some(threshold) = self
            .stopping_threshold
            .filter(|threshold| mode.is_better(value, *threshold))
        {
            return Some(format!(
                "{metric} = {value} has passed the stopping threshold of {threshold}"
            ));
        }
        if let Some(threshold) = self
            .divergence_threshold
            .filter(|threshold| mode.is_better(*threshold, value))
        {
            return Some(format!(
                "{metric} = {value} has passed the divergence threshold of {threshold}"
            ));
        }
        (!improves && looks >= self.patience)
            .then(|| format!("{metric} = {value} has not improved in {looks} looks; the best was {best}"))
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> String {
        format!("EarlyStopping({})", self.monitor.metric)
    }

    fn on_fit_start(&mut self, _: &View<'_>, _: &mut Commands) -> Result<()> {
        self.check()?;
        if !std::mem::take(&mut self.restored) {
            self.state = State::default();
        }
        self.monitor.on_fit_start();
        Ok(())
    }

    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some(value) = self.monitor.on_evaluation_end(&mut self.state.seen, view)?
            && let Some(reason) = self.look(value)
        {
            commands.stop(reason);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some(value) = self.monitor.on_train_epoch_end(&self.state.seen, view)?
            && let Some(reason) = self.look(value)
        {
            commands.stop(reason);
        }
        Ok(())
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
