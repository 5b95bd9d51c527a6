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
        self.monitor.begin_fit();
        Ok(())
    }

    fn on_fit_end(&mut self, _: &View<'_>, _: &mut Commands) -> Result<()> {
        self.monitor.end_fit();
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

#[cfg(test)]
mod tests {
    use firebrand_core::Stage;

    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands};

    /// The reasons after looks at these values, until one stops.
    fn looks(stopping: &mut EarlyStopping, values: &[f64]) -> (usize, Option<String>) {
        let mut fixture = Fixture::new();
        fixture.stage = Stage::Validate;
        for (number, value) in values.iter().enumerate() {
            fixture.metrics.insert("m".to_owned(), *value);
            let commands = commands(|commands| stopping.on_evaluation_end(&fixture.view(), commands));
            if commands.stop.is_some() {
                return (number + 1, commands.stop);
            }
        }
        (values.len(), None)
    }

    fn started(mut stopping: EarlyStopping) -> EarlyStopping {
        stopping
            .on_fit_start(&Fixture::new().view(), &mut Commands::default())
            .unwrap();
        stopping
    }

    #[test]
    fn patience_counts_looks_in_a_row() {
        let mut stopping = started(EarlyStopping::monitor("m").patience(2));
        let (number, reason) = looks(&mut stopping, &[3.0, 4.0, 2.0, 2.0, 2.0, 1.0]);
        assert_eq!(number, 5);
        let reason = reason.unwrap();
        assert!(
            reason.contains("m = 2") && reason.contains("2 looks") && reason.contains("best was 2"),
            "{reason}"
        );
        let mut stopping = started(EarlyStopping::monitor("m").mode(Mode::Max).patience(1));
        assert_eq!(looks(&mut stopping, &[1.0, 2.0, 3.0]), (3, None));
    }

    #[test]
    fn small_improvements_do_not_count() {
        let stopping = || started(EarlyStopping::monitor("m").patience(2).min_delta(0.5));
        assert_eq!(looks(&mut stopping(), &[3.0, 2.5, 2.5]).0, 3);
        assert_eq!(looks(&mut stopping(), &[3.0, 2.4, 1.8, 1.2]), (4, None));
        let max = started(
            EarlyStopping::monitor("m")
                .mode(Mode::Max)
                .patience(2)
                .min_delta(0.5),
        );
        assert_eq!(looks(&mut { max }, &[1.0, 1.5, 1.4]).0, 3);
    }

    #[test]
    fn thresholds_and_values_that_are_not_finite_stop_at_once() {
        for (stopping, values, word) in [
            (
                EarlyStopping::monitor("m").stopping_threshold(1.0),
                [2.0, 1.0, 0.9],
                "stopping threshold",
            ),
            (
                EarlyStopping::monitor("m").divergence_threshold(5.0),
                [2.0, 5.0, 5.1],
                "divergence threshold",
            ),
            (
                EarlyStopping::monitor("m")
                    .mode(Mode::Max)
                    .divergence_threshold(0.1),
                [0.5, 0.1, 0.0],
                "divergence",
            ),
            (EarlyStopping::monitor("m"), [2.0, 1.0, f64::NAN], "not finite"),
            (
                EarlyStopping::monitor("m"),
                [2.0, 1.0, f64::NEG_INFINITY],
                "not finite",
            ),
        ] {
            let (number, reason) = looks(&mut started(stopping), &values);
            assert!(
                number == 3 && reason.as_ref().unwrap().contains(word),
                "{number} {reason:?}"
            );
        }
        let mut stopping = started(EarlyStopping::monitor("m").check_finite(false).patience(3));
        assert_eq!(
            looks(&mut stopping, &[f64::NAN, 1.0, f64::NAN, f64::INFINITY, f64::NAN]).0,
            5
        );
    }

    #[test]
    fn a_resumed_run_waits_on() {
        let mut stopping = started(EarlyStopping::monitor("m").check_finite(false));
        looks(&mut stopping, &[f64::NEG_INFINITY, 3.0, 2.0]);
        let text = stopping.state().unwrap().to_string();
        let mut resumed = EarlyStopping::monitor("m").check_finite(false);
        resumed
            .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
            .unwrap();
        let mut resumed = started(resumed);
        assert_eq!(
            (resumed.state.wait_count, resumed.state.best),
            (2, Some(f64::NEG_INFINITY))
        );
        assert_eq!(looks(&mut resumed, &[1.0]).0, 1);
        assert!(resumed.state.wait_count == 3);
        // Another fit starts anew.
        assert_eq!(started(resumed).state.best, None);
        assert!(
            EarlyStopping::monitor("m")
                .load_state(&serde_json::json!(1), BTreeMap::new())
                .is_err()
        );
    }

    #[test]
    fn epochs_of_training_are_looked_at_on_demand() {
        let mut fixture = Fixture::new();
        fixture.metrics.insert("m".to_owned(), 1.0);
        let mut stopping = started(
            EarlyStopping::monitor("m")
                .patience(1)
                .check_on_train_epoch_end(true),
        );
        for stops in [false, true] {
            fixture.stage = Stage::Validate;
            let validation = commands(|commands| stopping.on_evaluation_end(&fixture.view(), commands));
            assert!(validation.stop.is_none());
            fixture.stage = Stage::Train;
            let end = commands(|commands| stopping.on_train_epoch_end(&fixture.view(), commands));
            assert_eq!(end.stop.is_some(), stops);
        }
    }

    #[test]
    fn a_metric_that_is_missing_is_an_error_with_names() {
        let mut stopping = started(EarlyStopping::monitor("n"));
        let mut fixture = Fixture::new();
        fixture.metrics.insert("m".to_owned(), 1.0);
        fixture.stage = Stage::Validate;
        let error = stopping
            .on_evaluation_end(&fixture.view(), &mut Commands::default())
            .unwrap_err();
        assert!(
            error.to_string().contains("'n'") && error.to_string().contains("were: m"),
            "{error}"
        );
        let mut stopping = EarlyStopping::monitor("n").min_delta(f64::NAN);
        assert!(
            stopping
                .on_fit_start(&fixture.view(), &mut Commands::default())
                .is_err()
        );
    }
}
