//! What Burn's layers do in 16 bits, on Flex: the tables of `docs/mixed-precision.md`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};
use burn::nn::loss::{
    BinaryCrossEntropyLossConfig, CrossEntropyLossConfig, HuberLossConfig, MseLoss, Reduction,
};
use burn::nn::pool::{AdaptiveAvgPool2dConfig, AvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{
    BatchNormConfig, DropoutConfig, EmbeddingConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig,
    LinearConfig, LstmConfig, PositionalEncodingConfig, RmsNormConfig, RotaryEncodingConfig, gru::GruConfig,
};
use burn::tensor::activation::{gelu, log_softmax, relu, sigmoid, silu, softmax, softplus, tanh};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};

/// Values about as large as `size`, the same each time.
fn values<const D: usize>(dims: [usize; D], size: f64, dtype: FloatDType) -> Tensor<D> {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|n| (size * (1.7 * n as f64 + 0.3 * (n * n % 101) as f64).sin()) as f32)
        .collect();
    Tensor::<D>::from_data(TensorData::new(values, dims), &device()).cast(dtype)
}

thread_local! {
    /// Whether layers run as in a training step, or as in an evaluation: norms and softmax are other code there.
    static TRAINING: Cell<bool> = const { Cell::new(false) };
}

fn device() -> Device {
    match TRAINING.get() {
        true => Device::flex().autodiff(),
        false => Device::flex(),
    }
}

struct CastTo(FloatDType);

impl ModuleMapper for CastTo {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| value.cast(self.0))
    }
}

/// A layer whose weights are those of every other call, in a dtype.
fn cast<M: Module>(layer: M, dtype: FloatDType) -> M {
    device().seed(1);
    layer.map(&mut CastTo(dtype))
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.shape().num_elements();
    tensor.reshape([count])
}

/// What becomes of a layer whose weights and input have 16 bits. Its output always has them too.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// It is what float32 gives, within some roundings.
    Near,
    /// It has values that are not finite where float32 has none.
    Overflows,
    /// The layer has float32 values of its own, which Burn does not let meet those of another dtype.
    Mixes,
}
use Outcome::{Mixes, Near, Overflows};

type Run = fn(FloatDType, f64) -> Tensor<1>;

/// What it is, the size of its input, what becomes of it in bfloat16 and in float16, and how it is run.
type Case = (&'static str, f64, Outcome, Outcome, Run);

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    vec![
        ("Linear", 1.0, Near, Near, |t, s| flat(cast(LinearConfig::new(64, 32).init(&device()), t).forward(values([8, 64], s, t)))),
        ("Conv1d", 1.0, Near, Near, |t, s| flat(cast(Conv1dConfig::new(4, 8, 3).init(&device()), t).forward(values([2, 4, 16], s, t)))),
        ("Conv2d", 1.0, Near, Near, |t, s| flat(cast(Conv2dConfig::new([4, 8], [3, 3]).init(&device()), t).forward(values([2, 4, 8, 8], s, t)))),
        ("ConvTranspose2d", 1.0, Near, Near, |t, s| flat(cast(ConvTranspose2dConfig::new([4, 8], [3, 3]).init(&device()), t).forward(values([2, 4, 8, 8], s, t)))),
        ("MaxPool2d", 1.0, Near, Near, |t, s| flat(MaxPool2dConfig::new([2, 2]).init().forward(values([2, 4, 8, 8], s, t)))),
        ("AvgPool2d", 6e4, Near, Overflows, |t, s| flat(AvgPool2dConfig::new([4, 4]).init().forward(values([2, 4, 8, 8], s, t)))),
        ("AdaptiveAvgPool2d", 6e4, Near, Overflows, |t, s| flat(AdaptiveAvgPool2dConfig::new([1, 1]).init().forward(values([2, 4, 8, 8], s, t)))),
        ("Embedding", 1.0, Near, Near, |t, _| flat(cast(EmbeddingConfig::new(5, 8).init(&device()), t).forward(Tensor::<2, Int>::from_ints([[0, 3], [4, 1]], &device())))),
        ("Dropout", 1.0, Near, Near, |t, s| flat(cast(DropoutConfig::new(0.5).init(), t).forward(values([8, 8], s, t)))),
        ("LayerNorm", 1e3, Near, Near, |t, s| flat(cast(LayerNormConfig::new(64).init(&device()), t).forward(values([8, 64], s, t)))),
        ("RmsNorm", 1e3, Near, Near, |t, s| flat(cast(RmsNormConfig::new(64).init(&device()), t).forward(values([8, 64], s, t)))),
        ("GroupNorm", 1e3, Near, Near, |t, s| flat(cast(GroupNormConfig::new(2, 4).init(&device()), t).forward(values([2, 4, 8, 8], s, t)))),
        ("InstanceNorm", 1e3, Near, Near, |t, s| flat(cast(InstanceNormConfig::new(4).init(&device()), t).forward(values([2, 4, 8, 8], s, t)))),
        ("BatchNorm", 1.0, Mixes, Mixes, |t, s| {
            // As under mixed precision: the weights are cast, and the running statistics are not.
            let mut norm = BatchNormConfig::new(4).init(&device());
            norm.gamma = norm.gamma.map(|value| value.cast(t));
            norm.beta = norm.beta.map(|value| value.cast(t));
            flat(norm.forward(values([2, 4, 8, 8], s, t)))
        }),
        ("Lstm", 1.0, Mixes, Mixes, |t, s| flat(cast(LstmConfig::new(8, 8, true).init(&device()), t).forward(values([2, 4, 8], s, t), None).0)),
        ("Gru", 1.0, Mixes, Mixes, |t, s| flat(cast(GruConfig::new(8, 8, true).init(&device()), t).forward(values([2, 4, 8], s, t), None))),
        ("PositionalEncoding", 1.0, Mixes, Mixes, |t, s| flat(cast(PositionalEncodingConfig::new(8).init(&device()), t).forward(values([2, 4, 8], s, t)))),
        ("RotaryEncoding", 1.0, Mixes, Mixes, |t, s| flat(cast(RotaryEncodingConfig::new(16, 8).init(&device()), t).forward(values([2, 2, 4, 8], s, t)))),
        ("MultiHeadAttention", 1.0, Near, Near, |t, s| {
            let layer = cast(MultiHeadAttentionConfig::new(64, 1).with_dropout(0.0).init(&device()), t);
            flat(layer.forward(MhaInput::self_attn(values([2, 8, 64], s, t))).context)
        }),
        ("MultiHeadAttention, large scores", 200.0, Near, Overflows, |t, s| {
            let layer = cast(MultiHeadAttentionConfig::new(64, 1).with_dropout(0.0).init(&device()), t);
            flat(layer.forward(MhaInput::self_attn(values([2, 8, 64], s, t))).weights)
        }),
        ("firebrand::nn::MultiHeadAttention, large scores", 200.0, Near, Near, |t, s| {
            use firebrand::nn::{MhaInput, MultiHeadAttentionConfig};
            let layer = cast(MultiHeadAttentionConfig::new(64, 1).with_dropout(0.0).init(&device()).unwrap(), t);
            flat(layer.forward(MhaInput::self_attn(values([2, 8, 64], s, t))).unwrap().weights)
        }),
        ("relu", 1.0, Near, Near, |t, s| flat(relu(values([64], s, t)))),
        ("gelu", 10.0, Near, Near, |t, s| flat(gelu(values([64], s, t)))),
        ("silu", 10.0, Near, Near, |t, s| flat(silu(values([64], s, t)))),
        ("sigmoid", 10.0, Near, Near, |t, s| flat(sigmoid(values([64], s, t)))),
        ("tanh", 10.0, Near, Near, |t, s| flat(tanh(values([64], s, t)))),
        ("softplus, large", 1000.0, Near, Near, |t, s| flat(softplus(values([64], s, t), 1.0))),
        ("softmax", 10.0, Near, Near, |t, s| flat(softmax(values([4, 64], s, t), 1))),
        ("log_softmax", 10.0, Near, Near, |t, s| flat(log_softmax(values([4, 64], s, t), 1))),
        ("log_softmax over 100,000", 0.0, Near, Overflows, |t, s| flat(log_softmax(values([1, 100_000], s, t), 1))),
        ("sum of 100,000 ones", 0.0, Near, Overflows, |t, s| flat((values([100_000], s, t) + 1.0).sum())),
        ("mean of 100,000 ones", 0.0, Near, Near, |t, s| flat((values([100_000], s, t) + 1.0).mean())),
        ("var", 1e3, Near, Overflows, |t, s| flat(values([8, 64], s, t).var(1))),
        ("exp", 12.0, Near, Overflows, |t, s| flat(values([64], s, t).exp())),
        ("square", 300.0, Near, Overflows, |t, s| flat(values([64], s, t).powf_scalar(2.0))),
        ("cross entropy", 10.0, Near, Near, |t, s| {
            CrossEntropyLossConfig::new().init(&device()).forward(values([4, 8], s, t), Tensor::<1, Int>::from_ints([1, 3, 5, 7], &device()))
        }),
        ("cross entropy, smoothed", 10.0, Mixes, Mixes, |t, s| {
            CrossEntropyLossConfig::new().with_smoothing(Some(0.1)).init(&device()).forward(values([4, 8], s, t), Tensor::<1, Int>::from_ints([1, 3, 5, 7], &device()))
        }),
        ("binary cross entropy", 10.0, Mixes, Mixes, |t, s| {
            BinaryCrossEntropyLossConfig::new().with_logits(true).init(&device()).forward(values([4], s, t), Tensor::<1, Int>::from_ints([0, 1, 1, 0], &device()))
        }),
        ("MSE", 300.0, Near, Overflows, |t, s| MseLoss::new().forward(values([8, 8], s, t), values([8, 8], -s, t), Reduction::Mean)),
        ("Huber", 300.0, Near, Near, |t, s| HuberLossConfig::new(1.0).init().forward(values([8, 8], s, t), values([8, 8], -s, t), Reduction::Mean)),
    ]
}

fn outcome(dtype: FloatDType, size: f64, run: Run) -> Outcome {
    let exact: Vec<f64> = run(FloatDType::F32, size).into_data().iter().collect();
    assert!(exact.iter().all(|value| value.is_finite()));
    let found = catch_unwind(AssertUnwindSafe(|| {
        let output = run(dtype, size);
        assert_eq!(output.dtype(), DType::from(dtype));
        output
            .cast(FloatDType::F32)
            .into_data()
            .iter()
            .collect::<Vec<f64>>()
    }));
    let found = match found {
        Ok(found) => found,
        Err(panic) => {
            let text = panic.downcast::<String>().unwrap();
            assert!(text.contains("dtype"), "{text}");
            return Mixes;
        }
    };
    if found.iter().any(|value| !value.is_finite()) {
        return Overflows;
    }
    let largest = exact
        .iter()
        .fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let errors = exact
        .iter()
        .zip(&found)
        .map(|(exact, found)| (exact - found).abs());
    let error = errors.fold(0.0, f64::max) / largest;
    let epsilon = if dtype == FloatDType::BF16 {
        2f64.powi(-8)
    } else {
        2f64.powi(-11)
    };
    assert!(error < 8.0 * epsilon, "{dtype:?}: {error}");
    Near
}

#[test]
fn what_widens_and_what_does_not() {
    for training in [false, true] {
        TRAINING.set(training);
        for (name, size, bf16, f16, run) in cases() {
            println!("{name}, training: {training}");
            assert_eq!(outcome(FloatDType::BF16, size, run), bf16, "in bfloat16");
            assert_eq!(outcome(FloatDType::F16, size, run), f16, "in float16");
        }
    }
}

/// In an evaluation Flex has one kernel for a softmax, which adds up in float32; in training it is put together from operations in
/// the dtype of the input, and the sum of 100,000 ones is beyond float16.
#[test]
fn a_long_softmax_is_zero_in_float16_in_training() {
    let first = |device: &Device, dtype: FloatDType| {
        let scores = Tensor::<1>::zeros([100_000], device).cast(dtype);
        let first = softmax(scores, 0).narrow(0, 0, 1).cast(FloatDType::F32);
        first.into_scalar::<f32>()
    };
    let (evaluation, training) = (Device::flex(), Device::flex().autodiff());
    for (device, dtype, expected) in [
        (&evaluation, FloatDType::F16, 1e-5),
        (&evaluation, FloatDType::BF16, 1e-5),
        (&training, FloatDType::F16, 0.0),
        (&training, FloatDType::BF16, 1e-5),
    ] {
        let found = first(device, dtype);
        assert!(
            (found - expected).abs() < 1e-7,
            "{dtype:?}: {found} for {expected}"
        );
    }
}

/// Each of many gradients of one row is added to what is there, in the dtype of the row: from 256 on, one more is nothing in bfloat16.
#[test]
fn the_gradient_of_an_embedding_is_added_up_in_its_own_dtype() {
    let device = Device::flex().autodiff();
    let gradient = |dtype: FloatDType| {
        let master = Tensor::<2>::ones([2, 1], &device).require_grad();
        let embedding = EmbeddingConfig::new(2, 1).init(&device);
        let embedding = embedding.map(&mut Replace(master.clone().cast(dtype)));
        let output = embedding.forward(Tensor::<2, Int>::zeros([1, 5000], &device));
        let grads = output.cast(FloatDType::F32).sum().backward();
        master
            .grad(&grads)
            .unwrap()
            .into_data()
            .iter::<f32>()
            .next()
            .unwrap()
    };
    assert_eq!(gradient(FloatDType::F32), 5000.0);
    assert_eq!(gradient(FloatDType::BF16), 256.0);
    assert_eq!(gradient(FloatDType::F16), 2048.0);
}

/// Puts a tensor in the place of the one weight of rank two.
struct Replace(Tensor<2>);

impl ModuleMapper for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.clone();
        param.map(|weights| value.reshape(weights.dims()))
    }
}
