//! The [`Trainer`] and everything around its loops: `Trainer::builder().build()?.fit(module, data)? → Fitted`.

mod accelerator;
#[cfg(feature = "cli")]
mod args;
mod builder;
pub mod callbacks;
pub mod checkpoint;
mod config;
pub mod data;
mod error;
mod exit;
mod fit;
pub mod loggers;
mod logging;
pub mod metrics;
mod options;
pub mod profiler;
pub mod progress;
mod run;
mod signals;
mod team;
mod trainer;
mod weights;
mod world;

pub use accelerator::{Accelerator, AcceleratorError};
#[cfg(feature = "cli")]
pub use args::TrainerArgs;
pub use builder::TrainerBuilder;
pub use config::TrainerConfig;
pub use error::Error;
pub use exit::run;
pub use fit::{Evaluated, FitReport, Fitted, Predictions};
pub use options::{
    Launcher, Limit, Strategy, UnevenInputs, ValCheckInterval, format_duration, parse_duration,
};
pub use trainer::Trainer;
pub use weights::{load_from_checkpoint, weights_of, with_weights};
