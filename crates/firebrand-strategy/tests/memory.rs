//! Thousands of steps of every kind leave the memory where it was.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Tensor};
use firebrand_core::{FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase};
use firebrand_strategy::{
    Engine, EngineOptions, Error, GradientExchange, GradientSink, Reduced, Share, SingleDevice, Update,
};
use support::*;

#[derive(Module, Debug)]
struct Net {
    mlp: Mlp,
    norm: burn::nn::BatchNorm,
}

/// Points, and what goes wrong with the step: 1 an error after the forward pass, 2 no items, 3 a detached loss.
type Batch = (Tensor<2>, Vec<u8>);

impl LightningModule for Net {
    type Batch = Batch;

    fn training_step(&self, (x, fault): Batch, step: &mut StepContext) -> Result<Tensor<1>> {
        let loss = self
            .norm
            .forward(self.mlp.forward(x))
            .powf_scalar(2.0)
            .sub_scalar(0.5)
            .abs()
            .mean();
        step.loss_weight(if fault[0] == 2 { 0.0 } else { 4.0 });
        match fault[0] {
            1 => Err("after the forward pass")?,
            3 => Ok(loss.detach()),
            _ => Ok(loss),
        }
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), 1e-3)
    }
}

/// The resident memory of this process, in bytes; `statm` counts pages of 4 KiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Steps of every kind: groups of two, some of them failing, and a look at the module now and then.
fn run(exchange: Box<dyn GradientExchange>, steps: u64) -> u64 {
    let mut module = erase(Net {
        mlp: Mlp::new(&device()),
        norm: burn::nn::BatchNormConfig::new(3).init(&device()),
    });
    let setup = OptimizerSetup::new(AdamWConfig::new(), 1e-3);
    let options = EngineOptions::default();
    let mut engine = Engine::new(&mut *module, &setup, &prepare(&device()), options, exchange).unwrap();
    let batch = |number: u64, fault| (tensor(number, [4, 6], DType::F32, &device()), vec![fault; 4]);
    let mut after_warmup = 0;
    for number in 0..steps {
        let fault = if number % 3 == 0 {
            (number / 3 % 4) as u8
        } else {
            0
        };
        let given = micro_batch(&mut engine, &*module, batch(number, fault), number);
        assert_eq!(given.is_err(), fault == 1 || fault == 3);
        micro_batch(&mut engine, &*module, batch(number + 1, 0), number).unwrap();
        assert!(matches!(
            update(&mut engine, &mut *module).unwrap(),
            Update::Stepped { .. }
        ));
        if number % 100 == 0 {
            drop(module.evaluation_twin());
            drop(engine.state());
        }
        if number == steps / 5 {
            after_warmup = resident();
        }
    }
    resident().saturating_sub(after_warmup)
}

#[test]
fn ten_thousand_steps_leave_the_memory_flat() {
    let _alone = alone();
    let grown = run(Box::new(SingleDevice::new()), 10_000);
    // A leak of one number per step would be 64 KB; of one tensor or graph node per step, megabytes.
    assert!(
        grown < 256 * 1024,
        "the memory grew by {grown} bytes over 8,000 steps"
    );
}

/// Turns are nodes that live as long as the engine; the graph must not grow by what hangs on them.
#[test]
fn gradients_that_overlap_leave_the_memory_flat() {
    #[derive(Default)]
    struct Overlapping(SingleDevice);

    impl GradientExchange for Overlapping {
        fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
            self.0.sink(optimizer)
        }

        fn overlaps(&self) -> bool {
            true
        }

        fn begin_backward(&mut self, optimizer: usize, last: bool) {
            self.0.begin_backward(optimizer, last);
        }

        fn finish(&mut self, optimizer: usize, share: Share) -> Result<Reduced, Error> {
            self.0.finish(optimizer, share)
        }

        fn discard(&mut self, optimizer: usize) -> Result<(), Error> {
            self.0.discard(optimizer)
        }
    }

    let _alone = alone();
    let grown = run(Box::<Overlapping>::default(), 5_000);
    assert!(
        grown < 256 * 1024,
        "the memory grew by {grown} bytes over 4,000 steps"
    );
}
