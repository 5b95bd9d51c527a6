//! Manual optimization: a GAN step is, bit by bit, the one that a user of Burn writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Tensor};
use firebrand_core::{
    AnyBatch, BoxError, ErasedModule, FitInfo, LightningModule, ManualOptimization, OptimizerSetup, Result,
    Schedule, StepContext, erase,
};
use firebrand_strategy::{
    Engine, EngineOptions, Error, GradientExchange, GradientSink, NonFinite, Reduced, Share, SingleDevice,
    Update,
};
use support::*;

/// What a manual step does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Script {
    /// Discriminator, then generator.
    Gan,
    /// The generator's loss reaches the discriminator too; those gradients must not be kept for it.
    GeneratorTwice,
    StepWithoutBackward,
    UnknownOptimizer,
    BackwardOfTwo,
    NotFinite,
    Fails,
    /// A backward pass without a step, and the step at the end of the next call.
    BackwardOnly,
    BackwardAndStep,
}

#[derive(Module, Debug)]
struct Gan {
    generator: Linear,
    discriminator: Linear,
}

/// Real samples and noise, and the script once per sample.
type Samples = (Tensor<2>, Tensor<2>, Vec<Script>);

impl Gan {
    fn new() -> Self {
        Self {
            generator: LinearConfig::new(2, 3).init(&device()),
            discriminator: LinearConfig::new(3, 1).init(&device()),
        }
    }

    fn discriminator_loss(&self, real: Tensor<2>, noise: Tensor<2>) -> Tensor<1> {
        let fake = self.generator.forward(noise).detach();
        let score = |x| self.discriminator.forward(x).mean();
        (score(fake) - score(real)).exp()
    }

    fn generator_loss(&self, noise: Tensor<2>) -> Tensor<1> {
        -self
            .discriminator
            .forward(self.generator.forward(noise))
            .tanh()
            .mean()
    }
}

impl LightningModule for Gan {
    type Batch = Samples;

    fn training_step(&self, _: Samples, _: &mut StepContext) -> Result<Tensor<1>> {
        Err("a GAN is trained by hand")?
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        setup()
    }

    fn automatic_optimization(&self) -> bool {
        false
    }

    fn manual_training_step(
        gan: &mut ManualOptimization<'_, Self>,
        (real, noise, script): Samples,
        step: &mut StepContext,
    ) -> Result<()> {
        match script[0] {
            Script::Gan => {
                let loss = gan.forward()?.discriminator_loss(real, noise.clone());
                step.log("d_loss", &loss);
                gan.backward(loss)?;
                gan.step("discriminator")?;
                let loss = gan.forward()?.generator_loss(noise);
                gan.backward(loss)?;
                gan.step("generator")
            }
            Script::GeneratorTwice => {
                for _ in 0..2 {
                    let loss = gan.forward()?.generator_loss(noise.clone());
                    gan.backward(loss)?;
                    gan.step("generator")?;
                }
                gan.step("discriminator")
            }
            Script::StepWithoutBackward => gan.step("generator"),
            Script::UnknownOptimizer => {
                let loss = gan.forward()?.generator_loss(noise);
                gan.backward(loss)?;
                gan.step("critic")
            }
            Script::BackwardOfTwo => {
                let loss = gan.forward()?.generator.forward(noise).reshape([-1]);
                gan.backward(loss)
            }
            Script::NotFinite => {
                let loss = gan.forward()?.generator_loss(noise) * f32::NAN;
                gan.backward(loss)?;
                gan.step("generator")
            }
            Script::Fails => {
                let loss = gan.forward()?.generator_loss(noise);
                gan.backward(loss)?;
                Err("no more data")?
            }
            Script::BackwardOnly | Script::BackwardAndStep => {
                let loss = gan.forward()?.generator_loss(noise) / 2.0;
                gan.backward(loss)?;
                if script[0] == Script::BackwardAndStep {
                    gan.step("generator")
                } else {
                    Ok(())
                }
            }
        }
    }

    fn on_before_optimizer_step(&mut self, step: &mut StepContext) -> Result<()> {
        step.log("before", step.optimizer_index());
        Ok(())
    }
}

fn setup() -> OptimizerSetup {
    let halving = || Schedule::factor(|n| 0.5f64.powi(n as i32));
    let discriminator = OptimizerSetup::new(SgdConfig::new(), 0.1)
        .named("discriminator")
        .parameters("discriminator");
    OptimizerSetup::new(AdamConfig::new(), 0.02)
        .named("generator")
        .parameters("generator")
        .schedule(halving())
        .and(discriminator.schedule(halving()))
}

fn samples(number: u64, script: Script) -> Samples {
    let real = tensor(number, [4, 3], DType::F32, &device()) + 1.0;
    (
        real,
        tensor(number ^ 0xFF, [4, 2], DType::F32, &device()),
        vec![script; 4],
    )
}

fn drawn() -> Gan {
    device().seed(23);
    let gan = Gan::new();
    materialize(&gan);
    gan
}

fn fresh(non_finite: NonFinite) -> (Box<dyn ErasedModule>, Engine) {
    let mut module = erase(drawn());
    let options = EngineOptions {
        non_finite,
        ..EngineOptions::default()
    };
    let engine = engine(&mut *module, &setup(), options).unwrap();
    (module, engine)
}

/// What a manual training step left: which optimizers stepped, by position, what the hook before their updates logged, and the
/// outcome.
type Left = (Vec<bool>, Vec<String>, Option<Update>);

fn run(
    module: &mut dyn ErasedModule,
    engine: &mut Engine,
    number: u64,
    script: Script,
) -> Result<Left, BoxError> {
    let mut context = context(number, 0);
    let mut manual = engine.manual(&context);
    module.manual_training_step(&mut manual, AnyBatch::new(samples(number, script)), &mut context)?;
    let logs = manual
        .take_logs()
        .into_iter()
        .map(|entry| format!("{} {:?}", entry.name, entry.value));
    let logs = logs.collect();
    Ok((manual.updated().to_vec(), logs, manual.outcome()))
}

/// The same in a plain Burn loop.
fn plain_step(gan: Gan, optimizers: &mut [ModuleOptimizer; 2], number: u64) -> Gan {
    let (real, noise, _) = samples(number, Script::Gan);
    let rate = 0.5f64.powi(number as i32);
    let mut gradients = gan.discriminator_loss(real, noise.clone()).backward();
    let gradients = GradientsParams::from_module(&mut gradients, &gan.discriminator);
    let discriminator = optimizers[1].step(0.1 * rate, gan.discriminator, gradients);
    let gan = Gan { discriminator, ..gan };
    let mut gradients = gan.generator_loss(noise).backward();
    let gradients = GradientsParams::from_module(&mut gradients, &gan.generator);
    let generator = optimizers[0].step(0.02 * rate, gan.generator, gradients);
    Gan { generator, ..gan }
}

#[test]
fn a_gan_step_is_bit_equal_to_a_plain_loop() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Stop);
    assert!(!module.automatic_optimization());
    let mut plain = drawn();
    let mut optimizers = [AdamConfig::new().init(), SgdConfig::new().init()];
    for number in 0..10 {
        let (updated, logs, outcome) = run(&mut *module, &mut engine, number, Script::Gan).unwrap();
        assert_eq!(updated, [true, true]);
        assert!(matches!(outcome, Some(Update::Stepped { gradient_norm }) if gradient_norm > 0.0));
        assert_eq!(logs, ["before Number(1.0)", "before Number(0.0)"]);
        plain = plain_step(plain, &mut optimizers, number);
        assert_eq!(values(&*module), values(&*erase(plain.clone())), "step {number}");
    }
    let rates: Vec<f64> = engine
        .learning_rates()
        .into_iter()
        .map(|rate| rate.rate)
        .collect();
    assert_eq!(rates, [0.02 / 1024.0, 0.1 / 1024.0]);
}

/// What the generator's loss gave for the discriminator is forgotten by the generator's step.
#[test]
fn a_step_forgets_the_gradients_of_the_others() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Stop);
    let before = values(&*module);
    let error = run(&mut *module, &mut engine, 0, Script::GeneratorTwice)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("step(\"discriminator\") found no gradient"),
        "{error}"
    );
    let after = values(&*module);
    assert_ne!(before["generator.weight"], after["generator.weight"]);
    assert_eq!(before["discriminator.weight"], after["discriminator.weight"]);
}

#[test]
fn mistakes_are_errors_and_leave_the_module_alone() {
    let _alone = alone();
    let cases = [
        (
            Script::StepWithoutBackward,
            "step(\"generator\") found no gradient",
        ),
        (
            Script::UnknownOptimizer,
            "there is no optimizer 'critic'; the module configures generator, discriminator",
        ),
        (
            Script::BackwardOfTwo,
            "a loss of one element, and returned one of 12 elements",
        ),
        (Script::NotFinite, "the loss is NaN at global step 7"),
        (Script::Fails, "no more data"),
    ];
    for (script, expected) in cases {
        let (mut module, mut engine) = fresh(NonFinite::Stop);
        let before = values(&*module);
        let error = run(&mut *module, &mut engine, 7, script).unwrap_err();
        assert!(error.to_string().contains(expected), "{script:?}: {error}");
        assert_eq!(values(&*module), before, "{script:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_may_be_skipped() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Skip);
    let (before, rates) = (values(&*module), engine.learning_rates());
    let (updated, _, outcome) = run(&mut *module, &mut engine, 0, Script::NotFinite).unwrap();
    assert_eq!((updated, outcome), (vec![false, false], Some(Update::Skipped)));
    assert_eq!(values(&*module), before);
    assert_eq!(engine.learning_rates(), rates);
    // Nothing of it reaches the next step.
    run(&mut *module, &mut engine, 1, Script::Gan).unwrap();
    let (mut clean, mut other) = fresh(NonFinite::Skip);
    run(&mut *clean, &mut other, 1, Script::Gan).unwrap();
    assert_eq!(values(&*module), values(&*clean));
}

/// Two halves of a loss in two training steps, and one update.
#[test]
fn gradients_are_kept_over_training_steps_until_a_step() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(NonFinite::Stop);
    let before = values(&*module);
    assert_eq!(
        run(&mut *module, &mut engine, 1, Script::BackwardOnly).unwrap().0,
        [false, false]
    );
    assert_eq!(values(&*module), before);
    assert_eq!(
        run(&mut *module, &mut engine, 2, Script::BackwardAndStep)
            .unwrap()
            .0,
        [true, false]
    );

    let gan = drawn();
    let noise = |number| samples(number, Script::Gan).1;
    let both = Tensor::cat(vec![noise(1), noise(2)], 0);
    let mut gradients = gan.generator_loss(both).backward();
    let gradients = GradientsParams::from_module(&mut gradients, &gan.generator);
    let generator = AdamConfig::new().init().step(0.02, gan.generator, gradients);
    let distance = distance(&*module, &*erase(Gan { generator, ..gan }));
    assert!(distance < 1e-6, "{distance}");

    // `discard` drops them.
    run(&mut *module, &mut engine, 1, Script::BackwardOnly).unwrap();
    engine.discard().unwrap();
    assert!(run(&mut *module, &mut engine, 1, Script::StepWithoutBackward).is_err());
}

#[test]
fn a_module_without_a_manual_step_says_what_is_missing() {
    let _alone = alone();
    let mut module = erase(Mlp::new(&device()));
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.1);
    let mut engine = engine(&mut *module, &setup, EngineOptions::default()).unwrap();
    let mut context = context(0, 0);
    let batch = AnyBatch::new(points(1, 2, DType::F32, &device()));
    let mut manual = engine.manual(&context);
    let error = module
        .manual_training_step(&mut manual, batch, &mut context)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not implement `manual_training_step`"),
        "{error}"
    );
}

/// One device that hears of another rank that says the same.
struct Echo(SingleDevice);

impl GradientExchange for Echo {
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
        self.0.sink(optimizer)
    }

    fn begin_backward(&mut self, optimizer: usize, last: bool) {
        self.0.begin_backward(optimizer, last);
    }

    fn finish(&mut self, optimizer: usize, share: Share) -> std::result::Result<Reduced, Error> {
        let mut reduced = self.0.finish(optimizer, share)?;
        reduced.notes.iter_mut().for_each(|note| *note *= 2.0);
        Ok(reduced)
    }

    fn discard(&mut self, optimizer: usize) -> std::result::Result<(), Error> {
        self.0.discard(optimizer)
    }
}

#[test]
fn what_is_said_once_is_heard_once_whatever_the_number_of_updates() {
    let mut module = erase(drawn());
    let exchange = Box::new(Echo(SingleDevice::new()));
    let mut engine = Engine::new(
        &mut *module,
        &setup(),
        &prepare(&device()),
        EngineOptions::default(),
        exchange,
    )
    .unwrap();
    for number in 0..2 {
        engine.say(vec![1.0, 10.0]);
        run(&mut *module, &mut engine, number, Script::Gan).unwrap();
        assert_eq!(engine.notes(), [2.0, 20.0]);
    }
}
