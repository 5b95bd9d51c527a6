//! The multilayer perceptron of several benchmarks.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Linear layers with ReLU between them.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    pub(crate) fn new(widths: &[usize], device: &Device) -> Self {
        Self {
            layers: widths
                .windows(2)
                .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
                .collect(),
        }
    }

    /// `[samples, widths[0]]` to `[samples, widths[last]]`.
    pub(crate) fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for (number, layer) in self.layers.iter().enumerate() {
            if number > 0 {
                x = relu(x);
            }
            x = layer.forward(x);
        }
        x
    }
}
