use firebrand_core::{Interval, Result};
use firebrand_strategy::{LearningRate, Update};

use super::{Callback, Commands, View};

/// Logs the learning rates: `lr`, or `lr-<name>` for each of several optimizers.
///
/// What is logged at a step is the rate that the update of that step used, at the steps at which step values are logged
/// (`log_every_n_steps`), so that both stand in one row.
#[must_use]
#[derive(Debug, Default)]
pub struct LearningRateMonitor {
    interval: Interval,
    /// The rates that the last update used, and those that the next one will.
    used: Vec<LearningRate>,
    next: Vec<LearningRate>,
}

impl LearningRateMonitor {
    /// Logs at the steps at which step values are logged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs at those steps, the default, or the rates of an epoch's last update at its end.
    pub fn logging_interval(mut self, interval: Interval) -> Self {
        self.interval = interval;
        self
    }

    fn log(&self, commands: &mut Commands) {
        for rate in &self.used {
            match self.used.len() {
                1 => commands.log("lr", rate.rate),
                _ => commands.log(format!("lr-{}", rate.optimizer), rate.rate),
            }
        }
    }
}

impl Callback for LearningRateMonitor {
    fn name(&self) -> String {
        "LearningRateMonitor".to_owned()
    }

    fn on_fit_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        self.used = view.learning_rates.to_vec();
        self.next = self.used.clone();
        Ok(())
    }

    fn on_train_epoch_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        // The schedules of the epoch before may have advanced since.
        view.learning_rates.clone_into(&mut self.next);
        Ok(())
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if !matches!(view.update, Some(Update::Stepped { .. })) {
            return Ok(());
        }
        std::mem::swap(&mut self.used, &mut self.next);
        view.learning_rates.clone_into(&mut self.next);
        if self.interval == Interval::Step && view.global_step.is_multiple_of(view.config.log_every_n_steps) {
            self.log(commands);
        }
        Ok(())
    }

    fn on_train_epoch_end(&mut self, _: &View<'_>, commands: &mut Commands) -> Result<()> {
        if self.interval == Interval::Epoch {
            self.log(commands);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands, rate};

    #[test]
    fn the_rate_of_the_update_is_logged_with_the_step_values() {
        let mut fixture = Fixture::new();
        fixture.config.log_every_n_steps = 2;
        let mut monitor = LearningRateMonitor::new();
        monitor
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap();
        let mut logged = Vec::new();
        for step in 1..=4_u32 {
            fixture.step();
            // The schedule has advanced when the batch ends.
            fixture.learning_rates[0].rate = 0.1 / f64::from(1 + step);
            let commands = commands(|commands| monitor.on_train_batch_end(&fixture.view(), commands));
            logged.extend(commands.log.into_iter().map(|(name, value)| (step, name, value)));
            // A micro-batch that completes no update logs nothing.
            fixture.update = None;
            let commands = commands_of_batch_end(&mut monitor, &mut fixture);
            assert!(commands.log.is_empty());
        }
        assert_eq!(
            logged,
            [(2, "lr".to_owned(), 0.1 / 2.0), (4, "lr".to_owned(), 0.1 / 4.0)]
        );
    }

    fn commands_of_batch_end(monitor: &mut LearningRateMonitor, fixture: &mut Fixture) -> Commands {
        commands(|commands| monitor.on_train_batch_end(&fixture.view(), commands))
    }

    #[test]
    fn several_optimizers_have_names_and_epochs_one_value() {
        let mut fixture = Fixture::new();
        fixture.config.log_every_n_steps = 1;
        fixture.learning_rates = vec![rate("generator", 0.1), rate("critic", 0.2)];
        let mut monitor = LearningRateMonitor::new().logging_interval(Interval::Epoch);
        monitor
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap();
        for _ in 0..10 {
            fixture.step();
            assert!(commands_of_batch_end(&mut monitor, &mut fixture).log.is_empty());
        }
        // The schedule of the epoch has advanced.
        fixture.learning_rates = vec![rate("generator", 0.01), rate("critic", 0.02)];
        let end = commands(|commands| monitor.on_train_epoch_end(&fixture.view(), commands));
        assert_eq!(
            end.log,
            [("lr-generator".to_owned(), 0.1), ("lr-critic".to_owned(), 0.2)]
        );
        monitor
            .on_train_epoch_start(&fixture.view(), &mut Commands::default())
            .unwrap();
        fixture.step();
        commands_of_batch_end(&mut monitor, &mut fixture);
        let end = commands(|commands| monitor.on_train_epoch_end(&fixture.view(), commands));
        assert_eq!(end.log[1], ("lr-critic".to_owned(), 0.02));
    }
}
