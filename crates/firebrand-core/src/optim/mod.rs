//! What a module asks of its optimizers and schedules: data only, carried out by the strategy crate.

mod exact;
mod schedule;
mod setup;

pub(crate) use exact::ExactOptimizer;
pub use schedule::{Interval, PlateauConfig, Schedule, ScheduleKind};
pub use setup::{FitInfo, GroupSetup, IntoOptimizer, OptimizerSetup, SingleSetup};
