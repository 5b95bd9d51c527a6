use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::format::{format_clock, format_metrics, format_rate, format_span};
use super::pace::Pace;

/// One loop over batches that is running: an epoch of training, a validation.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) total: Option<u64>,
    pub(super) position: u64,
    /// Shared with the thread that keeps a bar's clock going.
    pub(super) pace: SharedPace,
    pub(super) metrics: Vec<(String, f64)>,
}

#[derive(Clone, Debug)]
pub(super) struct SharedPace(Arc<Mutex<Pace>>);

impl SharedPace {
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Pace) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `00:05<00:07, 80.1 it/s`: time gone, time left, speed.
    pub(super) fn describe(&self, position: u64, total: Option<u64>, now: Instant) -> String {
        let pace = self.with(|pace| *pace);
        let left = match total {
            Some(total) => format!(
                "<{}",
                pace.remaining(position, total, now)
                    .map_or("?".into(), format_clock)
            ),
            None => String::new(),
        };
        format!(
            "{}{left}, {}",
            format_clock(pace.elapsed(now)),
            format_rate(pace.rate(position, now))
        )
    }
}

impl Stage {
    pub(super) fn new(name: &str, total: Option<u64>, start: u64, now: Instant) -> Self {
        Self {
            name: name.to_owned(),
            total,
            position: start,
            pace: SharedPace(Arc::new(Mutex::new(Pace::new(start, now)))),
            metrics: Vec::new(),
        }
    }

    /// `train epoch 3: 938 batches, from batch 400 on`
    pub(super) fn opening(&self) -> String {
        let total = match self.total {
            Some(1) => "1 batch".to_owned(),
            Some(total) => format!("{total} batches"),
            None => "started".to_owned(),
        };
        let start = if self.position > 0 {
            format!(", from batch {} on", self.position)
        } else {
            String::new()
        };
        format!("{}: {total}{start}", self.name)
    }

    /// `train epoch 3: 400/938 (42%), 00:05<00:07, 80.1 it/s  train_loss 0.12`
    pub(super) fn interim(&self, now: Instant) -> String {
        let pace = self.pace.describe(self.position, self.total, now);
        let percent = match self.total {
            Some(total) if total > 0 => format!(" ({}%)", self.position.saturating_mul(100) / total),
            _ => String::new(),
        };
        self.with_metrics(format!("{}: {}{percent}, {pace}", self.name, self.count()))
    }

    /// `train epoch 3: 938/938 in 12.3s, 80.1 it/s  train_loss 0.12`
    pub(super) fn summary(&self, now: Instant) -> String {
        let (elapsed, rate) = self
            .pace
            .with(|pace| (pace.elapsed(now), pace.rate(self.position, now)));
        let (elapsed, rate) = (format_span(elapsed), format_rate(rate));
        self.with_metrics(format!("{}: {} in {elapsed}, {rate}", self.name, self.count()))
    }

    fn count(&self) -> String {
        match self.total {
            Some(total) => format!("{}/{total}", self.position),
            None => self.position.to_string(),
        }
    }

    fn with_metrics(&self, text: String) -> String {
        if self.metrics.is_empty() {
            text
        } else {
            format!("{text}  {}", format_metrics(&self.metrics))
        }
    }
}
