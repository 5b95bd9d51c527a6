use std::time::Duration;

use crate::options::ValCheckInterval;
use crate::{Error, TrainerConfig};

use super::counters::Counters;

/// When a validation is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValidationSchedule {
    /// Never: there is no data, or none of it is to be used.
    Never,
    /// At the end of every n-th epoch.
    EpochEnd { every: u64 },
    /// Within every n-th epoch, after so many batches each.
    Batches { batches: u64, every: u64 },
    /// After so many batches, over epoch borders.
    TotalBatches { batches: u64 },
    /// After so much time.
    Time { interval: Duration },
}

impl ValidationSchedule {
    /// The schedule for an epoch of `num_batches` micro-batches, which is unknown for a stream.
    pub(crate) fn new(config: &TrainerConfig, num_batches: Option<u64>) -> Result<Self, Error> {
        let every = config.check_val_every_n_epoch;
        Ok(match config.val_check_interval {
            ValCheckInterval::Time(interval) => Self::Time { interval },
            ValCheckInterval::Batches(batches) if every == 0 => Self::TotalBatches { batches },
            ValCheckInterval::Batches(batches) => {
                if let Some(total) = num_batches.filter(|total| batches > *total) {
                    return Err(Error::Contradiction(format!(
                        "val_check_interval={batches} is more than the {total} training batches of an epoch; lower it, or \
                         set check_val_every_n_epoch to 0 to count over epoch borders"
                    )));
                }
                Self::Batches { batches, every }
            }
            ValCheckInterval::Fraction(share) if share >= 1.0 => Self::EpochEnd { every: every.max(1) },
            ValCheckInterval::Fraction(share) => match num_batches {
                Some(total) => Self::Batches {
                    batches: ((total as f64 * share) as u64).max(1),
                    every,
                },
                None => {
                    return Err(Error::Contradiction(format!(
                        "val_check_interval={share} is a share of an epoch, and the length of this one is unknown; give a \
                         number of batches or a time"
                    )));
                }
            },
        })
    }

    /// Whether a validation is due after the micro-batch that `counters` count last.
    pub(crate) fn is_due(&self, counters: &Counters, epoch_over: bool, since_last: Duration) -> bool {
        let this_epoch = |every: u64| (counters.epoch + 1).is_multiple_of(every.max(1));
        match *self {
            Self::Never => false,
            Self::EpochEnd { every } => epoch_over && this_epoch(every),
            Self::Batches { batches, every } => {
                this_epoch(every) && counters.batches_in_epoch.is_multiple_of(batches)
            }
            Self::TotalBatches { batches } => counters.total_batches.is_multiple_of(batches),
            Self::Time { interval } => since_last >= interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(schedule: ValidationSchedule, epochs: u64, num_batches: u64) -> Vec<(u64, u64)> {
        let mut due = Vec::new();
        let mut counters = Counters::default();
        for _ in 0..epochs {
            for batch in 1..=num_batches {
                counters.batches_in_epoch = batch;
                counters.total_batches += 1;
                if schedule.is_due(&counters, batch == num_batches, Duration::ZERO) {
                    due.push((counters.epoch, batch));
                }
            }
            counters.next_epoch();
        }
        due
    }

    fn schedule(
        interval: ValCheckInterval,
        every: u64,
        num_batches: Option<u64>,
    ) -> Result<ValidationSchedule, Error> {
        let config = TrainerConfig {
            val_check_interval: interval,
            check_val_every_n_epoch: every,
            ..TrainerConfig::default()
        };
        ValidationSchedule::new(&config, num_batches)
    }

    #[test]
    fn shares_and_counts_and_epochs() {
        let whole = schedule(ValCheckInterval::Fraction(1.0), 2, Some(4)).unwrap();
        assert_eq!(due(whole, 4, 4), [(1, 4), (3, 4)]);
        let half = schedule(ValCheckInterval::Fraction(0.5), 1, Some(5)).unwrap();
        assert_eq!(due(half, 1, 5), [(0, 2), (0, 4)]);
        let over_borders = schedule(ValCheckInterval::Batches(3), 0, Some(2)).unwrap();
        assert_eq!(due(over_borders, 3, 2), [(1, 1), (2, 2)]);
        let stream = schedule(ValCheckInterval::Fraction(1.0), 1, None).unwrap();
        assert_eq!(due(stream, 1, 3), [(0, 3)]);
    }

    #[test]
    fn impossible_intervals_are_errors() {
        assert!(
            schedule(ValCheckInterval::Batches(9), 1, Some(4))
                .unwrap_err()
                .to_string()
                .contains("4 training batches")
        );
        assert!(
            schedule(ValCheckInterval::Fraction(0.5), 1, None)
                .unwrap_err()
                .to_string()
                .contains("unknown")
        );
    }
}
