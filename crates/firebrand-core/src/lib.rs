//! The contracts between a user's module, its data and the trainer: `LightningModule → fit → LightningModule`.
//!
//! Nothing here owns a loop. A [`LightningModule`] says how one batch is trained or evaluated; [`ErasedModule`] is the same
//! without its type, so that loops, strategies and checkpoints are compiled once. What crosses that boundary is free of
//! ranks: a parameter is a path, a shape, a dtype and an [`AnyTensor`]; a batch is an [`AnyBatch`].
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::tensor::{Device, Tensor};
//! use firebrand_core::{FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase};
//!
//! #[derive(Module, Debug)]
//! struct Line {
//!     linear: Linear,
//! }
//!
//! impl LightningModule for Line {
//!     type Batch = (Tensor<2>, Tensor<2>);
//!
//!     fn training_step(&self, (x, y): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
//!         let loss = (self.linear.forward(x) - y).powf_scalar(2.0).mean();
//!         step.log("train_loss", &loss);
//!         Ok(loss)
//!     }
//!
//!     fn configure_optimizers(&self, _fit: &FitInfo) -> OptimizerSetup {
//!         OptimizerSetup::new(SgdConfig::new(), 1e-2)
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let module = erase(Line { linear: LinearConfig::new(1, 1).init(&device) });
//! assert!(module.automatic_optimization());
//! ```

mod batch;
mod context;
mod erased;
mod error;
mod manual;
mod metric;
mod module;
mod optim;
mod params;
mod prediction;

pub use batch::{AnyBatch, Batch, MoveWithAutodiff, check_field};
pub use context::{LogEntry, LogOptions, LogValue, Reduce, Stage, StepContext, StepInfo};
pub use erased::{ErasedModule, downcast_module, erase, restore_type};
pub use error::{BoxError, Error, ErrorChain, Result};
pub use manual::{ManualEngine, ManualOptimization};
pub use metric::{ErasedMetric, Metric};
pub use module::LightningModule;
pub use optim::{
    AdamRule, AdamWeightDecay, FitInfo, GroupSetup, Interval, IntoOptimizer, OptimizerSetup, PlateauConfig,
    Schedule, ScheduleKind, SingleSetup,
};
pub use params::{
    AnyTensor, ParamEntry, ParamInfo, ParamKind, ParamMapper, ParamTable, ParamVisitor, PathPattern,
    SeedStream, assign_path_ids, map_module, on_host, path_id, seed_from, train_params, visit_fields,
    visit_module,
};
pub use prediction::Prediction;
