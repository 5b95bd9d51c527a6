//! From what steps log to what loggers get: when a value is due, and how values become one.

mod accumulator;
mod names;
mod over_ranks;
mod scalars;
mod step_values;
mod sums;

pub(crate) use accumulator::{Accumulators, SavedAccumulators};
pub(crate) use names::{epoch_name, shown_on_bar, step_name};
pub(crate) use scalars::read_scalars;
pub(crate) use step_values::StepValues;
