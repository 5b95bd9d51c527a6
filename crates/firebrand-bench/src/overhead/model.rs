use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Int, Tensor};

/// Of every loop's optimizer.
pub(super) const LEARNING_RATE: f64 = 1e-3;
/// How often a loop looks at its loss.
pub(super) const LOG_EVERY_N_STEPS: u64 = 50;

/// Inputs of shape `[batch_size, width]` and the classes that belong to them.
pub(super) type Batch = (Tensor<2>, Tensor<1, Int>);

/// What updates the weights, as Burn's configuration comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optimizer {
    AdamW,
    Sgd,
}

/// Which of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// So little arithmetic that everything else shows.
    Small,
    /// So much that hardly anything else does, but 23 MB of gradients in each step.
    Large,
}

impl Size {
    pub(super) const ALL: [Self; 2] = [Self::Small, Self::Large];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }

    /// The name of one of its numbers.
    pub(super) fn key(self, number: &str) -> String {
        format!("overhead.{}.{number}", self.name())
    }

    pub(super) fn widths(self) -> &'static [usize] {
        match self {
            Self::Small => &[64, 128, 10],
            Self::Large => &[784, 2048, 2048, 10],
        }
    }

    pub(super) fn batch_size(self) -> usize {
        match self {
            Self::Small => 64,
            Self::Large => 128,
        }
    }

    /// The same few batches every time, on a device with or without autodiff.
    pub(super) fn batches(self, num_batches: usize, device: &Device) -> Vec<Batch> {
        let (inputs, classes) = (self.widths()[0], self.widths()[self.widths().len() - 1]);
        device.seed(1);
        (0..num_batches)
            .map(|_| {
                let images = Tensor::random([self.batch_size(), inputs], Distribution::Default, device);
                let labels = Distribution::Uniform(0.0, classes as f64);
                (
                    images,
                    Tensor::<1>::random([self.batch_size()], labels, device).int(),
                )
            })
            .collect()
    }
}

/// Linear layers with ReLU between them, for classification by cross entropy.
#[derive(Module, Debug)]
pub(super) struct Mlp {
    layers: Vec<Linear>,
    #[module(skip)]
    pub(super) optimizer: Optimizer,
}

impl Mlp {
    /// A model with the same weights every time, drawn on the device.
    pub(super) fn new(size: Size, optimizer: Optimizer, device: &Device) -> Self {
        device.seed(0);
        let layers: Vec<Linear> = size
            .widths()
            .windows(2)
            .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
            .collect();
        // Drawn here and now, so that no loop can draw them in another order.
        for layer in &layers {
            let _ = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
        }
        Self { layers, optimizer }
    }

    /// The mean cross entropy of a batch: what every loop minimises.
    pub(super) fn loss(&self, (images, labels): Batch) -> Tensor<1> {
        let mut activations = images;
        for (index, layer) in self.layers.iter().enumerate() {
            if index > 0 {
                activations = relu(activations);
            }
            activations = layer.forward(activations);
        }
        CrossEntropyLossConfig::new()
            .init(&activations.device())
            .forward(activations, labels)
    }

    /// All weights, in order.
    #[cfg(test)]
    pub(super) fn weights(&self) -> Vec<f32> {
        let values = self.layers.iter().flat_map(|layer| {
            let bias = layer.bias.as_ref().map(|bias| bias.val().into_data());
            [Some(layer.weight.val().into_data()), bias].into_iter().flatten()
        });
        values
            .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
            .collect()
    }
}
