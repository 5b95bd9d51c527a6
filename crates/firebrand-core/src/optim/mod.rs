//! What a module asks of its optimizers and schedules: data only, carried out by the strategy crate.

mod schedule;
mod setup;

pub use schedule::{Interval, PlateauConfig, Schedule, ScheduleKind};
pub use setup::{FitInfo, GroupSetup, IntoOptimizer, OptimizerSetup, SingleSetup};
