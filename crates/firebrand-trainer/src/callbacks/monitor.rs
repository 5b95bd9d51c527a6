use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{CallbackError, View};
use crate::ValCheckInterval;

/// Whether a smaller or a larger value of a metric is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A smaller value is better, as of a loss.
    #[default]
    Min,
    /// A larger value is better, as of an accuracy.
    Max,
}

impl Mode {
    /// Whether `value` is better than `other`. Not-a-number is worse than everything else, infinities included.
    pub fn is_better(self, value: f64, other: f64) -> bool {
        self.compare(value, other) == Ordering::Less
    }

    /// The order from the best value to the worst.
    pub(super) fn compare(self, a: f64, b: f64) -> Ordering {
        let order = match self {
            Self::Min => a.partial_cmp(&b),
            Self::Max => b.partial_cmp(&a),
        };
        order.unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }
}

/// What is known of a monitored metric; it belongs to the state of a callback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Whether a validation has ended in this fit.
    pub validated: bool,
    /// Whether a validation was seen to change the metric.
    pub from_validation: bool,
}

/// A logged metric that a callback looks at after each validation, or after each epoch of training.
#[derive(Debug)]
pub(super) struct Monitor {
    pub metric: String,
    /// `None`: after validations, and after epochs of training if there is no validation.
    pub on_train_epoch_end: Option<bool>,
    warned: bool,
    before_validation: Option<f64>,
}

impl Monitor {
    pub fn new(metric: impl Into<String>) -> Self {
        Self {
            metric: metric.into(),
            on_train_epoch_end: None,
            warned: false,
            before_validation: None,
        }
    }

    pub fn on_fit_start(&mut self) {
        self.warned = false;
    }

    /// The newest value, however old it is.
    pub fn newest(&self, view: &View<'_>) -> Option<f64> {
        view.metrics.get(&self.metric).copied()
    }

    pub fn on_evaluation_start(&mut self, view: &View<'_>) {
        self.before_validation = self.newest(view);
    }

    /// The value to look at after a validation, if that is when to look.
    ///
    /// # Errors
    ///
    /// If the metric was not logged.
    pub fn on_evaluation_end(
        &mut self,
        seen: &mut Seen,
        view: &View<'_>,
    ) -> Result<Option<f64>, CallbackError> {
        seen.validated = true;
        let value = self.newest(view);
        seen.from_validation |= value.map(f64::to_bits) != self.before_validation.map(f64::to_bits);
        if self.on_train_epoch_end == Some(true) {
            return Ok(None);
        }
        self.required(seen, view)
    }

    /// The value to look at after an epoch of training, if there is one to look at.
    ///
    /// # Errors
    ///
    /// If the metric was not logged although it could have been.
    pub fn on_train_epoch_end(&mut self, seen: &Seen, view: &View<'_>) -> Result<Option<f64>, CallbackError> {
        match self.on_train_epoch_end {
            Some(false) => Ok(None),
            None if seen.validated => Ok(None),
            Some(true) | None => self.required(seen, view),
        }
    }

    fn required(&mut self, seen: &Seen, view: &View<'_>) -> Result<Option<f64>, CallbackError> {
        if let Some(value) = self.newest(view) {
            return Ok(Some(value));
        }
        let error = CallbackError::missing(&self.metric, view.metrics);
        if seen.validated || validation_never_comes(view) {
            return Err(error);
        }
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!("{error}; waiting for the first validation");
        }
        Ok(None)
    }
}

/// Whether a validation would have ended by the end of this epoch if there were one at all.
fn validation_never_comes(view: &View<'_>) -> bool {
    let every = view.config.check_val_every_n_epoch;
    let within_epochs = match view.config.val_check_interval {
        ValCheckInterval::Fraction(_) => true,
        // A number of batches is no longer than an epoch if that is known, unless it counts over the borders of epochs.
        ValCheckInterval::Batches(_) => every > 0 && view.num_training_batches.is_some(),
        ValCheckInterval::Time(_) => false,
    };
    within_epochs && view.epoch + 1 >= every
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::Fixture;

    #[test]
    fn not_a_number_is_worse_than_everything() {
        for mode in [Mode::Min, Mode::Max] {
            for value in [1.0, f64::INFINITY, f64::NEG_INFINITY] {
                assert!(
                    mode.is_better(value, f64::NAN) && !mode.is_better(f64::NAN, value),
                    "{mode:?} {value}"
                );
            }
            assert!(!mode.is_better(f64::NAN, f64::NAN) && !mode.is_better(1.0, 1.0));
        }
        assert!(Mode::Min.is_better(1.0, 2.0) && Mode::Max.is_better(2.0, 1.0));
        let mut values = [f64::NAN, 1.0, f64::INFINITY, -2.0];
        values.sort_by(|a, b| Mode::Max.compare(*a, *b));
        assert_eq!(&values[..3], [f64::INFINITY, 1.0, -2.0]);
    }

    #[test]
    fn a_value_is_missing_once_it_could_exist() {
        let mut fixture = Fixture::new();
        fixture.metrics.insert("train_loss".to_owned(), 1.0);
        let fails = |fixture: &mut Fixture, every, interval, epoch| {
            fixture.config.check_val_every_n_epoch = every;
            fixture.config.val_check_interval = interval;
            fixture.epoch = epoch;
            let outcome = Monitor::new("val_loss").on_train_epoch_end(&Seen::default(), &fixture.view());
            outcome.map(|value| assert_eq!(value, None)).is_err()
        };
        let whole = ValCheckInterval::Fraction(1.0);
        assert!(fails(&mut fixture, 1, whole, 0));
        assert!(!fails(&mut fixture, 2, whole, 0) && fails(&mut fixture, 2, whole, 1));
        assert!(fails(&mut fixture, 1, ValCheckInterval::Batches(5), 0));
        assert!(!fails(&mut fixture, 0, ValCheckInterval::Batches(500), 9));
        assert!(!fails(
            &mut fixture,
            1,
            ValCheckInterval::Time(std::time::Duration::from_secs(9)),
            9
        ));

        let error = Monitor::new("val_loss")
            .on_evaluation_end(&mut Seen::default(), &fixture.view())
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("'val_loss'") && error.contains("train_loss"),
            "{error}"
        );
    }

    #[test]
    fn validations_are_told_from_training() {
        let mut fixture = Fixture::new();
        let (mut monitor, mut seen) = (Monitor::new("val_loss"), Seen::default());
        fixture.metrics.insert("val_loss".to_owned(), 1.0);
        assert_eq!(
            monitor.on_train_epoch_end(&seen, &fixture.view()).unwrap(),
            Some(1.0)
        );
        monitor.on_evaluation_start(&fixture.view());
        assert_eq!(
            monitor.on_evaluation_end(&mut seen, &fixture.view()).unwrap(),
            Some(1.0)
        );
        assert_eq!(
            seen,
            Seen {
                validated: true,
                from_validation: false
            }
        );
        // Epochs of training are no longer looked at.
        assert_eq!(monitor.on_train_epoch_end(&seen, &fixture.view()).unwrap(), None);
        monitor.on_evaluation_start(&fixture.view());
        fixture.metrics.insert("val_loss".to_owned(), 2.0);
        assert_eq!(
            monitor.on_evaluation_end(&mut seen, &fixture.view()).unwrap(),
            Some(2.0)
        );
        assert!(seen.from_validation);
    }
}
