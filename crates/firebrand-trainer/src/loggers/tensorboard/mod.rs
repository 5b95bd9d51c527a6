//! Scalars, histograms and hyper-parameters as event files that TensorBoard shows.

mod event_file;
mod histogram;
mod hparams;
mod logger;

pub use logger::TensorBoardLogger;
