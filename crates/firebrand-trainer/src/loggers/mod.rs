//! Where the values of a run are written: the run's directory and the loggers that write into it.

mod append_file;
mod csv;
mod error;
mod hparams;
mod json_lines;
mod logger;
mod logger_set;
mod pending_row;
mod replace;
mod run_directory;
mod tensorboard;

pub use csv::CsvLogger;
pub use error::LoggerError;
pub use hparams::{HPARAMS_FILE_NAME, write_hparams};
pub use json_lines::JsonLinesLogger;
use logger::format_value;
pub use logger::{LogRow, Logger};
pub use logger_set::{LoggerFailure, Loggers};
pub use run_directory::RunDirectory;
pub use tensorboard::TensorBoardLogger;

#[cfg(test)]
mod resume_tests;
