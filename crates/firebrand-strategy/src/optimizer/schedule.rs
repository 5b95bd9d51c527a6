use firebrand_core::{Interval, PlateauConfig, Schedule, ScheduleKind};
use serde::{Deserialize, Serialize};

/// A schedule and where it stands.
pub(super) struct ScheduleRuntime {
    schedule: Schedule,
    position: Position,
    /// The rate of one of Burn's schedulers at the position.
    burn_rate: f64,
    burn: Option<burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler>,
}

/// Where a schedule stands: what a checkpoint keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Position {
    /// How often its interval passed.
    passed: u64,
    /// How often it advanced: every `frequency`th time.
    advances: u64,
    /// Of a plateau: the bits of the factor so far and of the best value, which may be infinite.
    factor_bits: Option<u64>,
    best_bits: Option<u64>,
    bad_checks: u64,
    cooldown: u64,
}

impl ScheduleRuntime {
    pub(super) fn new(schedule: &Schedule) -> Self {
        let mut runtime = Self {
            schedule: schedule.clone(),
            position: Position::default(),
            burn_rate: 0.0,
            burn: None,
        };
        runtime.restore(Position::default());
        runtime
    }

    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// Goes to a position. One of Burn's schedulers starts anew and takes as many steps as it had taken: it has no getter, and
    /// a record of it that lacks an entry would restart it silently.
    pub(super) fn restore(&mut self, position: Position) {
        if let ScheduleKind::Burn(fresh) = self.schedule.kind() {
            let mut scheduler = fresh.clone();
            for _ in 0..=position.advances {
                self.burn_rate = scheduler.step().base();
            }
            self.burn = Some(scheduler);
        }
        self.position = position;
    }

    /// The rate at the position.
    pub(super) fn rate(&self, base: f64) -> f64 {
        match self.schedule.kind() {
            ScheduleKind::Factor(factor) => base * factor(self.position.advances),
            ScheduleKind::Burn(_) => self.burn_rate,
            ScheduleKind::Plateau(config) => {
                let factor = self.position.factor_bits.map_or(1.0, f64::from_bits);
                (base * factor).max(config.min_rate.min(base))
            }
            _ => base,
        }
    }

    /// The rate at the position of parameters whose own rate is `group` where the optimizer's is `base`.
    pub(super) fn group_rate(&self, group: f64, base: f64) -> f64 {
        match self.schedule.kind() {
            ScheduleKind::Burn(_) => self.burn_rate * (group / base),
            _ => self.rate(group),
        }
    }

    pub(super) fn advance(&mut self, interval: Interval) {
        if interval != self.schedule.interval() {
            return;
        }
        self.position.passed += 1;
        if self
            .position
            .passed
            .is_multiple_of(self.schedule.frequency().max(1))
        {
            self.position.advances += 1;
            if let Some(scheduler) = &mut self.burn {
                self.burn_rate = scheduler.step().base();
            }
        }
    }

    /// Lets a plateau look at its metric; the name of the metric if it was not logged.
    pub(super) fn observe(&mut self, metrics: &dyn Fn(&str) -> Option<f64>) -> Result<(), String> {
        let ScheduleKind::Plateau(config) = self.schedule.kind() else {
            return Ok(());
        };
        if !(self.position.passed + 1).is_multiple_of(self.schedule.frequency().max(1)) {
            return Ok(());
        }
        let value = metrics(&config.monitor).ok_or_else(|| config.monitor.clone())?;
        self.position.check(config, value);
        Ok(())
    }
}

impl Position {
    /// One check of a plateau, as PyTorch's `ReduceLROnPlateau` with a relative threshold; not-a-number is no improvement.
    ///
    /// PyTorch takes the threshold of a negative best value on the wrong side, so that a slightly worse value counts as better;
    /// here it is on the right one.
    fn check(&mut self, config: &PlateauConfig, value: f64) {
        let best = self.best_bits.map(f64::from_bits);
        let better = if config.larger_is_better {
            let best = best.unwrap_or(f64::NEG_INFINITY);
            value > best * (1.0 + config.threshold.copysign(best))
        } else {
            let best = best.unwrap_or(f64::INFINITY);
            value < best * (1.0 - config.threshold.copysign(best))
        };
        if better {
            self.best_bits = Some(value.to_bits());
            self.bad_checks = 0;
        } else {
            self.bad_checks += 1;
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.bad_checks = 0;
        }
        if self.bad_checks > config.patience {
            let factor = self.factor_bits.map_or(1.0, f64::from_bits) * config.factor;
            self.factor_bits = Some(factor.to_bits());
            self.cooldown = config.cooldown;
            self.bad_checks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;

    fn cosine() -> Schedule {
        Schedule::burn(CosineAnnealingLrSchedulerConfig::new(0.5, 10).init().unwrap())
    }

    #[test]
    fn a_burn_scheduler_gives_its_first_rate_first_and_resumes_in_step() {
        let mut reference = CosineAnnealingLrSchedulerConfig::new(0.5, 10).init().unwrap();
        let mut runtime = ScheduleRuntime::new(&cosine());
        for _ in 0..8 {
            assert_eq!(runtime.rate(9.0), reference.step().base());
            let mut resumed = ScheduleRuntime::new(&cosine());
            resumed.restore(runtime.position().clone());
            assert_eq!(resumed.rate(9.0), runtime.rate(9.0));
            resumed.advance(Interval::Step);
            runtime.advance(Interval::Epoch); // Not its interval.
            runtime.advance(Interval::Step);
            assert_eq!(resumed.rate(9.0), runtime.rate(9.0));
        }
    }

    #[test]
    fn a_position_is_exact_in_json() {
        let mut position = Position::default();
        for value in [0.1 + 0.2, f64::INFINITY, f64::MIN_POSITIVE] {
            position.check(&PlateauConfig::new("loss").larger_is_better(), value);
            let text = serde_json::to_string(&position).unwrap();
            assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
        }
    }

    #[test]
    fn frequency_holds_the_rate() {
        let mut runtime = ScheduleRuntime::new(&Schedule::factor(|n| 1.0 / (n + 1) as f64).every(3));
        let rates: Vec<f64> = (0..7)
            .map(|_| {
                let rate = runtime.rate(6.0);
                runtime.advance(Interval::Step);
                rate
            })
            .collect();
        assert_eq!(rates, [6.0, 6.0, 6.0, 3.0, 3.0, 3.0, 2.0]);
    }

    /// Checks a plateau with the base rate 1 against literal rates of PyTorch 2.9.0's `ReduceLROnPlateau` on the same values.
    fn assert_plateau(config: PlateauConfig, values: &[f64], expected: &[f64]) {
        let schedule = Schedule::reduce_on_plateau(config);
        let mut runtime = ScheduleRuntime::new(&schedule);
        for (number, (value, expected)) in values.iter().zip(expected).enumerate() {
            // A resumed one goes on from any check.
            let position = serde_json::to_string(runtime.position()).unwrap();
            runtime = ScheduleRuntime::new(&schedule);
            runtime.restore(serde_json::from_str(&position).unwrap());
            runtime
                .observe(&|name| (name == "loss").then_some(*value))
                .unwrap();
            runtime.advance(Interval::Epoch);
            let rate = runtime.rate(1.0);
            assert!(
                (rate - expected).abs() < 1e-15,
                "{rate} after {value}, number {number}"
            );
        }
    }

    #[test]
    fn plateau_follows_pytorch() {
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        let config = || PlateauConfig::new("loss");
        assert_plateau(
            config().factor(0.5).patience(1).cooldown(1),
            &[1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.5, 0.5, NAN, 0.5],
            &[1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125],
        );
        assert_plateau(
            config().factor(0.5).patience(2).min_rate(0.2),
            &[1.0, 0.99995, 0.9998, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            &[1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2],
        );
        assert_plateau(
            config().larger_is_better().patience(1).cooldown(2).threshold(0.1),
            &[0.5, 0.4, 0.6, 0.6, 0.6, 0.7, 0.1, 0.1, 0.1, 0.1],
            &[1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01],
        );
        assert_plateau(
            config().factor(0.5).patience(0),
            &[INF, INF, NAN, 3.0, INF, 2.0],
            &[0.5, 0.25, 0.125, 0.125, 0.0625, 0.0625],
        );
        assert_plateau(config(), &[1.0; 13], &[&[1.0; 11][..], &[0.1; 2]].concat());
    }

    /// PyTorch would take -0.99995 for an improvement of -1.
    #[test]
    fn plateau_takes_the_threshold_of_negative_values_on_the_right_side() {
        let config = || PlateauConfig::new("loss").factor(0.5).patience(0);
        assert_plateau(
            config(),
            &[-1.0, -0.99995, -1.00005, -1.1],
            &[1.0, 0.5, 0.25, 0.25],
        );
        let larger = config().larger_is_better();
        assert_plateau(larger, &[-1.0, -1.00005, -0.99995, -0.9], &[1.0, 0.5, 0.25, 0.25]);
    }

    #[test]
    fn a_plateau_below_its_minimum_stays_there() {
        let config = PlateauConfig::new("loss").factor(0.5).patience(0).min_rate(0.1);
        let mut runtime = ScheduleRuntime::new(&Schedule::reduce_on_plateau(config));
        runtime.observe(&|_| Some(f64::NAN)).unwrap();
        assert_eq!(runtime.rate(0.01), 0.01);
    }

    #[test]
    fn a_metric_that_was_not_logged_is_named_and_only_when_it_is_due() {
        let schedule = Schedule::reduce_on_plateau(PlateauConfig::new("loss")).every(2);
        let mut runtime = ScheduleRuntime::new(&schedule);
        assert_eq!(runtime.observe(&|_| None), Ok(()));
        runtime.advance(Interval::Epoch);
        assert_eq!(runtime.observe(&|_| None), Err("loss".to_owned()));
    }

    #[test]
    fn groups_keep_their_proportion() {
        let halves = ScheduleRuntime::new(&Schedule::factor(|_| 0.5));
        assert_eq!(halves.group_rate(3e-3, 3e-4), 1.5e-3);
        assert_eq!(ScheduleRuntime::new(&cosine()).group_rate(1.0, 0.25), 2.0);
    }
}
