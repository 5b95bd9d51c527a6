//! Mixed precision: float32 weights whatever steps compute in, gradients near those of float32, a loss scale that is found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::activation::{gelu, sigmoid, tanh};
use burn::tensor::{DType, Distribution, FloatDType, Tensor};
use firebrand_core::{
    AnyBatch, Batch, ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, Stage, StepContext,
    StepInfo, erase,
};
use firebrand_strategy::{
    Engine, EngineOptions, Error, GradientClip, LossScaler, LossScalerOptions, Precision, PrecisionPolicy,
    PrepareOptions, SingleDevice, Update,
};
use proptest::prelude::*;
use support::*;

const MIXED: [Precision; 2] = [Precision::Bf16Mixed, Precision::F16Mixed];

/// Linear layers of any widths, whose first and last weights may be tied.
#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    #[module(skip)]
    form: Form,
}

#[derive(Clone, Debug)]
struct Form {
    widths: Vec<usize>,
    /// Smooth ones: where a value close to a kink rounds to its other side, the gradient jumps.
    activation: u8,
    tied: bool,
    keep_last: bool,
}

impl Net {
    fn new(form: Form) -> Self {
        let layers = form
            .widths
            .windows(2)
            .map(|pair| LinearConfig::new(pair[0], pair[1]).init(&device()))
            .collect();
        Self { layers, form }
    }

    fn forward(&self, x: Tensor<2>, step: &StepContext) -> Tensor<2> {
        let mut x = x;
        for (number, layer) in self.layers.iter().enumerate() {
            if number > 0 {
                x = match self.form.activation {
                    0 => tanh(x),
                    1 => gelu(x),
                    _ => sigmoid(x),
                };
            }
            if self.form.keep_last && number + 1 == self.layers.len() {
                x = step.full_precision(x);
            }
            x = layer.forward(x);
        }
        x
    }
}

impl LightningModule for Net {
    type Batch = (Tensor<2>, Tensor<2>);

    fn training_step(&self, (x, y): Self::Batch, step: &mut StepContext) -> Result<Tensor<1>> {
        let output = step.full_precision(self.forward(x, step));
        Ok((output - step.full_precision(y)).powf_scalar(2.0).mean())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 1.0)
    }

    fn tied_parameters(&self) -> Vec<Vec<String>> {
        let last = self.layers.len() - 1;
        let tied = self
            .form
            .tied
            .then(|| vec!["layers.0.weight".to_owned(), format!("layers.{last}.weight")]);
        tied.into_iter().collect()
    }
}

fn prepared(policy: impl Into<PrecisionPolicy>) -> PrepareOptions {
    PrepareOptions {
        precision: policy.into(),
        ..prepare(&device())
    }
}

fn engine_of(
    module: &mut dyn ErasedModule,
    policy: impl Into<PrecisionPolicy>,
    options: EngineOptions,
) -> std::result::Result<Engine, Error> {
    let setup = module.configure_optimizers(&FitInfo::new(None, None, 1));
    Engine::new(
        module,
        &setup,
        &prepared(policy),
        options,
        Box::new(SingleDevice::new()),
    )
}

fn context_in(engine: &Engine, step: u64) -> StepContext {
    StepContext::new(StepInfo {
        global_step: step,
        compute_dtype: engine.compute_dtype(),
        ..StepInfo::first(Stage::Train, device())
    })
}

/// A micro-batch as the trainer hands it over.
fn forward(
    engine: &mut Engine,
    module: &dyn ErasedModule,
    batch: impl Batch,
    last: bool,
) -> std::result::Result<(), Error> {
    let batch = AnyBatch::new(batch).to_dtype(engine.compute_dtype());
    let mut step = context_in(engine, 0);
    engine.micro_batch(module, batch, &mut step, last).map(drop)
}

fn data(seed: u64, form: &Form, samples: usize) -> (Tensor<2>, Tensor<2>) {
    let sizes = [form.widths[0], form.widths[form.widths.len() - 1]];
    let [x, y] = sizes.map(|size| tensor(seed, [samples, size], DType::F32, &device()));
    // Far from any output, so that little is lost in the difference between them.
    (x, y + 4.0)
}

/// By how much plain gradient descent with the rate one moves every parameter: the gradients.
fn gradients(form: &Form, precision: Precision, micro_batches: usize) -> Vec<(String, Vec<f64>)> {
    let mut module = erase(Net::new(form.clone()));
    let mut policy = PrecisionPolicy::from(precision);
    if form.keep_last {
        policy
            .keep_full
            .push(format!("layers.{}.*", form.widths.len() - 2).as_str().into());
    }
    let mut engine = engine_of(&mut *module, policy, EngineOptions::default()).unwrap();
    let before = values(&*module);
    // The scale may have to fall first.
    loop {
        for number in 0..micro_batches {
            let batch = data(number as u64, form, 8);
            forward(&mut engine, &*module, batch, number + 1 == micro_batches).unwrap();
        }
        if update(&mut engine, &mut *module).unwrap() != Update::Skipped {
            break;
        }
        assert_eq!(precision, Precision::F16Mixed);
    }
    let after = values(&*module);
    for (path, value) in &after {
        assert_eq!(value.dtype(), DType::F32, "{path} in {precision:?}");
    }
    let difference = |path: &String| {
        let pairs = before[path].iter::<f64>().zip(after[path].iter::<f64>());
        pairs.map(|(before, after)| before - after).collect()
    };
    before
        .keys()
        .map(|path| (path.clone(), difference(path)))
        .collect()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

fn forms() -> impl Strategy<Value = Form> {
    let widths = prop::collection::vec(1usize..24, 2..6);
    (widths, 0u8..3, any::<bool>(), any::<bool>()).prop_map(|(mut widths, activation, tied, keep_last)| {
        let tied = tied && widths.len() > 2;
        if tied {
            // The tied weights have one shape.
            let len = widths.len();
            widths[len - 2] = widths[0];
            widths[len - 1] = widths[1];
        }
        Form {
            widths,
            activation,
            // A weight that two layers share is in both the same.
            keep_last: keep_last && !tied,
            tied,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each product and sum rounds by 2⁻⁹ (bfloat16) or 2⁻¹² (float16) at most, and what one layer rounds goes through those after.
    #[test]
    fn gradients_are_those_of_float32_within_the_error_of_the_type(form in forms(), micro_batches in 1usize..3) {
        let _alone = alone();
        let exact = gradients(&form, Precision::F32, micro_batches);
        let scale = norm(exact.iter().flat_map(|(_, values)| values.iter().copied()));
        for precision in MIXED {
            let epsilon = if precision == Precision::Bf16Mixed { 2f64.powi(-8) } else { 2f64.powi(-11) };
            let depth = form.widths.len() as f64;
            let found = gradients(&form, precision, micro_batches);
            let pairs = exact.iter().zip(&found);
            let error = norm(pairs.flat_map(|((_, exact), (_, found))| {
                exact.iter().zip(found).map(|(exact, found)| exact - found)
            }));
            prop_assert!(
                error <= 2.0 * depth * epsilon * scale + 1e-6,
                "{precision:?}: {error} of {scale} for {form:?}"
            );
            // It is not float32 in disguise.
            prop_assert!(error > 0.0 || scale < 1e-3, "{precision:?} {form:?}");
        }
    }
}

fn plain() -> Form {
    Form {
        widths: vec![6, 16, 3],
        activation: 0,
        tied: false,
        keep_last: false,
    }
}

/// `w · x` with gradients as large as the batch says.
#[derive(Module, Debug)]
struct Large {
    weight: Param<Tensor<1>>,
}

impl Large {
    fn new() -> Self {
        Self {
            weight: Param::from_tensor(Tensor::ones([2], &device())),
        }
    }
}

impl LightningModule for Large {
    type Batch = Tensor<1>;

    fn training_step(&self, x: Tensor<1>, step: &mut StepContext) -> Result<Tensor<1>> {
        Ok(step.full_precision(self.weight.val() * x).sum())
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), 0.1)
    }
}

fn large(options: EngineOptions) -> (Box<dyn ErasedModule>, Engine) {
    let mut module = erase(Large::new());
    let engine = engine_of(&mut *module, Precision::F16Mixed, options).unwrap();
    (module, engine)
}

fn x(value: f32) -> Tensor<1> {
    Tensor::full([2], value, &device())
}

#[test]
fn the_scale_falls_until_gradients_fit_and_nothing_moves_before() {
    let _alone = alone();
    let (mut module, mut engine) = large(EngineOptions::default());
    let before = values(&*module);
    // 65536 · 100 is beyond float16; 512 · 100 is not.
    let mut scales = Vec::new();
    loop {
        forward(&mut engine, &*module, x(100.0), true).unwrap();
        scales.push(engine.loss_scale().unwrap());
        match update(&mut engine, &mut *module).unwrap() {
            Update::Stepped { gradient_norm } => {
                assert!(
                    (gradient_norm - 100.0 * 2f64.sqrt()).abs() < 0.1,
                    "{gradient_norm}"
                );
                break;
            }
            skipped => {
                assert_eq!(skipped, Update::Skipped);
                assert_eq!(values(&*module), before);
            }
        }
    }
    let halved = |pair: &[f64]| pair[1] * 2.0 == pair[0];
    assert!(
        scales.windows(2).all(halved) && scales[0] == 65536.0,
        "{scales:?}"
    );
    assert_eq!(scales.last(), Some(&512.0));
    assert_ne!(values(&*module), before);
}

#[test]
fn gradients_that_would_vanish_in_float16_arrive() {
    let _alone = alone();
    // The loss is multiplied by what underflows in float16 without a scale.
    #[derive(Module, Debug)]
    struct Tiny {
        large: Large,
    }
    impl LightningModule for Tiny {
        type Batch = Tensor<1>;
        fn training_step(&self, x: Tensor<1>, step: &mut StepContext) -> Result<Tensor<1>> {
            Ok(self.large.training_step(x, step)? * 1e-9)
        }
        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            OptimizerSetup::new(SgdConfig::new(), 1e6)
        }
    }
    let mut module = erase(Tiny { large: Large::new() });
    let mut engine = engine_of(&mut *module, Precision::F16Mixed, EngineOptions::default()).unwrap();
    forward(&mut engine, &*module, x(1.0), true).unwrap();
    let Update::Stepped { gradient_norm } = update(&mut engine, &mut *module).unwrap() else {
        panic!("skipped");
    };
    assert!(
        (gradient_norm / 1e-9 - 2f64.sqrt()).abs() < 0.02,
        "{gradient_norm}"
    );
}

#[test]
fn a_group_keeps_its_scale_and_clips_what_is_unscaled() {
    let _alone = alone();
    let options = EngineOptions {
        clip: Some(GradientClip::Norm(1.0)),
        loss_scaler: Some(LossScalerOptions {
            initial_scale: 64.0,
            growth_interval: 1,
            ..LossScalerOptions::default()
        }),
        ..EngineOptions::default()
    };
    let (mut module, mut engine) = large(options);
    for update_number in 0..3 {
        for micro_batch in 0..3 {
            forward(&mut engine, &*module, x(3.0), micro_batch == 2).unwrap();
        }
        assert_eq!(engine.loss_scale(), Some(64.0 * f64::from(1 << update_number)));
        let Update::Stepped { gradient_norm } = update(&mut engine, &mut *module).unwrap() else {
            panic!("skipped");
        };
        assert!(
            (gradient_norm - 3.0 * 2f64.sqrt()).abs() < 0.01,
            "{gradient_norm}"
        );
    }
}

#[test]
fn training_stops_when_every_update_overflows() {
    let _alone = alone();
    let (mut module, mut engine) = large(EngineOptions::default());
    let error = (0..100)
        .find_map(|_| {
            forward(&mut engine, &*module, x(f32::INFINITY), true).unwrap();
            update(&mut engine, &mut *module).err()
        })
        .unwrap();
    assert!(matches!(error, Error::LossScaleTooSmall { .. }), "{error}");
}

#[test]
fn the_scaler_is_part_of_the_state() {
    let _alone = alone();
    let (mut module, mut engine) = large(EngineOptions::default());
    for value in [1e4, 1.0, 1.0] {
        forward(&mut engine, &*module, x(value), true).unwrap();
        update(&mut engine, &mut *module).unwrap();
    }
    let state = engine.state();
    let (_module, mut other) = large(EngineOptions::default());
    assert_ne!(other.loss_scale(), engine.loss_scale());
    other.load_state(state.clone()).unwrap();
    assert_eq!(other.loss_scale(), engine.loss_scale());
    assert_eq!(other.state().scalars, state.scalars);
}

#[test]
fn weights_in_sixteen_bits_are_kept_in_sixteen_bits() {
    let _alone = alone();
    let scaled = EngineOptions {
        loss_scaler: Some(LossScalerOptions::default()),
        ..EngineOptions::default()
    };
    for (precision, options, dtype) in [
        (Precision::Bf16True, EngineOptions::default(), DType::BF16),
        (Precision::F16True, scaled, DType::F16),
    ] {
        let mut module = erase(Net::new(plain()));
        let mut engine = engine_of(&mut *module, precision, options).unwrap();
        let mut step = || {
            forward(&mut engine, &*module, data(1, &plain(), 8), true).unwrap();
            update(&mut engine, &mut *module).unwrap()
        };
        // The scale may have to fall first.
        assert!((0..20).any(|_| matches!(step(), Update::Stepped { .. })));
        assert!(values(&*module).values().all(|value| value.dtype() == dtype));
    }
    let mut module = erase(Net::new(plain()));
    let error = engine_of(&mut *module, Precision::F16True, EngineOptions::default());
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("16-mixed") && error.contains("bf16-true"),
        "{error}"
    );
}

#[test]
fn a_layer_that_is_kept_must_be_cast_at_its_boundary() {
    let _alone = alone();
    let keeping = |pattern: &str| PrecisionPolicy {
        precision: Precision::Bf16Mixed,
        keep_full: vec![pattern.into()],
    };
    // The module does not cast before its last layer.
    let mut module = erase(Net::new(plain()));
    let mut engine = engine_of(&mut *module, keeping("layers.1.*"), EngineOptions::default()).unwrap();
    let error = forward(&mut engine, &*module, data(1, &plain(), 8), true).unwrap_err();
    assert!(matches!(error, Error::MixedDTypes { .. }), "{error}");
    let error = error.to_string();
    for part in [
        "training_step",
        "bf16-mixed",
        "'layers.1.*'",
        "step.full_precision",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let mut module = erase(Net::new(plain()));
    let error = engine_of(&mut *module, keeping("heads.*"), EngineOptions::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("heads.*"), "{error}");
}

#[test]
fn several_optimizers_share_the_scale() {
    let _alone = alone();
    #[derive(Module, Debug)]
    struct Two {
        first: Linear,
        second: Linear,
    }
    impl LightningModule for Two {
        type Batch = Tensor<2>;
        fn training_step(&self, x: Tensor<2>, step: &mut StepContext) -> Result<Tensor<1>> {
            let layer = if step.optimizer_index() == 0 {
                &self.first
            } else {
                &self.second
            };
            Ok(step.full_precision(layer.forward(x)).powf_scalar(2.0).mean())
        }
        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            OptimizerSetup::new(AdamWConfig::new(), 0.1)
                .named("first")
                .parameters("first.*")
                .and(
                    OptimizerSetup::new(AdamWConfig::new(), 0.1)
                        .named("second")
                        .parameters("second.*"),
                )
        }
    }
    let linear = || LinearConfig::new(4, 4).init(&device());
    let mut module = erase(Two {
        first: linear(),
        second: linear(),
    });
    let mut engine = engine_of(&mut *module, Precision::F16Mixed, EngineOptions::default()).unwrap();
    let x = Tensor::<2>::random([8, 4], Distribution::Default, &device()).cast(FloatDType::F16);
    for (optimizer, factor) in [(0, 1.0), (1, 1e4), (0, 1.0), (1, 1.0)] {
        let batch = AnyBatch::new(x.clone() * factor);
        let mut step = StepContext::new(StepInfo {
            optimizer_index: optimizer,
            ..context_in(&engine, 0).info().clone()
        });
        let scale = engine.loss_scale().unwrap();
        engine.micro_batch(&*module, batch, &mut step, true).unwrap();
        let outcome = engine.update(&mut *module, optimizer, &mut |_| Ok(())).unwrap();
        let skipped = outcome == Update::Skipped;
        assert_eq!(skipped, factor > 1.0);
        let expected = if skipped { scale / 2.0 } else { scale };
        assert_eq!(engine.loss_scale(), Some(expected));
    }
}

/// The sequences and what PyTorch made of them come from `data/grad_scaler.py`.
#[test]
fn the_scale_is_that_of_pytorch_after_any_sequence() {
    let sequences = include_str!("data/grad_scaler.csv");
    let mut count = 0;
    for line in sequences.lines().filter(|line| !line.starts_with('#')) {
        let [initial, growth, backoff, interval, sequence, bits, good] =
            line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        let mut scaler = LossScaler::new(LossScalerOptions {
            initial_scale: initial.parse().unwrap(),
            growth_factor: growth.parse().unwrap(),
            backoff_factor: backoff.parse().unwrap(),
            growth_interval: interval.parse().unwrap(),
            min_scale: f32::MIN_POSITIVE,
            max_scale: f32::MAX,
        })
        .unwrap();
        for finite in sequence.chars().map(|digit| digit == '1') {
            scaler.update(finite).unwrap();
        }
        assert_eq!(format!("{:08x}", scaler.state().scale_bits), bits, "{line}");
        assert_eq!(scaler.good_updates(), good.parse::<u32>().unwrap(), "{line}");
        count += 1;
    }
    assert_eq!(count, 5000);
}
