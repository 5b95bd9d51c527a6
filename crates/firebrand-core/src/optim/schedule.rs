use std::fmt;
use std::sync::Arc;

use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;

/// When a schedule advances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interval {
    /// After every optimizer update that happened; a skipped update does not count.
    #[default]
    Step,
    /// At the end of every epoch.
    Epoch,
}

/// How the learning rate changes.
#[derive(Clone)]
#[non_exhaustive]
pub enum ScheduleKind {
    /// A factor of the learning rate as a function of the number of advances so far.
    Factor(Arc<dyn Fn(u64) -> f64 + Send + Sync>),
    /// One of Burn's schedulers, which gives the rate itself.
    Burn(ModuleLrScheduler),
    /// Lower when a logged metric no longer improves.
    Plateau(PlateauConfig),
}

/// When a plateau is reached and what happens then, as in PyTorch's `ReduceLROnPlateau`.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct PlateauConfig {
    /// The logged metric that is watched.
    pub monitor: String,
    /// Whether a larger value is better; default: a smaller one.
    pub larger_is_better: bool,
    /// What the rate is multiplied by; default 0.1.
    pub factor: f64,
    /// The number of checks without improvement that are waited for; default 10.
    pub patience: u64,
    /// The relative change that counts as an improvement; default 1e-4.
    pub threshold: f64,
    /// The number of checks after a reduction during which nothing is counted; default 0.
    pub cooldown: u64,
    /// The lowest rate; default 0.
    pub min_rate: f64,
}

impl PlateauConfig {
    /// PyTorch's defaults for a metric.
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: monitor.into(),
            larger_is_better: false,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
            min_rate: 0.0,
        }
    }

    /// A larger value of the metric is better.
    pub fn larger_is_better(mut self) -> Self {
        self.larger_is_better = true;
        self
    }

    /// What the rate is multiplied by.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The number of checks without improvement that are waited for.
    pub fn patience(mut self, patience: u64) -> Self {
        self.patience = patience;
        self
    }

    /// The relative change that counts as an improvement.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }

    /// The number of checks after a reduction during which nothing is counted.
    pub fn cooldown(mut self, cooldown: u64) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// The lowest rate.
    pub fn min_rate(mut self, rate: f64) -> Self {
        self.min_rate = rate;
        self
    }
}

/// A learning-rate schedule: what it computes and when it advances.
///
/// ```
/// use firebrand_core::Schedule;
///
/// // 100 updates of warm-up, then half a cosine down to nothing at update 1000.
/// let schedule = Schedule::warmup_cosine(100, 1000);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Schedule {
    kind: ScheduleKind,
    interval: Interval,
    frequency: u64,
}

impl Schedule {
    fn of(kind: ScheduleKind, interval: Interval) -> Self {
        Self {
            kind,
            interval,
            frequency: 1,
        }
    }

    /// A factor of the learning rate as a function of the number of updates so far, as PyTorch's `LambdaLR`.
    pub fn factor(function: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(ScheduleKind::Factor(Arc::new(function)), Interval::Step)
    }

    /// Linear warm-up over `warmup` updates, then half a cosine from the full rate to nothing at update `total`, and nothing
    /// after that.
    ///
    /// With `n` updates done the factor is `(n + 1) / (warmup + 1)` during the warm-up, then
    /// `(1 + cos(π · (n − warmup) / (total − warmup))) / 2`.
    pub fn warmup_cosine(warmup: u64, total: u64) -> Self {
        Self::warmup_cosine_to(warmup, total, 0.0)
    }

    /// As [`warmup_cosine`](Self::warmup_cosine), down to `floor` times the learning rate.
    pub fn warmup_cosine_to(warmup: u64, total: u64, floor: f64) -> Self {
        Self::factor(move |n| {
            if n < warmup {
                return (n + 1) as f64 / (warmup + 1) as f64;
            }
            let length = total.saturating_sub(warmup).max(1) as f64;
            let progress = ((n - warmup) as f64 / length).min(1.0);
            floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
        })
    }

    /// Linear warm-up over `warmup` updates, then the full rate: `(n + 1) / (warmup + 1)` with `n` updates done.
    pub fn linear_warmup(warmup: u64) -> Self {
        Self::factor(move |n| {
            if n < warmup {
                (n + 1) as f64 / (warmup + 1) as f64
            } else {
                1.0
            }
        })
    }

    /// One of Burn's schedulers: what `CosineAnnealingLrSchedulerConfig::new(..).init()?` and its like give.
    ///
    /// It gives the rate itself, so the learning rate of the optimizer is used for nothing but parameter groups: a group
    /// with another rate keeps its proportion to it.
    pub fn burn(scheduler: impl Into<ModuleLrScheduler>) -> Self {
        Self::of(ScheduleKind::Burn(scheduler.into()), Interval::Step)
    }

    /// Lower the rate when a metric no longer improves; checked at the end of every epoch.
    pub fn reduce_on_plateau(config: PlateauConfig) -> Self {
        Self::of(ScheduleKind::Plateau(config), Interval::Epoch)
    }

    /// Advance at the end of every epoch instead of after every update.
    pub fn per_epoch(mut self) -> Self {
        self.interval = Interval::Epoch;
        self
    }

    /// Advance only every `frequency`th time; default 1.
    pub fn every(mut self, frequency: u64) -> Self {
        self.frequency = frequency;
        self
    }

    /// What is computed.
    pub fn kind(&self) -> &ScheduleKind {
        &self.kind
    }

    /// When it advances.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// It advances every `frequency`th time.
    pub fn frequency(&self) -> u64 {
        self.frequency
    }
}

impl From<ModuleLrScheduler> for Schedule {
    fn from(scheduler: ModuleLrScheduler) -> Self {
        Self::burn(scheduler)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            ScheduleKind::Factor(_) => "factor",
            ScheduleKind::Burn(_) => "Burn's",
            ScheduleKind::Plateau(_) => "plateau",
        };
        write!(
            f,
            "Schedule({kind}, {:?}, every {})",
            self.interval, self.frequency
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_cosine_rises_falls_and_stays_down() {
        let schedule = Schedule::warmup_cosine_to(4, 12, 0.1);
        let ScheduleKind::Factor(factor) = schedule.kind() else {
            panic!("a factor")
        };
        assert_eq!(factor(0), 0.2);
        assert_eq!(factor(3), 0.8);
        assert_eq!(factor(4), 1.0);
        assert!((factor(8) - 0.55).abs() < 1e-12);
        assert!((factor(12) - 0.1).abs() < 1e-12);
        assert_eq!(factor(1000), factor(12));
    }
}
