//! Burn's per-parameter optimizers with their states by path, and the learning-rate schedules that drive them.

mod fused_adam;
mod schedule;
mod state;
mod step;

use std::sync::Arc;

use burn::optim::{DynOptimizer, DynState};
use firebrand_core::{
    AdamRule, AnyTensor, ErasedModule, Interval, OptimizerSetup, ParamTable, ScheduleKind, SingleSetup,
};

use crate::{Error, Gradient};
use schedule::ScheduleRuntime;
use step::Step;

/// The learning rate of one optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningRate {
    /// The name of the optimizer.
    pub optimizer: String,
    /// The rate that the next update uses.
    pub rate: f64,
}

/// One optimizer and its schedule.
struct Single {
    name: String,
    base_rate: f64,
    rate: f64,
    schedule: Option<ScheduleRuntime>,
}

/// What updates one parameter.
struct Slot {
    path: String,
    optimizer: usize,
    update: Arc<dyn DynOptimizer>,
    /// The rule of the update, if it may be done in one pass.
    adam: Option<AdamRule>,
    /// The learning rate of the parameter's group, if it differs from the optimizer's.
    group_rate: Option<f64>,
    state: Option<DynState>,
    rank: usize,
}

/// Every optimizer of a module, with the state of each parameter under the parameter's path.
///
/// Bit-equal to Burn's `ModuleOptimizer`, and unlike it restorable in another process and blind to parameters that it does not
/// train.
pub struct Optimizers {
    optimizers: Vec<Single>,
    slots: Vec<Option<Slot>>,
}

impl Optimizers {
    /// Assigns the parameters of the table to optimizers.
    ///
    /// # Errors
    ///
    /// [`Error::Optimizer`] for a rate that is negative or not finite, parameters of two optimizers, equal names, and what
    /// Burn's configuration cannot honour; unknown paths as [`firebrand_core::Error::UnknownParameter`].
    pub fn new(setup: &OptimizerSetup, table: &ParamTable) -> Result<Self, Error> {
        let mut optimizers: Vec<Single> = Vec::new();
        let mut slots: Vec<Option<Slot>> = table.entries().iter().map(|_| None).collect();
        for (number, single) in setup.optimizers().iter().enumerate() {
            check(single, &optimizers)?;
            let owned = claimed(single, number, setup, table)?;
            for index in owned.iter().copied() {
                let Some(entry) = table.get(index) else { continue };
                let slot = slots
                    .get_mut(index)
                    .ok_or_else(|| Error::optimizer("a parameter index is out of range"))?;
                if let Some(Slot { optimizer, .. }) = slot {
                    let other = &optimizers[*optimizer];
                    return Err(Error::optimizer(format!(
                        "'{}' is trained by two optimizers, '{}' and '{}'; narrow their `parameters`",
                        entry.path, other.name, single.name
                    )));
                }
                let (mut update, mut adam) = (Arc::clone(&single.optimizer), single.adam);
                let mut group_rate = None;
                for group in single
                    .groups
                    .iter()
                    .filter(|group| group.parameters.matches(&entry.path))
                {
                    if let Some(optimizer) = &group.optimizer {
                        (update, adam) = (Arc::clone(optimizer), group.adam);
                    }
                    group_rate = group.learning_rate.or(group_rate);
                }
                *slot = Some(Slot {
                    path: entry.path.clone(),
                    optimizer: number,
                    update,
                    adam,
                    group_rate,
                    state: None,
                    rank: entry.shape.num_dims(),
                });
            }
            for group in &single.groups {
                let matching = table.matching(&group.parameters)?;
                if !matching.iter().any(|index| owned.contains(index)) {
                    return Err(Error::optimizer(format!(
                        "the group '{}' of '{}' holds none of its parameters",
                        group.parameters, single.name
                    )));
                }
            }
            let schedule = single.schedule.as_ref().map(ScheduleRuntime::new);
            let mut single = Single {
                name: single.name.clone(),
                base_rate: single.learning_rate,
                rate: single.learning_rate,
                schedule,
            };
            single.refresh_rate();
            optimizers.push(single);
        }
        Ok(Self { optimizers, slots })
    }

    /// The number of optimizers.
    pub fn len(&self) -> usize {
        self.optimizers.len()
    }

    /// Whether there is none, which a setup never gives.
    pub fn is_empty(&self) -> bool {
        self.optimizers.is_empty()
    }

    /// The position of the optimizer with a name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.optimizers
            .iter()
            .position(|optimizer| optimizer.name == name)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.optimizers.iter().map(|optimizer| optimizer.name.as_str())
    }

    /// Which optimizer trains the parameter with an index.
    pub fn optimizer_of(&self, parameter: usize) -> Option<usize> {
        self.slots.get(parameter)?.as_ref().map(|slot| slot.optimizer)
    }

    /// The rates that the next update uses.
    pub fn learning_rates(&self) -> Vec<LearningRate> {
        self.optimizers
            .iter()
            .map(|optimizer| LearningRate {
                optimizer: optimizer.name.clone(),
                rate: optimizer.rate,
            })
            .collect()
    }

    /// Checks that no parameter was forgotten; `trained` says which entries of the table are to be trained.
    ///
    /// # Errors
    ///
    /// [`Error::Optimizer`] with the paths that are trained and have no optimizer.
    pub(crate) fn check_all_claimed(&self, table: &ParamTable, trained: &[bool]) -> Result<(), Error> {
        const SHOWN: usize = 4;
        let forgotten: Vec<&str> = table
            .parameters()
            .filter(|(index, entry)| {
                trained.get(*index).copied().unwrap_or_default()
                    && self.optimizer_of(entry.tied_to.unwrap_or(*index)).is_none()
            })
            .map(|(_, entry)| entry.path.as_str())
            .collect();
        if forgotten.is_empty() {
            return Ok(());
        }
        let mut paths = forgotten
            .iter()
            .take(SHOWN)
            .map(|path| format!("'{path}'"))
            .collect::<Vec<_>>()
            .join(", ");
        if forgotten.len() > SHOWN {
            paths.push_str(&format!(" and {} more", forgotten.len() - SHOWN));
        }
        Err(Error::optimizer(format!(
            "no optimizer trains {paths}; add them to the `parameters` of one, or freeze them in the module with `.no_grad()`"
        )))
    }

    /// Updates the parameters that have a gradient. A tied parameter takes the value of the first of its set.
    pub fn step(&mut self, module: &mut dyn ErasedModule, table: &ParamTable, gradients: Vec<Gradient>) {
        let mut by_index: Vec<Option<AnyTensor>> = table.entries().iter().map(|_| None).collect();
        for gradient in gradients {
            if let Some(place) = by_index.get_mut(gradient.parameter) {
                *place = Some(gradient.value);
            }
        }
        let has_ties = table.entries().iter().any(|entry| entry.tied_to.is_some());
        let updated = by_index.iter().map(|_| None).collect();
        module.map_params(&mut Step {
            table,
            slots: &mut self.slots,
            optimizers: &self.optimizers,
            gradients: by_index,
            has_ties,
            updated,
        });
    }

    /// Advances the schedules of the optimizers that made an update.
    pub fn advance_step(&mut self, stepped: impl Fn(usize) -> bool) {
        for (_, optimizer) in self
            .optimizers
            .iter_mut()
            .enumerate()
            .filter(|(number, _)| stepped(*number))
        {
            optimizer.advance(Interval::Step);
        }
    }

    /// Advances what advances per epoch; a plateau looks at the metrics that were logged.
    ///
    /// # Errors
    ///
    /// [`Error::MissingMetric`] if a plateau's metric was not logged.
    pub fn advance_epoch(
        &mut self,
        metrics: &dyn Fn(&str) -> Option<f64>,
        logged: &[String],
    ) -> Result<(), Error> {
        for optimizer in &mut self.optimizers {
            if let Some(schedule) = &mut optimizer.schedule {
                schedule
                    .observe(metrics)
                    .map_err(|monitor| Error::MissingMetric {
                        optimizer: optimizer.name.clone(),
                        monitor,
                        logged: if logged.is_empty() {
                            "nothing".to_owned()
                        } else {
                            logged.join(", ")
                        },
                    })?;
            }
            optimizer.advance(Interval::Epoch);
        }
        Ok(())
    }
}

impl Single {
    fn advance(&mut self, interval: Interval) {
        if let Some(schedule) = &mut self.schedule {
            schedule.advance(interval);
            self.refresh_rate();
        }
    }

    fn refresh_rate(&mut self) {
        if let Some(schedule) = &self.schedule {
            self.rate = schedule.rate(self.base_rate);
        }
    }

    /// The rate of a group for the next update.
    fn group_rate(&self, group: Option<f64>) -> f64 {
        match (group, &self.schedule) {
            (None, _) => self.rate,
            (Some(rate), None) => rate,
            (Some(rate), Some(schedule)) => schedule.group_rate(rate, self.base_rate),
        }
    }
}

/// Checks what can be wrong with one optimizer by itself.
fn check(single: &SingleSetup, known: &[Single]) -> Result<(), Error> {
    if let Some(problem) = &single.problem {
        return Err(Error::optimizer(problem.clone()));
    }
    if known.iter().any(|other| other.name == single.name) {
        return Err(Error::optimizer(format!(
            "two optimizers are named '{}'; give each its own name with `.named(\"..\")`",
            single.name
        )));
    }
    let rates = single
        .groups
        .iter()
        .filter_map(|group| group.learning_rate)
        .chain([single.learning_rate]);
    if let Some(rate) = rates.into_iter().find(|rate| !rate.is_finite() || *rate < 0.0) {
        return Err(Error::optimizer(format!(
            "the learning rate of '{}' is {rate}; it must be a finite number of at least 0",
            single.name
        )));
    }
    let gives_rate = single
        .schedule
        .as_ref()
        .is_some_and(|schedule| matches!(schedule.kind(), ScheduleKind::Burn(_)));
    let has_rates = single.groups.iter().any(|group| group.learning_rate.is_some());
    if gives_rate && has_rates && single.learning_rate == 0.0 {
        return Err(Error::optimizer(format!(
            "'{}' has the learning rate 0, so that its group rates are in no proportion to the rate that Burn's scheduler \
             gives; set the rate to the scheduler's",
            single.name
        )));
    }
    Ok(())
}

/// The parameters of an optimizer: those it names, or else all that no other names. Tied ones go by the first of their set.
fn claimed(
    single: &SingleSetup,
    number: usize,
    setup: &OptimizerSetup,
    table: &ParamTable,
) -> Result<Vec<usize>, Error> {
    let canonical = |index: &usize| table.get(*index).is_some_and(|entry| entry.tied_to.is_none());
    if !single.parameters.is_empty() {
        let mut found = Vec::new();
        for pattern in &single.parameters {
            found.extend(table.matching(pattern)?.into_iter().filter(canonical));
        }
        found.sort_unstable();
        found.dedup();
        return Ok(found);
    }
    let named_elsewhere = |path: &str| {
        let others = setup
            .optimizers()
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != number);
        others
            .flat_map(|(_, other)| &other.parameters)
            .any(|pattern| pattern.matches(path))
    };
    let rest = table
        .parameters()
        .filter(|(_, entry)| !named_elsewhere(&entry.path))
        .map(|(index, _)| index);
    Ok(rest.filter(|index| canonical(index)).collect())
}
