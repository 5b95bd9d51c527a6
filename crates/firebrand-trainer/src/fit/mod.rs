//! The loops: one over epochs and batches to fit, one over batches to evaluate, one to predict.

mod agreement;
mod checkpointing;
mod counters;
mod evaluate;
mod events;
mod fit_loop;
mod limits;
mod predict;
mod report;
mod restore;
mod save;
mod train_batch;
mod unite;
mod validate;
mod validation_schedule;

pub(crate) use evaluate::{Evaluation, evaluation_module, in_compute_dtype};
pub(crate) use events::Events;
pub(crate) use fit_loop::{FitLoop, FitParts};
pub use predict::Predictions;
pub use report::{Evaluated, FitReport, Fitted};
pub(crate) use restore::load_weights;
pub(crate) use save::weights_of;
