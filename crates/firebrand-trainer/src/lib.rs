//! The [`Trainer`] and everything around its loops: `Trainer::builder().build()?.fit(module, data)? → Fitted`.

mod builder;
pub mod callbacks;
pub mod checkpoint;
mod config;
pub mod data;
mod error;
mod fit;
pub mod loggers;
mod logging;
pub mod metrics;
pub mod profiler;
pub mod progress;
mod run;
mod signals;
mod trainer;

pub use builder::TrainerBuilder;
pub use config::{Accelerator, Limit, TrainerConfig, ValCheckInterval, format_duration, parse_duration};
pub use error::Error;
pub use fit::{Evaluated, FitReport, Fitted, Predictions};
pub use trainer::{Trainer, load_from_checkpoint};
