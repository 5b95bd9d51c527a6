//! What a step of the engine costs beside the same step in a plain Burn loop, and when gradients arrive in a backward pass.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p firebrand-strategy --example step_cost`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrand_core::{
    AnyBatch, AnyTensor, FitInfo, LightningModule, OptimizerSetup, Result, Stage, StepContext, StepInfo,
    erase,
};
use firebrand_strategy::{
    Engine, EngineOptions, Error, Gradient, GradientExchange, GradientSink, Precision, PrepareOptions,
    SingleDevice,
};

/// Linear layers with `tanh` between them.
#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    fn new(widths: &[usize], device: &Device) -> Self {
        let layer = |pair: &[usize]| LinearConfig::new(pair[0], pair[1]).init(device);
        Self {
            layers: widths.windows(2).map(layer).collect(),
        }
    }
}

type Points = (Tensor<2>, Tensor<1, Int>);

impl LightningModule for Mlp {
    type Batch = Points;

    fn training_step(&self, (mut x, y): Points, _: &mut StepContext) -> Result<Tensor<1>> {
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.forward(if number == 0 { x } else { x.tanh() });
        }
        Ok(CrossEntropyLossConfig::new().init(&x.device()).forward(x, y))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), 1e-3)
    }
}

fn batch(size: usize, features: usize, device: &Device) -> Points {
    let x: Vec<f32> = (0..size * features)
        .map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0)
        .collect();
    let y: Vec<i64> = (0..size).map(|i| (i % 10) as i64).collect();
    (
        Tensor::from_data(TensorData::new(x, [size, features]), device),
        Tensor::from_data(TensorData::new(y, [size]), device),
    )
}

/// Records when each gradient arrives.
#[derive(Default)]
struct Timed {
    inner: SingleDevice,
    log: Arc<Mutex<Vec<(usize, Instant)>>>,
}

struct TimedSink {
    inner: Arc<dyn GradientSink>,
    log: Arc<Mutex<Vec<(usize, Instant)>>>,
}

impl GradientSink for TimedSink {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        self.log.lock().unwrap().push((parameter, Instant::now()));
        self.inner.push(parameter, gradient);
    }
}

impl GradientExchange for Timed {
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
        Arc::new(TimedSink {
            inner: self.inner.sink(optimizer),
            log: Arc::clone(&self.log),
        })
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn begin_backward(&mut self, _: usize, _: bool) {
        let mut log = self.log.lock().unwrap();
        log.clear();
        log.push((usize::MAX, Instant::now()));
    }

    fn finish(&mut self, optimizer: usize, weight: f64) -> Result<(Vec<Gradient>, f64), Error> {
        self.inner.finish(optimizer, weight)
    }

    fn discard(&mut self, optimizer: usize) -> Result<(), Error> {
        self.inner.discard(optimizer)
    }
}

/// The median of rounds, in microseconds per call.
fn measure(rounds: usize, calls: usize, mut call: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[rounds / 2].as_secs_f64() * 1e6 / calls as f64
}

#[test]
#[ignore = "measures"]
fn step_cost() {
    let device = Device::flex().autodiff();
    let setup = OptimizerSetup::new(AdamWConfig::new(), 1e-3);
    let prepare = PrepareOptions {
        device: device.clone(),
        precision: Precision::F32,
        seed: 1,
    };
    let context = || StepContext::new(StepInfo::first(Stage::Train, device.clone()));

    for widths in [&[64, 128, 10][..], &[64, 512, 512, 512, 10]] {
        let data = batch(64, 64, &device);
        let mut plain = Some(Mlp::new(widths, &device));
        let mut optimizer = AdamWConfig::new().init();
        let mut plain_step = || {
            let net = plain.take().unwrap();
            let loss = net.training_step(data.clone(), &mut context()).unwrap();
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            plain = Some(optimizer.step(1e-3, net, gradients));
        };
        let mut module = erase(Mlp::new(widths, &device));
        let exchange = Box::new(SingleDevice::new());
        let mut engine =
            Engine::new(&mut *module, &setup, &prepare, EngineOptions::default(), exchange).unwrap();
        let mut engine_step = || {
            let batch = AnyBatch::new(data.clone());
            engine.micro_batch(&*module, batch, &mut context(), true).unwrap();
            engine.update(&mut *module, 0, &mut |_| Ok(())).unwrap();
        };
        let (mut plain_us, mut engine_us) = (Vec::new(), Vec::new());
        let calls = if widths.len() == 3 { 400 } else { 20 };
        // In turns, so that a slow moment of the machine hits both.
        for _ in 0..15 {
            plain_us.push(measure(1, calls, &mut plain_step));
            engine_us.push(measure(1, calls, &mut engine_step));
        }
        plain_us.sort_by(f64::total_cmp);
        engine_us.sort_by(f64::total_cmp);
        let (plain_us, engine_us) = (plain_us[7], engine_us[7]);
        println!(
            "{widths:?}: plain {plain_us:.1} us, engine {engine_us:.1} us, {:.3} times",
            engine_us / plain_us
        );
    }

    let widths = [64, 512, 512, 512, 512, 512, 512, 10];
    let mut module = erase(Mlp::new(&widths, &device));
    let exchange = Timed::default();
    let log = Arc::clone(&exchange.log);
    let mut engine = Engine::new(
        &mut *module,
        &setup,
        &prepare,
        EngineOptions::default(),
        Box::new(exchange),
    )
    .unwrap();
    for _ in 0..5 {
        let batch = AnyBatch::new(batch(256, 64, &device));
        engine.micro_batch(&*module, batch, &mut context(), true).unwrap();
        let end = Instant::now();
        let arrivals = log.lock().unwrap().clone();
        let start = arrivals[0].1;
        let whole = (end - start).as_secs_f64();
        let shares: Vec<String> = arrivals[1..]
            .iter()
            .map(|(parameter, at)| {
                format!(
                    "{parameter}: {:.0} %",
                    (*at - start).as_secs_f64() / whole * 100.0
                )
            })
            .collect();
        engine.update(&mut *module, 0, &mut |_| Ok(())).unwrap();
        println!("gradients arrive after: {}", shares.join(", "));
    }
}
