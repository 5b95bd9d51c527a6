use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use burn::tensor::TensorData;
use firebrand_core::{Interval, Result};
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
/// // Trainer::builder().callback(timer) …; after the fit: trainer.callback::<Timer>().map(Timer::total)
/// ```
#[must_use]
#[derive(Debug)]
pub struct Timer {
    limit: Option<Duration>,
    interval: Interval,
    restored: bool,
    validation_began: Option<Instant>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct State {
    total: Duration,
    validating: Duration,
}

impl Timer {
    /// Stops the fit after the first update that ends when the time is up.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit: Some(limit),
            ..Self::unlimited()
        }
    }

    /// Measures only.
    pub fn unlimited() -> Self {
        Self {
            limit: None,
            interval: Interval::Step,
            restored: false,
            validation_began: None,
            state: State::default(),
        }
    }

    /// Whether it looks at the clock after every micro-batch, the default, or at the end of every epoch.
    pub fn interval(mut self, interval: Interval) -> Self {
        self.interval = interval;
        self
    }

    /// The time of the fit so far, over all its parts.
    pub fn total(&self) -> Duration {
        self.state.total
    }

    /// The part of it that validations took.
    pub fn validating(&self) -> Duration {
        self.state.validating
    }

    /// The rest of it.
    pub fn training(&self) -> Duration {
        self.state.total.saturating_sub(self.state.validating)
    }

    /// What is left of the limit, if there is one.
    pub fn remaining(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.state.total))
    }

    fn look(&mut self, view: &View<'_>, stops: bool, commands: &mut Commands) {
        self.state.total = view.elapsed;
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
            self.state = State::default();
        }
        self.validation_began = None;
        // A run that is resumed after its time does not train again.
        self.look(view, true, commands);
        Ok(())
    }

    fn on_fit_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        self.look(view, false, commands);
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

    fn on_evaluation_start(&mut self, _: &View<'_>, _: &mut Commands) -> Result<()> {
        self.validation_began = Some(Instant::now());
        Ok(())
    }

    fn on_evaluation_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some(began) = self.validation_began.take() {
            self.state.validating += began.elapsed();
        }
        self.look(view, self.interval == Interval::Step, commands);
        Ok(())
    }

    fn state(&self) -> Option<serde_json::Value> {
        serde_json::to_value(self.state).ok()
    }

    fn load_state(&mut self, state: &serde_json::Value, _: BTreeMap<String, TensorData>) -> Result<()> {
        self.state = read_state("Timer", state)?;
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
            assert_eq!(
                (timer.total().as_secs(), timer.remaining()),
                (62, Some(Duration::ZERO))
            );
        }
    }

    #[test]
    fn validations_are_told_from_training_and_survive_a_resume() {
        let mut fixture = Fixture::new();
        let mut timer = Timer::new(Duration::from_secs(100));
        let mut ignored = Commands::default();
        timer.on_fit_start(&at(&mut fixture, 0), &mut ignored).unwrap();
        timer
            .on_evaluation_start(&at(&mut fixture, 10), &mut ignored)
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        timer
            .on_evaluation_end(&at(&mut fixture, 25), &mut ignored)
            .unwrap();
        let validating = timer.validating();
        assert!(
            validating >= Duration::from_millis(20) && validating < Duration::from_secs(20),
            "{validating:?}"
        );
        assert_eq!(timer.training(), Duration::from_secs(25) - validating);
        assert_eq!(timer.remaining(), Some(Duration::from_secs(75)));

        let text = timer.state().unwrap().to_string();
        let mut resumed = Timer::new(Duration::from_secs(20));
        resumed
            .load_state(&serde_json::from_str(&text).unwrap(), BTreeMap::new())
            .unwrap();
        assert_eq!(
            (resumed.total(), resumed.validating()),
            (Duration::from_secs(25), validating)
        );
        let start = commands(|commands| resumed.on_fit_start(&at(&mut fixture, 25), commands));
        assert!(start.stop.is_some(), "the time was up before");
        assert_eq!(resumed.validating(), validating);
    }
}
