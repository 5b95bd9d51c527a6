//! What a module asks of its optimizers and schedules: data only, carried out by the strategy crate.

mod adam;
mod exact;
mod schedule;
mod setup;

pub use adam::{AdamRule, AdamWeightDecay};
pub(crate) use exact::ExactOptimizer;
pub use schedule::{Interval, PlateauConfig, Schedule, ScheduleKind};
pub use setup::{FitInfo, GroupSetup, IntoOptimizer, OptimizerSetup, SingleSetup};
