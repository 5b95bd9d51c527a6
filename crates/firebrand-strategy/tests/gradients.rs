//! Gradients through the engine are exactly Burn's own, on networks that nobody thought of.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::{Arc, Mutex};

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebrand_core::{AnyTensor, FitInfo, LightningModule, OptimizerSetup, Result, StepContext, erase};
use firebrand_strategy::{
    Engine, EngineOptions, Error, GradientExchange, GradientSink, PrepareOptions, Reduced, Share,
    SingleDevice,
};
use proptest::prelude::*;
use support::*;

/// The width of everything.
const WIDTH: usize = 3;

/// One operation on the state of the network, with the parameter that it uses.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// `x · w`
    Multiply(usize),
    /// `x + w`, element by element
    Add(usize),
    /// `x * w`, element by element
    Scale(usize),
    /// `x · wᵀ`
    Transposed(usize),
    /// `w · w`, added: one parameter twice in one operation
    Square(usize),
    /// `tanh(x)`
    Tanh,
    /// `x` if it is positive
    Relu,
    /// `x + x`
    Double,
    /// `w` without a gradient, added
    Detached(usize),
}

#[derive(Module, Debug)]
struct Random {
    weights: Vec<Param<Tensor<2>>>,
    #[module(skip)]
    program: Vec<Op>,
}

impl Random {
    fn new(num_weights: usize, program: &[Op], device: &Device) -> Self {
        Self {
            weights: (0..num_weights)
                .map(|number| Param::from_tensor(tensor(number as u64, [WIDTH, WIDTH], DType::F32, device)))
                .collect(),
            program: program.to_vec(),
        }
    }

    fn loss(&self, mut x: Tensor<2>) -> Tensor<1> {
        let weight = |number: usize| self.weights[number % self.weights.len()].val();
        for op in &self.program {
            x = match *op {
                Op::Multiply(number) => x.matmul(weight(number)),
                Op::Add(number) => x + weight(number),
                Op::Scale(number) => x * weight(number),
                Op::Transposed(number) => x.matmul(weight(number).transpose()),
                Op::Square(number) => x + weight(number).matmul(weight(number)),
                Op::Tanh => x.tanh(),
                Op::Relu => burn::tensor::activation::relu(x),
                Op::Double => x.clone() + x,
                Op::Detached(number) => x + weight(number).detach(),
            };
        }
        // One parameter is always used, so that there is a graph.
        (x + weight(0)).powf_scalar(2.0).mean()
    }
}

impl LightningModule for Random {
    type Batch = Tensor<2>;

    fn training_step(&self, x: Tensor<2>, _: &mut StepContext) -> Result<Tensor<1>> {
        Ok(self.loss(x))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(SgdConfig::new(), 0.1)
    }
}

fn op() -> impl Strategy<Value = Op> {
    let parameter = 0usize..6;
    prop_oneof![
        3 => parameter.clone().prop_map(Op::Multiply),
        2 => parameter.clone().prop_map(Op::Add),
        2 => parameter.clone().prop_map(Op::Scale),
        1 => parameter.clone().prop_map(Op::Transposed),
        1 => parameter.clone().prop_map(Op::Square),
        2 => Just(Op::Tanh),
        1 => Just(Op::Relu),
        1 => Just(Op::Double),
        1 => parameter.prop_map(Op::Detached),
    ]
}

/// Leaves out the operations that would use a parameter for the third time.
///
/// Two addends make the same sum in either order. With three, the order in which a backward pass comes by them shows in the last
/// bit, and that depends on depths, which a parameter-use node changes.
fn twice_at_most(num_weights: usize, program: &[Op]) -> Vec<Op> {
    let mut uses = vec![0; num_weights];
    uses[0] = 1; // At the end of every program.
    let fits = |op: &&Op| {
        let (number, more) = match **op {
            Op::Multiply(number) | Op::Add(number) | Op::Scale(number) | Op::Transposed(number) => {
                (number, 1)
            }
            Op::Square(number) => (number, 2),
            Op::Tanh | Op::Relu | Op::Double | Op::Detached(_) => return true,
        };
        let count = &mut uses[number % num_weights];
        let fits = *count + more <= 2;
        if fits {
            *count += more;
        }
        fits
    };
    program.iter().filter(fits).copied().collect()
}

/// Counts what the backward pass pushes, and keeps what an update gets.
#[derive(Default)]
struct Recorder {
    overlaps: bool,
    inner: SingleDevice,
    log: Arc<Log>,
}

#[derive(Default)]
struct Log {
    pushes: Mutex<Vec<usize>>,
    gradients: Mutex<Vec<(usize, TensorData)>>,
}

struct Counting {
    log: Arc<Log>,
    inner: Arc<dyn GradientSink>,
}

impl GradientSink for Counting {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        self.log.pushes.lock().unwrap().push(parameter);
        self.inner.push(parameter, gradient);
    }
}

impl GradientExchange for Recorder {
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
        Arc::new(Counting {
            log: Arc::clone(&self.log),
            inner: self.inner.sink(optimizer),
        })
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn begin_backward(&mut self, optimizer: usize, last: bool) {
        self.inner.begin_backward(optimizer, last);
    }

    fn finish(&mut self, optimizer: usize, share: Share) -> Result<Reduced, Error> {
        let reduced = self.inner.finish(optimizer, share)?;
        let data = reduced
            .gradients
            .iter()
            .map(|gradient| (gradient.parameter, gradient.value.clone().into_data()));
        self.log.gradients.lock().unwrap().extend(data);
        Ok(reduced)
    }

    fn discard(&mut self, optimizer: usize) -> Result<(), Error> {
        self.inner.discard(optimizer)
    }
}

/// The gradients of the engine, by parameter, and in which order they were complete.
fn through_the_engine(
    net: Random,
    x: Tensor<2>,
    device: &Device,
    overlaps: bool,
) -> (Vec<(usize, TensorData)>, Vec<usize>) {
    let mut module = erase(net);
    let recorder = Recorder {
        overlaps,
        ..Recorder::default()
    };
    let log = Arc::clone(&recorder.log);
    let options = PrepareOptions { ..prepare(device) };
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.1);
    let mut engine = Engine::new(
        &mut *module,
        &setup,
        &options,
        EngineOptions::default(),
        Box::new(recorder),
    )
    .unwrap();
    // A deep random network may overflow; what is compared is what came in, whatever becomes of it.
    let _ = step(&mut engine, &mut *module, x, 0);
    let gradients = std::mem::take(&mut *log.gradients.lock().unwrap());
    let pushes = std::mem::take(&mut *log.pushes.lock().unwrap());
    (gradients, pushes)
}

/// Burn's own gradients.
fn plain(net: &Random, x: Tensor<2>) -> Vec<(usize, TensorData)> {
    let mut gradients = GradientsParams::from_grads(net.loss(x).backward(), net);
    let found = net.weights.iter().enumerate();
    found
        .filter_map(|(number, weight)| Some((number, gradients.remove::<2>(weight.id)?.into_data())))
        .collect()
}

/// Bits, so that NaN equals NaN.
fn bits(gradients: &[(usize, TensorData)]) -> Vec<(usize, Vec<u32>)> {
    let bits = |data: &TensorData| data.iter::<f32>().map(f32::to_bits).collect();
    gradients
        .iter()
        .map(|(parameter, data)| (*parameter, bits(data)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gradients_are_burns_own_bit_by_bit(
        num_weights in 1usize..5,
        program in prop::collection::vec(op(), 0..12),
        checkpointing in any::<bool>(),
        overlaps in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let _alone = alone();
        let device = if checkpointing { device().gradient_checkpointing() } else { device() };
        let program = twice_at_most(num_weights, &program);
        let x = tensor(seed, [WIDTH, WIDTH], DType::F32, &device);
        let net = || Random::new(num_weights, &program, &device);
        let expected = plain(&net(), x.clone());
        let (found, mut pushes) = through_the_engine(net(), x, &device, overlaps);
        prop_assert_eq!(bits(&found), bits(&expected));
        // Each parameter that is used arrives once, however often it is used.
        pushes.sort_unstable();
        let used: Vec<usize> = expected.iter().map(|(parameter, _)| *parameter).collect();
        prop_assert_eq!(pushes, used);
    }
}

#[test]
fn a_parameter_used_many_times_has_one_gradient() {
    let _alone = alone();
    let program = [
        Op::Scale(1),
        Op::Square(1),
        Op::Tanh,
        Op::Transposed(1),
        Op::Add(0),
        Op::Multiply(1),
        Op::Square(0),
    ];
    let x = || tensor(4, [WIDTH, WIDTH], DType::F32, &device());
    let net = || Random::new(2, &program, &device());
    let expected = plain(&net(), x());
    for overlaps in [false, true] {
        let (found, pushes) = through_the_engine(net(), x(), &device(), overlaps);
        assert_eq!(pushes.len(), 2);
        for ((_, found), (_, expected)) in found.iter().zip(&expected) {
            for (found, expected) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                assert!(
                    (found - expected).abs() < 1e-5 * expected.abs().max(1.0),
                    "{found} {expected}"
                );
            }
        }
    }
}

/// The layers of a network in the order of its fields: what a strategy that overlaps counts on.
#[test]
fn gradients_arrive_late_layers_first_if_that_was_asked_for() {
    let _alone = alone();
    let layers = [
        Op::Multiply(1),
        Op::Add(2),
        Op::Tanh,
        Op::Multiply(3),
        Op::Add(4),
        Op::Tanh,
        Op::Multiply(5),
        Op::Add(6),
    ];
    // Parameter 0 is the last that is used and the first in the module.
    let x = || tensor(1, [WIDTH, WIDTH], DType::F32, &device());
    let net = || Random::new(8, &layers, &device());
    let (gradients, pushes) = through_the_engine(net(), x(), &device(), true);
    assert_eq!(pushes, [6, 5, 4, 3, 2, 1, 0]);
    let parameters: Vec<usize> = gradients.iter().map(|(parameter, _)| *parameter).collect();
    assert_eq!(
        parameters,
        [0, 1, 2, 3, 4, 5, 6],
        "in the order of the table, and without the one that is not used"
    );
    assert_eq!(bits(&gradients), bits(&plain(&net(), x())));
}

/// Two forward passes may be alive at once; each is back-propagated on its own.
#[test]
fn forward_passes_do_not_disturb_each_other() {
    let _alone = alone();
    let program = [Op::Multiply(0), Op::Tanh, Op::Multiply(1)];
    let mut module = erase(Random::new(2, &program, &device()));
    let recorder = Recorder::default();
    let log = Arc::clone(&recorder.log);
    let setup = OptimizerSetup::new(SgdConfig::new(), 0.1);
    let options = prepare(&device());
    let mut engine = Engine::new(
        &mut *module,
        &setup,
        &options,
        EngineOptions::default(),
        Box::new(recorder),
    )
    .unwrap();
    let x = |seed| tensor(seed, [WIDTH, WIDTH], DType::F32, &device());
    let context = context(0, 0);
    let mut manual = engine.manual(&context);
    let first = firebrand_core::ManualEngine::begin_forward(&mut manual, &*module).unwrap();
    let second = firebrand_core::ManualEngine::begin_forward(&mut manual, &*module).unwrap();
    let loss = |twin: &dyn firebrand_core::ErasedModule, seed| {
        firebrand_core::downcast_module::<Random>(twin)
            .unwrap()
            .loss(x(seed))
    };
    let (a, b) = (loss(&*first, 1), loss(&*second, 2));
    for loss in [b, a] {
        firebrand_core::ManualEngine::backward(&mut manual, loss).unwrap();
    }
    firebrand_core::ManualEngine::step(&mut manual, &mut *module, "optimizer").unwrap();
    let found = std::mem::take(&mut *log.gradients.lock().unwrap());
    let net = Random::new(2, &program, &device());
    let (a, b) = (plain(&net, x(1)), plain(&net, x(2)));
    for ((_, found), ((_, a), (_, b))) in found.iter().zip(a.iter().zip(&b)) {
        let sums: Vec<f32> = a.iter::<f32>().zip(b.iter::<f32>()).map(|(a, b)| b + a).collect();
        assert_eq!(found.iter::<f32>().collect::<Vec<_>>(), sums);
    }
    assert_eq!(found.len(), 2);
}
