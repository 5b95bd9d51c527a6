//! What both programs train: the network, its data, and for how long.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use firebrand::data::SampleRng;

/// Three layers: 16 values in, 128, 128, one out.
#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    second: Linear,
    third: Linear,
}

impl Net {
    /// The network on a device. Its weights are drawn at once, so that both programs begin with the same.
    pub fn new(device: &Device) -> Self {
        device.seed(SEED);
        let net = Self {
            first: LinearConfig::new(INPUTS, 128).init(device),
            second: LinearConfig::new(128, 128).init(device),
            third: LinearConfig::new(128, 1).init(device),
        };
        for layer in [&net.first, &net.second, &net.third] {
            layer.weight.val();
            layer.bias.as_ref().map(|bias| bias.val());
        }
        net
    }

    /// `[samples, 16]` to `[samples, 1]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(x));
        let x = relu(self.second.forward(x));
        self.third.forward(x)
    }
}

/// The mean of the squares of the differences, in the dtype of both.
pub fn mean_squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (output - target).powf_scalar(2.0).mean()
}

/// A sample: values, and what the network is to make of them.
pub type Sample = ([f32; INPUTS], f32);

/// Sample `index`, the same in both programs.
pub fn sample(index: usize) -> Sample {
    let mut rng = SampleRng::new(SEED, 0, index);
    let x = std::array::from_fn(|_| rng.uniform(-1.0, 1.0) as f32);
    // Far enough from zero that gradients overflow float16 with the scale that a run begins with.
    let target = 10.0 + 20.0 * x[0] * x[1] + 10.0 * (3.0 * x[2]).sin();
    // Quarters are exact in every dtype, so that 16 bits do not change the task.
    (x, (4.0 * target).round() / 4.0)
}

/// Samples as tensors, `[samples, 16]` and `[samples, 1]`.
pub fn collate(samples: Vec<Sample>, device: &Device) -> (Tensor<2>, Tensor<2>) {
    let count = samples.len();
    let (xs, targets): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
    (
        Tensor::<1>::from_floats(xs.concat().as_slice(), device).reshape([count, INPUTS]),
        Tensor::<1>::from_floats(targets.as_slice(), device).reshape([count, 1]),
    )
}

/// What both programs print.
pub fn report(global_step: u64, loss: f64, loss_scale: Option<f64>) -> String {
    let scale = loss_scale.map_or(String::new(), |scale| format!(", loss scale {scale}"));
    format!("step {global_step}: loss {loss:.4}{scale}")
}

/// The number of values of a sample.
pub const INPUTS: usize = 16;
/// The number of samples.
pub const SAMPLES: usize = 4096;
/// The samples of a batch.
pub const BATCH: usize = 64;
/// How often all samples are used.
pub const EPOCHS: u64 = 5;
/// Every so many updates the loss is printed.
pub const EVERY: u64 = 30;
/// The learning rate of AdamW.
pub const RATE: f64 = 2e-3;
/// What weights and samples are drawn from.
const SEED: u64 = 42;
