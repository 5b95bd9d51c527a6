use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, Int, Tensor};
use clap::ValueEnum;
use firebrand::nn::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use firebrand::{FitInfo, LightningModule, OptimizerSetup, StepContext};

use crate::mlp::Mlp;

/// The tokens of the GPTs, and the classes of the MLPs.
const NUM_TOKENS: usize = 256;
const NUM_INPUTS: usize = 784;
const NUM_CLASSES: usize = 10;
const LEARNING_RATE: f64 = 1e-4;

/// A model and its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Width 512, 8 layers, context 256, batch 16.
    Gpt,
    /// 784-2048-2048-10, batch 1024.
    Mlp,
    /// Width 128, 4 layers, context 64, batch 16.
    GptSmall,
    /// 784-256-256-10, batch 128.
    MlpSmall,
}

/// The size of a [`Workload`]: of an MLP without layers and context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub width: usize,
    pub layers: usize,
    pub context: usize,
    pub batch: usize,
    /// The steps of a window.
    pub window: usize,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Gpt, Self::Mlp, Self::GptSmall, Self::MlpSmall];

    pub(super) fn size(self) -> Size {
        let (width, layers, context, batch, window) = match self {
            Self::Gpt => (512, 8, 256, 16, 1),
            Self::Mlp => (2048, 0, 0, 1024, 3),
            Self::GptSmall => (128, 4, 64, 16, 10),
            Self::MlpSmall => (256, 0, 0, 128, 100),
        };
        Size {
            width,
            layers,
            context,
            batch,
            window,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Mlp => "mlp",
            Self::GptSmall => "gpt-small",
            Self::MlpSmall => "mlp-small",
        }
    }

    /// The size in the arguments of the Python script.
    pub(super) fn sizes(self) -> Vec<String> {
        let size = self.size();
        [
            ("--width", size.width),
            ("--layers", size.layers),
            ("--context", size.context),
            ("--batch-size", size.batch),
            ("--window", size.window),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
        .collect()
    }

    /// The name of one of its numbers.
    pub(super) fn key(self, number: &str) -> String {
        format!("precision.{}.{number}", self.name().replace('-', "_"))
    }

    /// Some batches of random data.
    pub(super) fn batches(self, num_batches: usize, device: &Device) -> Vec<Batch> {
        let size = self.size();
        let tokens = |shape: [usize; 2], count: usize| -> Tensor<2, Int> {
            Tensor::<2>::random(shape, Distribution::Uniform(0.0, count as f64), device).int()
        };
        (0..num_batches)
            .map(|_| match size.layers {
                0 => Batch {
                    floats: Tensor::random([size.batch, NUM_INPUTS], Distribution::Default, device),
                    tokens: tokens([size.batch, 1], 1),
                    targets: tokens([size.batch, 1], NUM_CLASSES),
                },
                _ => Batch {
                    floats: Tensor::zeros([size.batch, 1], device),
                    tokens: tokens([size.batch, size.context], NUM_TOKENS),
                    targets: tokens([size.batch, size.context], NUM_TOKENS),
                },
            })
            .collect()
    }
}

/// What a model reads; an MLP the floats, a GPT the tokens.
#[derive(firebrand::Batch, Clone, Debug)]
pub(super) struct Batch {
    floats: Tensor<2>,
    tokens: Tensor<2, Int>,
    targets: Tensor<2, Int>,
}

/// A GPT or an MLP.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a run has one model")]
pub(super) enum Model {
    Gpt(Gpt),
    Mlp(Mlp),
}

impl Model {
    pub(super) fn new(workload: Workload, device: &Device) -> firebrand::Result<Self> {
        let size = workload.size();
        Ok(match size.layers {
            0 => Self::Mlp(Mlp::new(
                &[NUM_INPUTS, size.width, size.width, NUM_CLASSES],
                device,
            )),
            _ => Self::Gpt(Gpt::new(size, device)?),
        })
    }
}

/// Pre-norm transformer blocks with causal attention.
#[derive(Module, Debug)]
pub(super) struct Gpt {
    tokens: Embedding,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
pub(super) struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Gpt {
    fn new(size: Size, device: &Device) -> firebrand::Result<Self> {
        const HEAD: usize = 64;
        let Size { width, .. } = size;
        let block = || -> firebrand::Result<Block> {
            Ok(Block {
                norm1: LayerNormConfig::new(width).init(device),
                attention: MultiHeadAttentionConfig::new(width, width / HEAD)
                    .with_dropout(0.0)
                    .with_causal(true)
                    .init(device)?,
                norm2: LayerNormConfig::new(width).init(device),
                up: LinearConfig::new(width, 4 * width).init(device),
                down: LinearConfig::new(4 * width, width).init(device),
            })
        };
        let positions = Tensor::random([size.context, width], Distribution::Normal(0.0, 0.02), device);
        Ok(Self {
            tokens: EmbeddingConfig::new(NUM_TOKENS, width).init(device),
            positions: Param::from_tensor(positions),
            blocks: (0..size.layers)
                .map(|_| block())
                .collect::<firebrand::Result<_>>()?,
            norm: LayerNormConfig::new(width).init(device),
            head: LinearConfig::new(width, NUM_TOKENS).init(device),
        })
    }

    /// `[batch, context]` to `[batch · context, NUM_TOKENS]`.
    fn forward(&self, tokens: Tensor<2, Int>) -> firebrand::Result<Tensor<2>> {
        let [batch, context] = tokens.dims();
        let x = self.tokens.forward(tokens) + self.positions.val().unsqueeze();
        let width = x.dims()[2];
        // Two axes make each linear layer one product of two matrices.
        let mut x: Tensor<2> = x.flatten(0, 1);
        for block in &self.blocks {
            let normed = block.norm1.forward(x.clone()).reshape([batch, context, width]);
            let attended = block.attention.forward(MhaInput::self_attn(normed))?;
            x = x + attended.context.flatten(0, 1);
            x = x.clone() + block.down.forward(gelu(block.up.forward(block.norm2.forward(x))));
        }
        Ok(self.head.forward(self.norm.forward(x)))
    }
}

impl LightningModule for Model {
    type Batch = Batch;

    fn training_step(&self, batch: Batch, step: &mut StepContext) -> firebrand::Result<Tensor<1>> {
        let logits = match self {
            Self::Gpt(gpt) => gpt.forward(batch.tokens)?,
            Self::Mlp(mlp) => mlp.forward(batch.floats),
        };
        let logits = step.full_precision(logits);
        Ok(CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits, batch.targets.flatten(0, 1)))
    }

    fn configure_optimizers(&self, _: &FitInfo) -> OptimizerSetup {
        OptimizerSetup::new(AdamWConfig::new(), LEARNING_RATE)
    }
}
