//! PyTorch-Lightning-style training for [Burn](https://burn.dev): implement [`LightningModule`], call [`Trainer::fit`].
//!
//! This crate only re-exports: contracts from `firebrand-core`, the engine from `firebrand-strategy`, and the
//! [`Trainer`] with its loops from `firebrand-trainer`.

/// Process groups and the rendezvous store, for communication of a program's own.
pub use firebrand_collective as collective;
/// Where derived code finds the contracts.
#[doc(hidden)]
pub use firebrand_core as __core;
pub use firebrand_core::*;
pub use firebrand_derive::Batch;
/// Who a process is among the ranks, and how they come together without a trainer.
pub use firebrand_launch as launch;
/// The few layers that Burn's cannot be: batch norm over ranks, attention whose softmax is float32.
pub use firebrand_nn as nn;
pub use firebrand_strategy as strategy;
pub use firebrand_strategy::{
    GradientClip, GradientCompression, LossScaler, LossScalerOptions, NonFinite, Precision,
};
#[cfg(feature = "cli")]
pub use firebrand_trainer::TrainerArgs;
pub use firebrand_trainer::{
    Accelerator, AcceleratorError, Error, Evaluated, FitReport, Fitted, Launcher, Limit, Predictions,
    Strategy, Trainer, TrainerBuilder, TrainerConfig, UnevenInputs, ValCheckInterval, callbacks, checkpoint,
    data, format_duration, load_from_checkpoint, loggers, metrics, parse_duration, profiler, progress, run,
    weights_of, with_weights,
};

/// What most programs use: `use firebrand::prelude::*;`.
pub mod prelude {
    #[cfg(feature = "cli")]
    pub use crate::TrainerArgs;
    pub use crate::callbacks::*;
    pub use crate::data::{Collate, Data, DataLoader, DataModule};
    pub use crate::loggers::{CsvLogger, JsonLinesLogger, TensorBoardLogger};
    pub use crate::metrics::{Accuracy, accuracy};
    pub use crate::{
        Accelerator, Batch, FitInfo, GradientClip, Launcher, LightningModule, LogOptions, Metric,
        OptimizerSetup, Precision, Prediction, Result, Schedule, Stage, StepContext, Strategy, Trainer,
        ValCheckInterval,
    };
}

/// The code of the README and of `docs/` compiles and runs.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../../docs/lightning-to-firebrand.md")]
    struct LightningToFirebrand;
    #[doc = include_str!("../../../docs/architecture.md")]
    struct Architecture;
    #[doc = include_str!("../../../docs/training-semantics.md")]
    struct TrainingSemantics;
    #[doc = include_str!("../../../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../../../docs/backends.md")]
    struct Backends;
    #[doc = include_str!("../../../docs/mixed-precision.md")]
    struct MixedPrecision;
    #[doc = include_str!("../../../docs/data-parallel.md")]
    struct DataParallel;
}
