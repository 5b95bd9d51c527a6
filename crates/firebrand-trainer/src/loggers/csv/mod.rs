//! The rows of a run as comma-separated values.

mod logger;
mod table;

pub use logger::CsvLogger;
