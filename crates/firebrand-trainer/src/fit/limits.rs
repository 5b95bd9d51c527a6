use std::time::Duration;

use crate::TrainerConfig;

use super::counters::Counters;

/// When a run is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    max_epochs: Option<u64>,
    min_epochs: u64,
    max_steps: Option<u64>,
    min_steps: u64,
    max_time: Option<Duration>,
}

impl Limits {
    pub(crate) fn of(config: &TrainerConfig) -> Self {
        if let Some(batches) = config.fast_dev_run {
            return Self {
                max_epochs: Some(1),
                min_epochs: 0,
                max_steps: Some(batches),
                min_steps: 0,
                max_time: None,
            };
        }
        Self {
            max_epochs: config.epoch_limit(),
            min_epochs: config.min_epochs.unwrap_or(0),
            max_steps: config.max_steps,
            min_steps: config.min_steps.unwrap_or(0),
            max_time: config.max_time.map(Duration::from_secs),
        }
    }

    pub(crate) fn max_epochs(&self) -> Option<u64> {
        self.max_epochs
    }

    /// Why the run ends here by a maximum, if it does. Maxima of epochs and steps are exact; that of time waits for the minima.
    pub(crate) fn reached(&self, counters: &Counters) -> Option<String> {
        if let Some(limit) = self.max_steps.filter(|limit| counters.global_step >= *limit) {
            return Some(format!("max_steps={limit} reached"));
        }
        if let Some(limit) = self.max_epochs.filter(|limit| counters.epoch >= *limit) {
            return Some(format!("max_epochs={limit} reached"));
        }
        let elapsed = Duration::from_millis(counters.elapsed_ms);
        let limit = self
            .max_time
            .filter(|limit| elapsed >= *limit && self.allows_stop(counters))?;
        Some(format!(
            "max_time={} reached",
            crate::options::format_duration(limit)
        ))
    }

    /// Whether the minima allow the run to stop here.
    pub(crate) fn allows_stop(&self, counters: &Counters) -> bool {
        counters.epoch >= self.min_epochs && counters.global_step >= self.min_steps
    }

    /// The number of updates of the whole run, from the number of micro-batches of an epoch.
    pub(crate) fn estimated_steps(&self, batches_per_epoch: Option<u64>, accumulate: u64) -> Option<u64> {
        let of_epochs = match (self.max_epochs, batches_per_epoch) {
            (Some(epochs), Some(batches)) => Some(epochs.saturating_mul(batches.div_ceil(accumulate.max(1)))),
            _ => None,
        };
        match (of_epochs, self.max_steps) {
            (Some(steps), Some(limit)) => Some(steps.min(limit)),
            (steps, limit) => steps.or(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(change: impl FnOnce(&mut TrainerConfig)) -> Limits {
        let mut config = TrainerConfig::default();
        change(&mut config);
        Limits::of(&config)
    }

    #[test]
    fn maxima_are_exact_and_minima_only_veto() {
        let limits = limits(|config| {
            config.max_steps = Some(10);
            config.max_time = Some(1);
            config.min_steps = Some(5);
        });
        let at = |global_step, elapsed_ms| Counters {
            global_step,
            elapsed_ms,
            ..Counters::default()
        };
        assert_eq!(limits.reached(&at(9, 0)), None);
        assert!(limits.reached(&at(10, 0)).unwrap().contains("max_steps=10"));
        assert_eq!(limits.reached(&at(4, 2000)), None);
        assert!(limits.reached(&at(5, 2000)).unwrap().contains("00:00:00:01"));
        assert!(!limits.allows_stop(&at(4, 0)));
    }

    #[test]
    fn without_a_limit_there_are_a_thousand_epochs() {
        assert_eq!(limits(|_| ()).max_epochs(), Some(1000));
        assert_eq!(limits(|config| config.max_steps = Some(3)).max_epochs(), None);
    }

    #[test]
    fn estimated_steps_count_the_last_partial_group() {
        let limits = limits(|config| config.max_epochs = Some(3));
        assert_eq!(limits.estimated_steps(Some(10), 4), Some(9));
        assert_eq!(limits.estimated_steps(None, 4), None);
    }
}
