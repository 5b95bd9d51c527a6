//! The network: a pre-norm transformer that looks back only, as GPT-2.

use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};
use firebrand::Result;
use firebrand::nn::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};

use crate::data::MAX_PLACES;
use crate::settings::Settings;
use crate::surnames::NUM_TOKENS;

/// Attention and a multilayer perceptron, each on normalised values and added to what came in.
#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    attention: MultiHeadAttention,
    norm2: LayerNorm,
    widen: Linear,
    narrow: Linear,
    dropout: Dropout,
}

impl Block {
    fn new(settings: &Settings, device: &Device) -> Result<Self> {
        let width = settings.width;
        let linear = |inputs, outputs, deviation| {
            LinearConfig::new(inputs, outputs)
                .with_bias(false)
                .with_initializer(normal(deviation))
                .init(device)
        };
        // What is added in each block is drawn the smaller, the more blocks add to it.
        let added = DEVIATION / ((2 * settings.layers) as f64).sqrt();
        let mut attention = MultiHeadAttentionConfig::new(width, settings.heads)
            .with_causal(true)
            .with_bias(false)
            .with_dropout(settings.dropout)
            .with_initializer(normal(DEVIATION))
            .init(device)?;
        attention.output = linear(width, width, added);
        Ok(Self {
            norm1: LayerNormConfig::new(width).init(device),
            attention,
            norm2: LayerNormConfig::new(width).init(device),
            widen: linear(width, 4 * width, DEVIATION),
            narrow: linear(4 * width, width, added),
            dropout: DropoutConfig::new(settings.dropout).init(),
        })
    }

    fn forward(&self, x: Tensor<3>, others: Tensor<3, Bool>) -> Result<Tensor<3>> {
        let input = MhaInput::self_attn(self.norm1.forward(x.clone())).mask_attn(others);
        let x = x + self.dropout.forward(self.attention.forward(input)?.context);
        let hidden = gelu(self.widen.forward(self.norm2.forward(x.clone())));
        Ok(x + self.dropout.forward(self.narrow.forward(hidden)))
    }
}

/// Says for each place of a row what follows it.
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// The network, its weights not drawn yet.
    ///
    /// # Errors
    ///
    /// For a width that cannot be divided among the heads.
    pub fn new(settings: &Settings, device: &Device) -> Result<Self> {
        let embedding = |count| {
            EmbeddingConfig::new(count, settings.width)
                .with_initializer(normal(DEVIATION))
                .init(device)
        };
        Ok(Self {
            tokens: embedding(NUM_TOKENS),
            positions: embedding(MAX_PLACES),
            dropout: DropoutConfig::new(settings.dropout).init(),
            blocks: (0..settings.layers)
                .map(|_| Block::new(settings, device))
                .collect::<Result<_>>()?,
            norm: LayerNormConfig::new(settings.width).init(device),
            head: LinearConfig::new(settings.width, NUM_TOKENS)
                .with_bias(false)
                .with_initializer(normal(DEVIATION))
                .init(device),
        })
    }

    /// The logits of what follows each place: three times `[rows, places]` to `[rows, places, tokens]`.
    ///
    /// `cast` takes what the embeddings give to the dtype of the other weights: embeddings may be kept in float32, so that the
    /// gradients of a frequent letter, hundreds in a batch, are added up there.
    ///
    /// # Errors
    ///
    /// None for tensors of these shapes.
    pub fn forward(
        &self,
        tokens: Tensor<2, Int>,
        positions: Tensor<2, Int>,
        names: Tensor<2, Int>,
        cast: impl Fn(Tensor<3>) -> Tensor<3>,
    ) -> Result<Tensor<3>> {
        // A name sees itself and no other of its row.
        let others = names
            .clone()
            .unsqueeze_dim::<3>(2)
            .not_equal(names.unsqueeze_dim::<3>(1));
        let embedded = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mut x = self.dropout.forward(cast(embedded));
        for block in &self.blocks {
            x = block.forward(x, others.clone())?;
        }
        Ok(self.head.forward(self.norm.forward(x)))
    }
}

/// The parameters that are kept in float32 under mixed precision.
pub const KEPT: [&str; 2] = ["gpt.tokens", "gpt.positions"];

/// The deviation of the weights at the beginning, that of GPT-2.
const DEVIATION: f64 = 0.02;

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, FloatDType, TensorData};

    use super::*;
    use crate::settings::Size;

    fn gpt(device: &Device) -> Gpt {
        device.seed(3);
        let settings = Settings {
            width: 16,
            layers: 2,
            heads: 2,
            ..Settings::of(Size::Tiny)
        };
        Gpt::new(&settings, device).unwrap()
    }

    fn ints(rows: &[[i32; 6]], device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), 6]), device)
    }

    /// The logits of one row of two names, of four places and of two.
    fn logits(gpt: &Gpt, tokens: [i32; 6]) -> Vec<Vec<f32>> {
        let device = Device::flex();
        let logits = gpt
            .forward(
                ints(&[tokens], &device),
                ints(&[[0, 1, 2, 3, 0, 1]], &device),
                ints(&[[1, 1, 1, 1, 2, 2]], &device),
                |x| x,
            )
            .unwrap();
        let values: Vec<f32> = logits.cast(FloatDType::F32).into_data().iter().collect();
        values.chunks(NUM_TOKENS).map(<[f32]>::to_vec).collect()
    }

    #[test]
    fn a_later_letter_and_another_name_change_nothing() {
        let gpt = gpt(&Device::flex());
        let before = logits(&gpt, [0, 5, 6, 7, 0, 8]);
        // The third place of the first name: itself and what follows it in the name change, and nothing else.
        let after = logits(&gpt, [0, 5, 9, 7, 0, 8]);
        let changed: Vec<bool> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| before != after)
            .collect();
        assert_eq!(changed, [false, false, true, true, false, false]);
    }

    #[test]
    fn logits_have_the_dtype_of_the_weights_and_are_near_those_of_float32() {
        use burn::module::{ModuleMapper, Param};
        struct To(FloatDType);
        impl ModuleMapper for To {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|value| value.cast(self.0))
            }
        }
        let gpt = gpt(&Device::flex());
        let row = [0, 5, 6, 7, 0, 8];
        let exact = logits(&gpt, row);
        let largest = exact
            .iter()
            .flatten()
            .fold(0f32, |largest, value| largest.max(value.abs()));
        for (dtype, tolerance) in [(FloatDType::BF16, 0.03), (FloatDType::F16, 0.004)] {
            let narrow = gpt.clone().map(&mut To(dtype));
            assert_eq!(narrow.head.weight.val().dtype(), DType::from(dtype));
            for (exact, found) in exact.iter().flatten().zip(logits(&narrow, row).iter().flatten()) {
                assert!(
                    (exact - found).abs() < tolerance * largest,
                    "{dtype:?}: {exact} {found}"
                );
            }
        }
    }
}
