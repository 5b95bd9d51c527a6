//! The optimizer-step engine, and the strategies that plug into it: `gradients → sink → reduce → clip → optimizer → schedule`.
//!
//! [`Engine`] does an optimizer step for every strategy. It maps the module so that every parameter goes through a
//! [parameter-use node](parameter_use), runs the user's step on that twin, and back-propagates; each gradient arrives in a
//! [`GradientSink`] when it is complete. A strategy is a sink and what it does when the last gradient is in.

mod clip;
mod engine;
mod error;
mod gradients;
mod optimizer;
mod parameter_use;
mod prepare;
mod single_device;

pub use clip::GradientClip;
pub use engine::{Engine, EngineOptions, EngineState, Manual, MicroBatch, NonFinite, Update};
pub use error::Error;
pub use gradients::{Gradient, GradientExchange, GradientSink};
pub use optimizer::{LearningRate, Optimizers};
pub use parameter_use::{Turns, parameter_use};
pub use prepare::{Precision, PrepareOptions, prepare_parameters};
pub use single_device::SingleDevice;
