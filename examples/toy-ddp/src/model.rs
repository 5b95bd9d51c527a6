use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Two layers: 10 values in, 10 in between, 5 out.
#[derive(Module, Debug)]
pub struct Toy {
    first: Linear,
    second: Linear,
}

impl Toy {
    /// The network on a device, its weights not drawn yet.
    pub fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(10, 10).init(device),
            second: LinearConfig::new(10, 5).init(device),
        }
    }

    /// `[samples, 10]` to `[samples, 5]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.second.forward(relu(self.first.forward(x)))
    }
}

/// The mean of the squares of the differences.
pub fn mean_squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (output - target).powf_scalar(2.0).mean()
}

/// The samples of a batch on each rank.
pub const BATCH: usize = 20;
/// The number of updates.
pub const STEPS: usize = 10;
/// The learning rate of SGD.
pub const RATE: f64 = 1e-3;
