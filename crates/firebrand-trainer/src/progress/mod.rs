//! What a user sees of a run: bars on a terminal, lines elsewhere, and log messages and panics that tear neither.

mod bars;
mod format;
mod lines;
mod log_output;
mod mode;
mod pace;
mod panics;
mod reporter;
mod stage;
mod standard_output;
mod terminal;

pub use format::{format_metric, results_table};
pub use log_output::init_tracing;
pub use mode::ProgressMode;
pub use reporter::ProgressReporter;
pub use standard_output::print_line;
pub use terminal::suspend;

#[cfg(test)]
mod test_screen;
