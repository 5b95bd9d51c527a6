//! A checkpoint's optimizer state is taken over wholly or not at all, and never lost without a word.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, DynOptimizer, Optimizer, RecordState, SgdConfig, StateSink, StateSource,
};
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebrand_core::{
    ErasedModule, FitInfo, LightningModule, OptimizerSetup, Result, Schedule, StepContext, erase,
};
use firebrand_strategy::{Engine, EngineOptions, EngineState, Precision, PrepareOptions, SingleDevice};
use support::*;

fn adam() -> OptimizerSetup {
    OptimizerSetup::new(AdamConfig::new(), 0.1)
}

fn fresh(setup: &OptimizerSetup) -> (Box<dyn ErasedModule>, Engine) {
    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let engine = engine(&mut *module, setup, EngineOptions::default()).unwrap();
    (module, engine)
}

fn batch(number: u64) -> Points {
    points(number, 8, DType::F32, &device())
}

/// The state after three steps.
fn trained(setup: &OptimizerSetup) -> EngineState {
    let (mut module, mut engine) = fresh(setup);
    for number in 0..3 {
        step(&mut engine, &mut *module, batch(number), number).unwrap();
    }
    engine.state()
}

#[test]
fn a_state_names_its_parameters_by_path() {
    let _alone = alone();
    let state = trained(&adam());
    let names: Vec<&str> = state.tensors.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "fc1.bias.momentum.moment_1",
            "fc1.bias.momentum.moment_2",
            "fc1.weight.momentum.moment_1",
            "fc1.weight.momentum.moment_2",
            "fc2.bias.momentum.moment_1",
            "fc2.bias.momentum.moment_2",
            "fc2.weight.momentum.moment_1",
            "fc2.weight.momentum.moment_2",
        ]
    );
    // Taken twice it is the same, and taken over it is too.
    let (_, mut engine) = fresh(&adam());
    engine.load_state(state.clone()).unwrap();
    assert_eq!(engine.state().tensors, state.tensors);
    assert_eq!(engine.state().scalars, state.scalars);
}

/// What may be wrong with a state, and what is said about it.
#[test]
fn a_state_that_does_not_fit_is_refused_and_changes_nothing() {
    let _alone = alone();
    let good = trained(&adam());
    let changed = |change: &dyn Fn(&mut EngineState)| {
        let mut state = good.clone();
        change(&mut state);
        state
    };
    let weight = "fc1.weight.momentum.moment_1";
    let cases: Vec<(&str, EngineState, &str)> = vec![
        (
            "a tensor is missing",
            changed(&|state| drop(state.tensors.remove(weight))),
            "that of 'fc1.weight' is incomplete",
        ),
        (
            "a tensor has the shape of another layer",
            changed(&|state| {
                let data = TensorData::zeros::<f32, _>([7, 16]);
                state.tensors.insert(weight.to_owned(), data);
            }),
            "'fc1.weight.momentum.moment_1' has the shape [7, 16], and the module needs [6, 16]",
        ),
        (
            "a tensor has another rank",
            changed(&|state| {
                let data = TensorData::zeros::<f32, _>([96]);
                state.tensors.insert(weight.to_owned(), data);
            }),
            "has the shape [96]",
        ),
        (
            "a parameter was renamed",
            changed(&|state| {
                let text = state.scalars.to_string().replace("fc1.weight", "first.weight");
                state.scalars = serde_json::from_str(&text).unwrap();
            }),
            "'first.weight', which no optimizer of the module trains",
        ),
        (
            "a tensor belongs to nothing",
            changed(&|state| {
                let data = TensorData::zeros::<f32, _>([1]);
                state
                    .tensors
                    .insert("fc9.weight.momentum.moment_1".to_owned(), data);
            }),
            "'fc9.weight.momentum.moment_1', which the optimizer does not know",
        ),
        (
            "the scalars are something else",
            changed(&|state| state.scalars = serde_json::json!({"optimizers": 3})),
            "the saved state of the optimizer cannot be used",
        ),
        (
            "another optimizer",
            trained(&OptimizerSetup::new(SgdConfig::new(), 0.1)),
            "incomplete or of another optimizer",
        ),
        (
            "a schedule that is not there now",
            trained(&adam().schedule(Schedule::linear_warmup(2))),
            "it holds a schedule for 'optimizer'",
        ),
    ];
    for (name, state, expected) in cases {
        let (mut module, mut engine) = fresh(&adam());
        engine.load_state(good.clone()).unwrap();
        let error = engine.load_state(state).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert_eq!(engine.state().tensors, good.tensors, "{name}");
        assert_eq!(engine.state().scalars, good.scalars, "{name}");
        step(&mut engine, &mut *module, batch(0), 0).unwrap();
    }
}

#[test]
fn what_the_checkpoint_lacks_is_not_started_anew_in_silence() {
    let _alone = alone();
    let (_, mut engine) = fresh(&adam().schedule(Schedule::linear_warmup(2)));
    let error = engine.load_state(trained(&adam())).unwrap_err().to_string();
    assert!(
        error.contains("no schedule for 'optimizer', which would start anew"),
        "{error}"
    );
}

/// A parameter that had no gradient yet has no state, and that is no fault.
#[test]
fn a_parameter_without_a_state_is_none() {
    let _alone = alone();
    let (mut module, mut engine) = fresh(&adam());
    engine.set_trained(&"fc1".into(), false).unwrap();
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
    let state = engine.state();
    assert_eq!(state.tensors.len(), 4);
    let (_, mut other) = fresh(&adam());
    other.load_state(trained(&adam())).unwrap();
    other.load_state(state.clone()).unwrap();
    assert_eq!(
        other.state().tensors,
        state.tensors,
        "what was there before is gone"
    );
}

/// Precision may change between two runs: the state follows the weights.
#[test]
fn a_state_follows_the_precision_of_the_weights() {
    let _alone = alone();
    let in_precision = |precision: Precision| {
        let mut module = erase(Mlp::with_dropout(0.0, &device()));
        let options = PrepareOptions {
            precision: precision.into(),
            ..prepare(&device())
        };
        let new = Engine::new(
            &mut *module,
            &adam(),
            &options,
            EngineOptions::default(),
            Box::new(SingleDevice::new()),
        );
        (module, new.unwrap())
    };
    let single = trained(&adam());
    let (mut module, mut engine) = in_precision(Precision::F64);
    engine.load_state(single.clone()).unwrap();
    let double = engine.state();
    for (name, data) in &double.tensors {
        assert_eq!(data.dtype(), DType::F64);
        assert!(
            data.iter::<f64>().eq(single.tensors[name].iter::<f64>()),
            "{name}"
        );
    }
    step(&mut engine, &mut *module, points(1, 8, DType::F64, &device()), 0).unwrap();
    let (mut module, mut engine) = in_precision(Precision::F32);
    engine.load_state(double).unwrap();
    assert_eq!(engine.state().tensors, single.tensors);
    step(&mut engine, &mut *module, batch(1), 0).unwrap();
}

/// An optimizer of a user's own, with the state that Burn derives: one tensor.
#[derive(Clone)]
struct Averaging;

#[derive(Clone)]
struct Average<const D: usize> {
    average: Tensor<D>,
}

impl<const D: usize> RecordState for Average<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_tensor(prefix, "average", self.average.clone().into_data());
    }

    // As Burn's derive writes it: in the default dtype of the device.
    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let average = Tensor::from_data(source.take_tensor(prefix, "average")?, device);
        Some(Self { average })
    }
}

impl Optimizer for Averaging {
    type State<const D: usize> = Average<D>;

    fn step<const D: usize>(
        &self,
        rate: f64,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Average<D>>,
    ) -> (Tensor<D>, Option<Average<D>>) {
        let average = match state {
            Some(state) => (state.average + gradient) / 2.0,
            None => gradient,
        };
        (tensor - average.clone() * rate, Some(Average { average }))
    }

    fn to_device<const D: usize>(state: Average<D>, device: &Device) -> Average<D> {
        Average {
            average: state.average.to_device(device),
        }
    }
}

#[test]
fn an_optimizer_of_your_own_is_restored_where_that_is_exact_and_refused_where_not() {
    let _alone = alone();
    let custom = || OptimizerSetup::custom(Arc::new(Averaging) as Arc<dyn DynOptimizer>, 0.1);
    let (mut module, mut engine) = fresh(&custom());
    for number in 0..3 {
        step(&mut engine, &mut *module, batch(number), number).unwrap();
    }
    let (mut resumed, mut other) = fresh(&custom());
    set_values(&mut *resumed, &values(&*module));
    other.load_state(engine.state()).unwrap();
    step(&mut engine, &mut *module, batch(3), 3).unwrap();
    step(&mut other, &mut *resumed, batch(3), 3).unwrap();
    assert_eq!(values(&*module), values(&*resumed));

    let mut module = erase(Mlp::with_dropout(0.0, &device()));
    let options = PrepareOptions {
        precision: Precision::F64.into(),
        ..prepare(&device())
    };
    let boxed = Box::new(SingleDevice::new());
    let mut double = Engine::new(&mut *module, &custom(), &options, EngineOptions::default(), boxed).unwrap();
    let error = double.load_state(engine.state()).unwrap_err().to_string();
    assert!(error.contains("came back as F32 instead of F64"), "{error}");
}

/// Identities differ in each process; a state must not care.
#[test]
fn a_state_does_not_depend_on_identities_or_on_what_else_is_in_the_module() {
    let _alone = alone();

    #[derive(Module, Debug)]
    struct Outer {
        fc1: Linear,
        fc2: Linear,
        frozen: Linear,
    }

    impl LightningModule for Outer {
        type Batch = Points;

        fn training_step(&self, (x, y): Points, _: &mut StepContext) -> Result<Tensor<1>> {
            let logits = self.fc2.forward(self.fc1.forward(x).tanh());
            Ok(cross_entropy(self.frozen.forward(logits), y))
        }

        fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
            adam()
        }
    }

    let mut module = erase(Outer {
        fc1: LinearConfig::new(6, 16).init(&device()),
        fc2: LinearConfig::new(16, 3).init(&device()),
        frozen: LinearConfig::new(3, 3).init(&device()).no_grad(),
    });
    let mut engine = engine(&mut *module, &adam(), EngineOptions::default()).unwrap();
    let mut state = trained(&adam());
    state.scalars["frozen"] = serde_json::json!(["frozen.weight", "frozen.bias"]);
    engine.load_state(state).unwrap();
    assert!(!engine.is_trained(4) && engine.is_trained(0));
    step(&mut engine, &mut *module, batch(0), 0).unwrap();
}

/// AdamW's state is Adam's, and momentum may come and go: settings, which a user may change for the rest of a run.
#[test]
fn settings_may_change_with_the_same_state() {
    let _alone = alone();
    let (_, mut engine) = fresh(&OptimizerSetup::new(
        AdamWConfig::new().with_weight_decay(0.5),
        0.3,
    ));
    let state = trained(&adam());
    engine.load_state(state.clone()).unwrap();
    assert_eq!(engine.state().tensors, state.tensors);

    let plain = || OptimizerSetup::new(SgdConfig::new(), 0.1);
    let momentum = || OptimizerSetup::new(SgdConfig::new().with_momentum(Some(MomentumConfig::new())), 0.1);
    for (before, after) in [(plain(), momentum()), (momentum(), plain())] {
        let (mut module, mut engine) = fresh(&after);
        engine.load_state(trained(&before)).unwrap();
        step(&mut engine, &mut *module, batch(0), 0).unwrap();
    }
}
