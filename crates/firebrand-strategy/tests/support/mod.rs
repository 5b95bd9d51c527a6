//! What the tests of this crate share: small modules, data, an engine, and a look at every value of a module.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use firebrand_core::{
    AnyBatch, AnyTensor, ErasedModule, FitInfo, LightningModule, OptimizerSetup, ParamInfo, ParamMapper,
    ParamVisitor, Result, Stage, StepContext, StepInfo,
};
use firebrand_strategy::{
    Engine, EngineOptions, Error, MicroBatch, Precision, PrepareOptions, SingleDevice, Update,
};

/// One test at a time: Burn's generators are one for the whole process.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device that everything is trained on.
pub fn device() -> Device {
    Device::flex().autodiff()
}

/// Two linear layers with dropout between them.
#[derive(Module, Debug)]
pub struct Mlp {
    pub fc1: Linear,
    pub dropout: Dropout,
    pub fc2: Linear,
}

impl Mlp {
    pub fn new(device: &Device) -> Self {
        Self::with_dropout(0.3, device)
    }

    pub fn with_dropout(probability: f64, device: &Device) -> Self {
        Self {
            fc1: LinearConfig::new(6, 16).init(device),
            dropout: DropoutConfig::new(probability).init(),
            fc2: LinearConfig::new(16, 3).init(device),
        }
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.fc2.forward(self.dropout.forward(self.fc1.forward(x).tanh()))
    }
}

/// A batch of feature vectors and classes.
pub type Points = (Tensor<2>, Tensor<1, Int>);

impl LightningModule for Mlp {
    type Batch = Points;

    fn training_step(&self, (x, y): Points, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(cross_entropy(self.forward(x), y))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

pub fn cross_entropy(logits: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new()
        .init(&logits.device())
        .forward(logits, classes)
}

/// A convolution with batch norm and dropout.
#[derive(Module, Debug)]
pub struct Cnn {
    pub conv: Conv2d,
    pub norm: BatchNorm,
    pub dropout: Dropout,
    pub head: Linear,
}

impl Cnn {
    pub fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            norm: BatchNormConfig::new(4).init(device),
            dropout: DropoutConfig::new(0.2).init(),
            head: LinearConfig::new(4 * 4 * 4, 3).init(device),
        }
    }

    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = burn::tensor::activation::relu(self.norm.forward(self.conv.forward(images)));
        self.head.forward(self.dropout.forward(x).flatten(1, 3))
    }
}

impl LightningModule for Cnn {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn training_step(&self, (x, y): Self::Batch, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(cross_entropy(self.forward(x), y))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

/// Numbers that are a function of a seed, in -1..1, without any of Burn's generators.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// A float tensor of [`numbers`].
pub fn tensor<const D: usize>(seed: u64, shape: [usize; D], dtype: DType, device: &Device) -> Tensor<D> {
    let data = TensorData::new(numbers(seed, shape.iter().product()), shape);
    Tensor::from_data(data, (device, dtype))
}

/// Classes below `num_classes`.
pub fn classes(seed: u64, count: usize, num_classes: usize, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = numbers(seed ^ 0xABCD, count)
        .into_iter()
        .map(|number| ((number + 1.0) / 2.0 * num_classes as f64) as i64)
        .collect();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// A batch for [`Mlp`].
pub fn points(seed: u64, count: usize, dtype: DType, device: &Device) -> Points {
    (
        tensor(seed, [count, 6], dtype, device),
        classes(seed, count, 3, device),
    )
}

/// A batch for [`Cnn`].
pub fn images(seed: u64, count: usize, dtype: DType, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    (
        tensor(seed, [count, 1, 6, 6], dtype, device),
        classes(seed, count, 3, device),
    )
}

pub fn prepare(device: &Device) -> PrepareOptions {
    PrepareOptions {
        device: device.clone(),
        precision: Precision::F32.into(),
        seed: 1,
    }
}

/// An engine on one device, in float32.
pub fn engine(
    module: &mut dyn ErasedModule,
    setup: &OptimizerSetup,
    options: EngineOptions,
) -> Result<Engine, Error> {
    Engine::new(
        module,
        setup,
        &prepare(&device()),
        options,
        Box::new(SingleDevice::new()),
    )
}

/// A step context of training.
pub fn context(global_step: u64, optimizer_index: usize) -> StepContext {
    StepContext::new(StepInfo {
        global_step,
        batch_index: global_step,
        optimizer_index,
        ..StepInfo::first(Stage::Train, device())
    })
}

/// One micro-batch for the first optimizer.
pub fn micro_batch(
    engine: &mut Engine,
    module: &dyn ErasedModule,
    batch: impl firebrand_core::Batch,
    step: u64,
) -> Result<MicroBatch, Error> {
    engine.micro_batch(module, AnyBatch::new(batch), &mut context(step, 0), true)
}

/// The update of the first optimizer.
pub fn update(engine: &mut Engine, module: &mut dyn ErasedModule) -> Result<Update, Error> {
    engine.update(module, 0, &mut |_| Ok(()))
}

/// A micro-batch and its update.
pub fn step(
    engine: &mut Engine,
    module: &mut dyn ErasedModule,
    batch: impl firebrand_core::Batch,
    step: u64,
) -> Result<Update, Error> {
    micro_batch(engine, module, batch, step)?;
    update(engine, module)
}

/// Every value of a module by path, as bytes that compare bit by bit.
pub fn values(module: &dyn ErasedModule) -> BTreeMap<String, TensorData> {
    struct Collect(BTreeMap<String, TensorData>);

    impl ParamVisitor for Collect {
        fn wants(&mut self, _: &ParamInfo<'_>) -> bool {
            true
        }

        fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) {
            self.0.insert(info.path.to_owned(), value.into_data());
        }
    }

    let mut collect = Collect(BTreeMap::new());
    module.evaluation_twin().visit_params(&mut collect);
    collect.0
}

/// The numbers of one value of a module.
pub fn value(module: &dyn ErasedModule, path: &str) -> Vec<f64> {
    let values = values(module);
    let data = values
        .get(path)
        .unwrap_or_else(|| panic!("'{path}' is not among {:?}", values.keys()));
    data.iter::<f64>().collect()
}

/// The largest difference between two modules, over all values.
pub fn distance(a: &dyn ErasedModule, b: &dyn ErasedModule) -> f64 {
    let (a, b) = (values(a), values(b));
    assert!(a.keys().eq(b.keys()), "{:?} and {:?}", a.keys(), b.keys());
    let mut largest = 0.0f64;
    for (x, y) in a.values().zip(b.values()) {
        for (x, y) in x.iter::<f64>().zip(y.iter::<f64>()) {
            largest = largest.max((x - y).abs());
        }
    }
    largest
}

/// Which parameters are materialised, by path, without materialising any.
pub fn initialized(module: &dyn ErasedModule) -> BTreeMap<String, bool> {
    struct Look(BTreeMap<String, bool>);

    impl ParamVisitor for Look {
        fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
            self.0.insert(info.path.to_owned(), info.initialized);
            false
        }

        fn visit(&mut self, _: &ParamInfo<'_>, _: AnyTensor, _: bool) {}
    }

    let mut look = Look(BTreeMap::new());
    module.visit_params(&mut look);
    look.0
}

/// Draws every lazy parameter, as a user does who looks at the weights.
pub fn materialize<M: Module>(module: &M) {
    let _ = module.valid();
}

/// Replaces every value, as loading a checkpoint does.
pub fn set_values(module: &mut dyn ErasedModule, values: &BTreeMap<String, TensorData>) {
    struct Set<'a>(&'a BTreeMap<String, TensorData>);

    impl ParamMapper for Set<'_> {
        fn wants(&mut self, _: &ParamInfo<'_>) -> bool {
            true
        }

        fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
            let device = value.device();
            let plain = device.clone().without_autodiff();
            let loaded = AnyTensor::from_data(self.0[info.path].clone(), &plain).unwrap();
            loaded.on_autodiff(&device, requires_grad)
        }
    }

    module.map_params(&mut Set(values));
}
