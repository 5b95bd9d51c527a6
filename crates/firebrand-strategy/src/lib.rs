//! The optimizer-step engine, and the strategies that plug into it: `gradients → sink → reduce → clip → optimizer → schedule`.
//!
//! [`Engine`] does an optimizer step for every strategy. It maps the module so that every parameter goes through a
//! [parameter-use node](parameter_use), runs the user's step on that twin, and back-propagates; each gradient arrives in a
//! [`GradientSink`] when it is complete. A strategy is a sink and what it does when the last gradient is in.
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::tensor::{Device, Tensor};
//! use firebrand_core::{
//!     AnyBatch, FitInfo, LightningModule, OptimizerSetup, Result, Stage, StepContext, StepInfo, erase,
//! };
//! use firebrand_strategy::{Engine, EngineOptions, Precision, PrepareOptions, SingleDevice, Update};
//!
//! #[derive(Module, Debug)]
//! struct Line {
//!     linear: Linear,
//! }
//!
//! impl LightningModule for Line {
//!     type Batch = Tensor<2>;
//!
//!     fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
//!         Ok(self.linear.forward(x).powf_scalar(2.0).mean())
//!     }
//!
//!     fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
//!         OptimizerSetup::new(SgdConfig::new(), 0.1)
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let mut module = erase(Line { linear: LinearConfig::new(2, 1).init(&device) });
//! let setup = module.configure_optimizers(&FitInfo::new(None, None, 1));
//! let prepare = PrepareOptions { device: device.clone(), precision: Precision::F32.into(), seed: 1 };
//! let (options, exchange) = (EngineOptions::default(), Box::new(SingleDevice::new()));
//! let mut engine = Engine::new(&mut *module, &setup, &prepare, options, exchange)?;
//!
//! let batch = AnyBatch::new(Tensor::<2>::ones([4, 2], &device));
//! let mut step = StepContext::new(StepInfo::first(Stage::Train, device));
//! engine.micro_batch(&*module, batch, &mut step, true)?;
//! let update = engine.update(&mut *module, 0, &mut |_| Ok(()))?;
//! assert!(matches!(update, Update::Stepped { .. }));
//! # Ok::<(), firebrand_strategy::Error>(())
//! ```

mod clip;
mod ddp;
mod engine;
mod error;
mod gradients;
mod host;
mod optimizer;
mod parameter_use;
mod precision;
mod prepare;
mod single_device;

pub use clip::GradientClip;
pub use ddp::{DataParallel, DdpOptions, GradientCompression, check_alike, replicate};
pub use engine::{Engine, EngineOptions, EngineState, Manual, MicroBatch, NonFinite, Update};
pub use error::Error;
pub use gradients::{Gradient, GradientExchange, GradientSink, GradientSpec, GradientSpecs, Reduced, Share};
pub use optimizer::{LearningRate, Optimizers};
pub use parameter_use::{Turns, parameter_use};
pub use precision::{LossScaler, LossScalerOptions, LossScalerState, Precision, PrecisionPolicy};
pub use prepare::{PrepareOptions, prepare_parameters};
pub use single_device::SingleDevice;
