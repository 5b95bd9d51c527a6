use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrand_collective::ProcessGroup;

use crate::{ErasedMetric, Metric};

/// What a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// `training_step`.
    Train,
    /// `validation_step`.
    Validate,
    /// `test_step`.
    Test,
    /// `predict_step`.
    Predict,
}

impl Stage {
    /// The word for it: `train`, `validate`, `test`, `predict`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Validate => "validate",
            Self::Test => "test",
            Self::Predict => "predict",
        }
    }
}

/// Where in a run a step stands.
#[derive(Clone, Debug)]
pub struct StepInfo {
    /// What the step belongs to.
    pub stage: Stage,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The number of optimizer updates so far.
    pub global_step: u64,
    /// The index of the micro-batch in its epoch or evaluation, from 0.
    pub batch_index: u64,
    /// The index of the data loader, from 0; more than one only in evaluation.
    pub loader_index: usize,
    /// The optimizer that the step's loss is for, from 0; more than one only for modules with several.
    pub optimizer_index: usize,
    /// The rank of this process among all, from 0.
    pub global_rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// The group of all ranks; `None` where there is one.
    pub group: Option<Arc<dyn ProcessGroup>>,
    /// The device on which the step runs.
    pub device: Device,
    /// The dtype in which the step computes.
    pub compute_dtype: FloatDType,
}

/// How the values of a logged metric become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduce {
    /// The mean, weighted by the number of samples.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// When and how a value is logged. The default is the stage's: in training the step's value, in evaluation the epoch's mean.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct LogOptions {
    /// Log the step's value; default in training.
    pub on_step: Option<bool>,
    /// Log the epoch's value; default in evaluation. With both, the names become `name_step` and `name_epoch`.
    pub on_epoch: Option<bool>,
    /// Show it on the progress bar; default: yes for losses and accuracies of the stage (names that end in `loss` or `acc`).
    pub progress_bar: Option<bool>,
    /// How values become one.
    pub reduce: Reduce,
    /// The weight of the value in a mean; default: the number of samples of the batch.
    pub weight: Option<f64>,
}

impl LogOptions {
    /// The stage's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Log the step's value, or do not.
    pub fn on_step(mut self, on: bool) -> Self {
        self.on_step = Some(on);
        self
    }

    /// Log the epoch's value, or do not.
    pub fn on_epoch(mut self, on: bool) -> Self {
        self.on_epoch = Some(on);
        self
    }

    /// Show the value on the progress bar, or do not.
    pub fn progress_bar(mut self, on: bool) -> Self {
        self.progress_bar = Some(on);
        self
    }

    /// How values become one.
    pub fn reduce(mut self, reduce: Reduce) -> Self {
        self.reduce = reduce;
        self
    }

    /// The weight of the value in a mean, such as a number of tokens.
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = Some(weight);
        self
    }
}

/// A value that was logged and is not read yet.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // A box would be one more allocation for every value that a step logs.
pub enum LogValue {
    /// A number that is on the host.
    Number(f64),
    /// A tensor of one element, without autodiff, still on its device.
    Tensor(Tensor<1>),
    /// The state of a metric.
    Metric(Box<dyn ErasedMetric>),
}

impl Clone for LogValue {
    fn clone(&self) -> Self {
        match self {
            Self::Number(number) => Self::Number(*number),
            Self::Tensor(tensor) => Self::Tensor(tensor.clone()),
            Self::Metric(metric) => Self::Metric(metric.clone_box()),
        }
    }
}

impl From<Tensor<1>> for LogValue {
    fn from(tensor: Tensor<1>) -> Self {
        Self::Tensor(tensor.inner())
    }
}

impl From<&Tensor<1>> for LogValue {
    fn from(tensor: &Tensor<1>) -> Self {
        Self::Tensor(tensor.clone().inner())
    }
}

macro_rules! from_number {
    ($($number:ty),+) => {
        $(impl From<$number> for LogValue {
            fn from(number: $number) -> Self {
                Self::Number(number as f64)
            }
        })+
    };
}

from_number!(f32, f64, i32, i64, u32, u64, usize);

/// One call of [`StepContext::log`].
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The name of the metric.
    pub name: String,
    /// The value.
    pub value: LogValue,
    /// When and how it is logged.
    pub options: LogOptions,
}

/// What a step may ask of the trainer and tell it.
///
/// ```
/// # use firebrand_core::{StepContext, StepInfo, Stage};
/// # use burn::tensor::{Device, Tensor};
/// # let mut step = StepContext::new(StepInfo::first(Stage::Train, Device::flex()));
/// # let loss = Tensor::<1>::ones([1], &Device::flex());
/// step.log("train_loss", &loss);
/// assert_eq!(step.epoch(), 0);
/// ```
#[derive(Debug)]
pub struct StepContext {
    info: StepInfo,
    logs: Vec<LogEntry>,
    loss_weight: Option<f64>,
}

impl StepInfo {
    /// The first step of a stage on one rank: epoch 0, batch 0.
    pub fn first(stage: Stage, device: Device) -> Self {
        Self {
            stage,
            epoch: 0,
            global_step: 0,
            batch_index: 0,
            loader_index: 0,
            optimizer_index: 0,
            global_rank: 0,
            world_size: 1,
            group: None,
            compute_dtype: device.settings().float_dtype,
            device,
        }
    }
}

impl StepContext {
    /// A context for one call of a step; what the trainer does, and a test of a module may do.
    pub fn new(info: StepInfo) -> Self {
        Self {
            info,
            logs: Vec::new(),
            loss_weight: None,
        }
    }

    /// Where in the run the step stands.
    pub fn info(&self) -> &StepInfo {
        &self.info
    }

    /// What the step belongs to.
    pub fn stage(&self) -> Stage {
        self.info.stage
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.info.epoch
    }

    /// The number of optimizer updates so far.
    pub fn global_step(&self) -> u64 {
        self.info.global_step
    }

    /// The index of the micro-batch in its epoch or evaluation, from 0.
    pub fn batch_index(&self) -> u64 {
        self.info.batch_index
    }

    /// The index of the evaluation data loader, from 0.
    pub fn loader_index(&self) -> usize {
        self.info.loader_index
    }

    /// The optimizer that the loss is for, from 0, in the order of `configure_optimizers`.
    pub fn optimizer_index(&self) -> usize {
        self.info.optimizer_index
    }

    /// The device on which the step runs.
    pub fn device(&self) -> &Device {
        &self.info.device
    }

    /// The rank of this process among all.
    pub fn global_rank(&self) -> usize {
        self.info.global_rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.info.world_size
    }

    /// Whether this is the process that writes for all: global rank 0.
    pub fn is_global_zero(&self) -> bool {
        self.info.global_rank == 0
    }

    /// Prints a line on rank 0, so that it appears once.
    pub fn print(&self, text: impl std::fmt::Display) {
        if self.is_global_zero() {
            println!("{text}");
        }
    }

    /// The group of all ranks, for communication of the module's own; `None` where there is one rank. Every rank must call the
    /// same operations in the same order.
    pub fn group(&self) -> Option<&Arc<dyn ProcessGroup>> {
        self.info.group.as_ref()
    }

    /// Logs a value: a tensor of one element, which stays on its device until it is due, or a number.
    pub fn log(&mut self, name: impl Into<String>, value: impl Into<LogValue>) {
        self.log_with(name, value, LogOptions::default());
    }

    /// Logs a value with options.
    pub fn log_with(&mut self, name: impl Into<String>, value: impl Into<LogValue>, options: LogOptions) {
        self.logs.push(LogEntry {
            name: name.into(),
            value: value.into(),
            options,
        });
    }

    /// Logs what this batch adds to a metric; the value is computed over all batches at the end of the epoch.
    pub fn log_metric<M: Metric>(&mut self, name: impl Into<String>, state: M) {
        self.log_with(
            name,
            LogValue::Metric(Box::new(state)),
            LogOptions::new().on_epoch(true).on_step(false),
        );
    }

    /// The tensor in float32, for losses and whatever else overflows in 16 bits; float32 and float64 stay as they are.
    pub fn full_precision<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match tensor.dtype() {
            DType::F16 | DType::BF16 => tensor.cast(FloatDType::F32),
            _ => tensor,
        }
    }

    /// The tensor in the dtype in which the step computes: for the way back from a layer that is kept in full precision.
    pub fn cast<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        if tensor.dtype() == DType::from(self.info.compute_dtype) {
            return tensor;
        }
        tensor.cast(self.info.compute_dtype)
    }

    /// Says that the loss is a mean over `count` items (tokens), so that the update is the mean over the items of all
    /// micro-batches and ranks instead of a mean of means. Default: every micro-batch counts the same.
    ///
    /// A count of zero leaves the micro-batch out.
    pub fn loss_weight(&mut self, count: f64) {
        self.loss_weight = Some(count);
    }

    /// The count of [`loss_weight`](Self::loss_weight), if the step gave one.
    pub fn given_loss_weight(&self) -> Option<f64> {
        self.loss_weight
    }

    /// Takes what was logged since the last call.
    pub fn take_logs(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.logs)
    }
}
