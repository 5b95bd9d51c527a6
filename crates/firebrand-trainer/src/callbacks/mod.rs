//! Parts that look on while the trainer runs, and ask it for things with typed commands.

mod callback;
mod early_stopping;
mod ema_weights;
mod error;
#[cfg(test)]
mod fit_tests;
mod gradient_accumulation_scheduler;
mod gradient_norm_monitor;
mod lambda;
mod learning_rate_monitor;
mod model_checkpoint;
mod model_summary;
mod monitor;
mod state;
mod summary_table;
#[cfg(test)]
mod test_fixture;
mod timer;
mod unfreeze;
mod weight_histograms;

pub use callback::{Callback, CheckpointRequest, Commands, View};
pub use early_stopping::EarlyStopping;
pub use ema_weights::EmaWeights;
pub use error::CallbackError;
pub use gradient_accumulation_scheduler::GradientAccumulationScheduler;
pub use gradient_norm_monitor::GradientNormMonitor;
pub use lambda::Lambda;
pub use learning_rate_monitor::LearningRateMonitor;
pub use model_checkpoint::{ModelCheckpoint, TopK};
pub use model_summary::ModelSummary;
pub use monitor::Mode;
pub use summary_table::{SummaryDepth, summary_table};
pub use timer::Timer;
pub use unfreeze::Unfreeze;
pub use weight_histograms::WeightHistograms;
