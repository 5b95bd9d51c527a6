use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn::tensor::TensorData;
use firebrand_core::{Interval, Result, Stage};
use serde::{Deserialize, Serialize};

use super::state::read_state;
use super::{Callback, Commands, View};
use crate::format_duration;

/// Measures how long a fit takes, over all its parts, and stops it after a limit.
///
/// ```
/// use std::time::Duration;
/// use firebrand_trainer::callbacks::Timer;
///
/// let timer = Timer::new(Duration::from_secs(12 * 3600));
/// let times = timer.times(); // `times.training()` and its like, during and after the fit.
/// ```
#[must_use]
#[derive(Debug)]
pub struct Timer {
    limit: Option<Duration>,
    interval: Interval,
    fitting: bool,
    restored: bool,
    evaluation_began: Option<Duration>,
    times: TimerTimes,
}

/// The times of a [`Timer`], for elsewhere.
#[derive(Clone, Debug, Default)]
pub struct TimerTimes(Arc<Mutex<Times>>);

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Times {
    total: Duration,
    validating: Duration,
    #[serde(skip)]
    limit: Option<Duration>,
}

impl TimerTimes {
    fn with<T>(&self, access: impl FnOnce(&mut Times) -> T) -> T {
        access(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The time of the fit so far, over all its parts.
    pub fn total(&self) -> Duration {
        self.with(|times| times.total)
    }

    /// The part of it that validations took.
    pub fn validating(&self) -> Duration {
        self.with(|times| times.validating)
    }

    /// The rest of it.
    pub fn training(&self) -> Duration {
        self.with(|times| times.total.saturating_sub(times.validating))
    }

    /// What is left of the limit, if there is one.
    pub fn remaining(&self) -> Option<Duration> {
        self.with(|times| times.limit.map(|limit| limit.saturating_sub(times.total)))
    }
}

impl Timer {
    /// Stops the fit after the first update that ends when the time is up.
    pub fn new(limit: Duration) -> Self {
        let timer = Self::unlimited();
        timer.times.with(|times| times.limit = Some(limit));
        Self {
            limit: Some(limit),
            ..timer
        }
    }

    /// Measures only.
    pub fn unlimited() -> Self {
        Self {
            limit: None,
            interval: Interval::Step,
            fitting: false,
            restored: false,
            evaluation_began: None,
            times: TimerTimes::default(),
        }
    }

    /// Whether it looks at the clock after every micro-batch, the default, or at the end of every epoch.
    pub fn interval(mut self, interval: Interval) -> Self {
        self.interval = interval;
        self
    }

    /// A handle to the times.
    pub fn times(&self) -> TimerTimes {
        self.times.clone()
    }

    fn look(&self, view: &View<'_>, stops: bool, commands: &mut Commands) {
        self.times.with(|times| times.total = view.elapsed);
        if let Some(limit) = self.limit.filter(|limit| stops && view.elapsed >= *limit) {
            commands.stop(format!("the time limit of {} is reached", format_duration(limit)));
        }
    }
}

impl Callback for Timer {
    fn name(&self) -> String {
        "Timer".to_owned()
    }

    fn on_fit_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if !std::mem::take(&mut self.restored) {
            self.times.with(|times| {
                *times = Times {
                    limit: self.limit,
                    ..Times::default()
                }
            });
        }
        self.fitting = true;
        self.evaluation_began = None;
        // A run that is resumed after its time does not train again.
        self.look(view, true, commands);
        Ok(())
    }

    fn on_fit_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        self.look(view, false, commands);
        self.fitting = false;
        Ok(())
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        self.look(view, self.interval == Interval::Step, commands);
        Ok(())
    }

    fn on_train_epoch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        self.look(view, true, commands);
        Ok(())
    }

    fn on_evaluation_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        self.evaluation_began = (self.fitting && view.stage == Stage::Validate).then_some(view.elapsed);
        Ok(())
    }

    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some(began) = self.evaluation_began.take() {
            self.times
                .with(|times| times.validating += view.elapsed.saturating_sub(began));
            self.look(view, self.interval == Interval::Step, commands);
        }
        Ok(())
    }

    fn state(&self) -> Option<serde_json::Value> {
        self.times.with(|times| serde_json::to_value(times)).ok()
    }

    fn load_state(&mut self, state: &serde_json::Value, _: BTreeMap<String, TensorData>) -> Result<()> {
        let read: Times = read_state("Timer", state)?;
        self.times.with(|times| {
            *times = Times {
                limit: self.limit,
                ..read
            }
        });
        self.restored = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands};

    fn at(fixture: &mut Fixture, seconds: u64) -> View<'_> {
        fixture.elapsed = Duration::from_secs(seconds);
        fixture.view()
    }

    #[test]
    fn the_limit_stops_at_the_interval() {
        let mut fixture = Fixture::new();
        for (interval, stops) in [(Interval::Step, true), (Interval::Epoch, false)] {
            let mut timer = Timer::new(Duration::from_secs(60)).interval(interval);
            let mut event = |seconds, event: fn(&mut Timer, &View<'_>, &mut Commands) -> Result<()>| {
                commands(|commands| event(&mut timer, &at(&mut fixture, seconds), commands)).stop
            };
            assert_eq!(event(0, Timer::on_fit_start), None);
            assert_eq!(event(59, Timer::on_train_batch_end), None);
            assert_eq!(event(61, Timer::on_train_batch_end).is_some(), stops);
            assert!(
                event(62, Timer::on_train_epoch_end)
                    .unwrap()
                    .contains("00:00:01:00")
            );
        }
    }

    #[test]
    fn validations_are_told_from_training_and_survive_a_resume() {
        let mut fixture = Fixture::new();
        let mut timer = Timer::new(Duration::from_secs(100));
        let times = timer.times();
        let mut ignored = Commands::default();
        timer.on_fit_start(&at(&mut fixture, 0), &mut ignored).unwrap();
        fixture.stage = Stage::Validate;
        timer
            .on_evaluation_start(&at(&mut fixture, 10), &mut ignored)
            .unwrap();
        timer
            .on_evaluation_end(&at(&mut fixture, 25), &mut ignored)
            .unwrap();
        assert_eq!(
            (
                times.total().as_secs(),
                times.validating().as_secs(),
                times.training().as_secs()
            ),
            (25, 15, 10)
        );
        assert_eq!(times.remaining(), Some(Duration::from_secs(75)));

        let text = timer.state().unwrap().to_string();
        let mut resumed = Timer::new(Duration::from_secs(20));
        resumed
            .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
            .unwrap();
        let start = commands(|commands| resumed.on_fit_start(&at(&mut fixture, 25), commands));
        assert!(start.stop.is_some(), "the time was up before");
        assert_eq!(resumed.times().validating().as_secs(), 15);
        assert_eq!(resumed.times().remaining(), Some(Duration::ZERO));
        // An evaluation after the fit is no part of it.
        resumed.on_fit_end(&at(&mut fixture, 30), &mut ignored).unwrap();
        resumed
            .on_evaluation_start(&at(&mut fixture, 30), &mut ignored)
            .unwrap();
        resumed
            .on_evaluation_end(&at(&mut fixture, 50), &mut ignored)
            .unwrap();
        assert_eq!(
            (
                resumed.times().validating().as_secs(),
                resumed.times().total().as_secs()
            ),
            (15, 30)
        );
    }
}
