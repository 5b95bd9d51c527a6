//! A run that stands still, for tests of callbacks: a tiny module that was taken over, and a view of it.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use firebrand_core::{
    AnyTensor, ErasedModule, FitInfo, LightningModule, OptimizerSetup, ParamInfo, ParamMapper, ParamTable,
    Result, Stage, StepContext, erase,
};
use firebrand_strategy::{LearningRate, Precision, PrepareOptions, Update, prepare_parameters};

use super::{Commands, View};
use crate::TrainerConfig;
use crate::loggers::RunDirectory;

#[derive(Module, Debug)]
pub struct Tiny {
    pub body: Linear,
    pub norm: BatchNorm,
    pub head: Linear,
}

impl Tiny {
    /// How far the output is from the product of the two inputs.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let product = x.clone().slice_dim(1, 0..1) * x.clone().slice_dim(1, 1..2);
        let output = self.head.forward(self.norm.forward(self.body.forward(x)).tanh());
        (output - product).square().mean()
    }
}

impl LightningModule for Tiny {
    type Batch = Tensor<2>;

    fn training_step(&self, x: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
        let loss = self.loss(x);
        step.log("train_loss", &loss);
        Ok(loss)
    }

    fn validation_step(&self, x: Tensor<2>, step: &mut StepContext) -> Result<()> {
        step.log("val_loss", self.loss(x));
        Ok(())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

pub struct Fixture {
    pub config: TrainerConfig,
    pub stage: Stage,
    pub epoch: u64,
    pub global_step: u64,
    pub batches_in_epoch: u64,
    pub metrics: BTreeMap<String, f64>,
    pub learning_rates: Vec<LearningRate>,
    pub module: Box<dyn ErasedModule>,
    pub table: ParamTable,
    pub frozen: Vec<usize>,
    pub update: Option<Update>,
    pub elapsed: Duration,
    pub run: Option<RunDirectory>,
    is_trained: Box<dyn Fn(usize) -> bool>,
    _root: tempfile::TempDir,
}

impl Fixture {
    /// Epoch 0 of ten batches, before the first; the run directory exists.
    pub fn new() -> Self {
        let (module, table) = tiny();
        let root = tempfile::tempdir().unwrap();
        Self {
            config: TrainerConfig::default(),
            stage: Stage::Train,
            epoch: 0,
            global_step: 0,
            batches_in_epoch: 0,
            metrics: BTreeMap::new(),
            learning_rates: vec![rate("optimizer", 0.1)],
            module,
            table,
            frozen: Vec::new(),
            update: None,
            elapsed: Duration::ZERO,
            run: Some(RunDirectory::create(root.path(), "test").unwrap()),
            is_trained: Box::new(|_| true),
            _root: root,
        }
    }

    pub fn view(&mut self) -> View<'_> {
        let frozen = self.frozen.clone();
        self.is_trained = Box::new(move |index| !frozen.contains(&index));
        View {
            config: &self.config,
            stage: self.stage,
            epoch: self.epoch,
            global_step: self.global_step,
            batches_in_epoch: self.batches_in_epoch,
            num_training_batches: Some(10),
            metrics: &self.metrics,
            learning_rates: &self.learning_rates,
            module: &*self.module,
            table: &self.table,
            trained: &*self.is_trained,
            update: self.update,
            elapsed: self.elapsed,
            run: self.run.as_ref(),
            is_global_zero: true,
        }
    }

    /// Counts a micro-batch with an update of its own.
    pub fn step(&mut self) {
        self.stage = Stage::Train;
        self.global_step += 1;
        self.batches_in_epoch += 1;
        self.update = Some(stepped(1.0));
    }

    /// Sets every parameter to one number.
    pub fn fill_parameters(&mut self, value: f64) {
        self.module.map_params(&mut Fill {
            table: &self.table,
            value,
        });
    }

    /// Runs the module in training mode, which updates its running statistics.
    pub fn forward(&self) {
        let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 5.0]], &Device::flex().autodiff());
        let mut step = StepContext::new(firebrand_core::StepInfo::first(Stage::Train, x.device()));
        self.module
            .training_step(firebrand_core::AnyBatch::new(x), &mut step)
            .unwrap();
    }

    /// The values of the module in validation mode, by path.
    pub fn evaluation_values(&self) -> BTreeMap<String, Vec<f32>> {
        values_of(&*self.module)
    }
}

/// The values of a module in validation mode, by path.
pub fn values_of(module: &dyn ErasedModule) -> BTreeMap<String, Vec<f32>> {
    let mut values = Values::default();
    module.evaluation_twin().visit_params(&mut values);
    values.0
}

pub fn rate(optimizer: &str, rate: f64) -> LearningRate {
    LearningRate {
        optimizer: optimizer.to_owned(),
        rate,
    }
}

pub fn stepped(gradient_norm: f64) -> Update {
    Update::Stepped { gradient_norm }
}

/// The commands that an event gave.
pub fn commands(event: impl FnOnce(&mut Commands) -> Result<()>) -> Commands {
    let mut commands = Commands::default();
    event(&mut commands).unwrap();
    commands
}

/// A module that was taken over, with its values in place.
fn tiny() -> (Box<dyn ErasedModule>, ParamTable) {
    let device = Device::flex().autodiff();
    let mut module = lazy_tiny();
    let table = ParamTable::take_over(&mut *module).unwrap();
    let options = PrepareOptions {
        device,
        precision: Precision::F32.into(),
        seed: 1,
    };
    prepare_parameters(&mut *module, &table, &options, &|_| true).unwrap();
    (module, table)
}

/// A module whose parameters are not materialised.
pub fn lazy_tiny() -> Box<dyn ErasedModule> {
    let device = Device::flex().autodiff();
    erase(Tiny::new(&device))
}

impl Tiny {
    pub fn new(device: &Device) -> Self {
        Self {
            body: LinearConfig::new(2, 3).init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(3, 1).with_bias(false).init(device),
        }
    }
}

struct Fill<'a> {
    table: &'a ParamTable,
    value: f64,
}

impl ParamMapper for Fill<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        let index = self.table.index_of(info.id);
        self.table
            .parameters()
            .any(|(parameter, _)| Some(parameter) == index)
    }

    fn map(&mut self, _: &ParamInfo<'_>, value: AnyTensor, _: bool) -> AnyTensor {
        value.map_float(|flat| flat.zeros_like().add_scalar(self.value))
    }
}

#[derive(Default)]
struct Values(BTreeMap<String, Vec<f32>>);

impl firebrand_core::ParamVisitor for Values {
    fn wants(&mut self, _: &ParamInfo<'_>) -> bool {
        true
    }

    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) {
        self.0
            .insert(info.path.to_owned(), value.into_data().iter::<f32>().collect());
    }
}
