use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Bool, DType, Device, Tensor};

use crate::softmax::softmax;
use crate::{Error, Result, cast};

/// Settings of a [`MultiHeadAttention`].
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The number of features of queries, keys, values and the output.
    pub d_model: usize,
    /// The number of heads, each of `d_model / n_heads` features.
    pub n_heads: usize,
    /// The probability with which an attention weight is dropped in training. Default: 0.1.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether the four linear layers have a bias. Default: yes.
    #[config(default = true)]
    pub bias: bool,
    /// Whether a position attends only to itself and those before it. Default: no.
    #[config(default = false)]
    pub causal: bool,
    /// How the weights are drawn. Default: as those of Burn's layer.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
}

/// Scaled dot-product attention with several heads, as in [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762):
///
/// ```text
/// output( softmax(query(q) · key(k)ᵀ / √d_k) · value(v) ),  d_k = d_model / n_heads
/// ```
///
/// The softmax is taken in float32 where the scores have 16 bits, and in their dtype otherwise, and keeps only its result for the backward
/// pass; queries are scaled before the product, which overflows less in float16. The output has the dtype of the input. Paths of parameters are those of Burn's layer:
/// `query`, `key`, `value`, `output`.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// From the input to queries.
    pub query: Linear,
    /// From the input to keys.
    pub key: Linear,
    /// From the input to values.
    pub value: Linear,
    /// From the heads to the output.
    pub output: Linear,
    /// Drops attention weights in training.
    pub dropout: Dropout,
    /// The number of features.
    pub d_model: usize,
    /// The number of heads.
    pub n_heads: usize,
    /// The number of features of a head.
    pub d_k: usize,
    /// Whether a position attends only to itself and those before it.
    pub causal: bool,
}

/// What an attention looks at.
#[derive(Clone, Debug)]
pub struct MhaInput {
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
}

/// What comes of an attention.
#[derive(Clone, Debug)]
pub struct MhaOutput {
    /// The attention weights after dropout, `[batch, n_heads, queries, keys]`.
    pub weights: Tensor<4>,
    /// `[batch, queries, d_model]`.
    pub context: Tensor<3>,
}

const LAYER: &str = "multi-head attention";

/// What a masked score is: far below any other, and finite, so that a row that is masked whole gives a mean and not not-a-number.
fn masked_score(dtype: DType) -> f64 {
    match dtype {
        // The least that float16 can hold.
        DType::F16 => -65504.0,
        _ => -1e30,
    }
}

impl MhaInput {
    /// A sequence that attends to itself, `[batch, positions, d_model]`.
    pub fn self_attn(sequence: Tensor<3>) -> Self {
        Self::new(sequence.clone(), sequence.clone(), sequence)
    }

    /// Queries `[batch, queries, d_model]`, and the keys and values `[batch, keys, d_model]` that they attend to.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            key,
            value,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// Leaves out the keys for which this is true, such as padding: `[batch, keys]`.
    #[must_use]
    pub fn mask_pad(mut self, mask: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask);
        self
    }

    /// Leaves out the pairs of query and key for which this is true: `[batch or 1, queries, keys]`.
    #[must_use]
    pub fn mask_attn(mut self, mask: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask);
        self
    }
}

impl MultiHeadAttentionConfig {
    /// A layer on a device; its weights are drawn when they are first used.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting that is out of its range.
    pub fn init(&self, device: &Device) -> Result<MultiHeadAttention> {
        let wrong = |reason: String| Err(Error::Config { layer: LAYER, reason });
        let (d_model, n_heads) = (self.d_model, self.n_heads);
        if d_model == 0 || n_heads == 0 {
            return wrong(format!(
                "d_model is {d_model} and n_heads {n_heads}; both must be 1 or more"
            ));
        }
        if !d_model.is_multiple_of(n_heads) {
            return wrong(format!(
                "d_model = {d_model} cannot be divided among n_heads = {n_heads} heads; choose a d_model that is a multiple of n_heads, \
                 such as {}",
                d_model.next_multiple_of(n_heads)
            ));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return wrong(format!("dropout is {}, and must lie in [0, 1)", self.dropout));
        }
        let linear = || {
            LinearConfig::new(d_model, d_model)
                .with_bias(self.bias)
                .with_initializer(self.initializer.clone())
                .init(device)
        };
        Ok(MultiHeadAttention {
            query: linear(),
            key: linear(),
            value: linear(),
            output: linear(),
            dropout: DropoutConfig::new(self.dropout).init(),
            d_model,
            n_heads,
            d_k: d_model / n_heads,
            causal: self.causal,
        })
    }
}

impl MultiHeadAttention {
    /// Attends; the context has the shape of the queries and the dtype of the input.
    ///
    /// A query whose keys are all masked gets the mean of all values.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] for tensors that do not go together; causal attention needs as many keys as queries.
    pub fn forward(&self, input: MhaInput) -> Result<MhaOutput> {
        self.check(&input)?;
        let [batch, queries, _] = input.query.dims();
        let dtype = input.query.dtype();
        let query = self.heads(&self.query, input.query);
        let key = self.heads(&self.key, input.key);
        let value = self.heads(&self.value, input.value);

        let scale = 1.0 / (self.d_k as f64).sqrt();
        let scores = query.mul_scalar(scale).matmul(key.transpose());
        let scores = self.masked(scores, input.mask_pad, input.mask_attn);
        let weights = self.dropout.forward(softmax(scores));

        let context = weights.clone().matmul(value);
        let context = context.swap_dims(1, 2).reshape([batch * queries, self.d_model]);
        let context = self
            .output
            .forward(context)
            .reshape([batch, queries, self.d_model]);
        let context = cast(context, dtype);
        Ok(MhaOutput { weights, context })
    }

    fn masked(
        &self,
        mut scores: Tensor<4>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<4> {
        let [_, _, queries, keys] = scores.dims();
        let masked = masked_score(scores.dtype());
        if let Some(mask) = mask_pad {
            let [batch, _] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, 1, keys]), masked);
        }
        if let Some(mask) = mask_attn {
            let [batch, _, _] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, queries, keys]), masked);
        }
        if self.causal {
            // `tril_mask` is false on and below the diagonal.
            let device = scores.device();
            let later = Tensor::<2, Bool>::tril_mask([queries, keys], 0, &device);
            scores = scores.mask_fill(later.reshape([1, 1, queries, keys]), masked);
        }
        scores
    }

    /// A layer of features `[batch, positions, d_model]`, as `[batch, n_heads, positions, d_k]`.
    fn heads(&self, layer: &Linear, features: Tensor<3>) -> Tensor<4> {
        let [batch, positions, _] = features.dims();
        // One product of two matrices: of more axes, some backends make one for each sample, with a copy of the weights.
        layer
            .forward(features.flatten::<2>(0, 1))
            .reshape([batch, positions, self.n_heads, self.d_k])
            .swap_dims(1, 2)
    }

    fn check(&self, input: &MhaInput) -> Result<()> {
        let d_model = self.d_model;
        let [batch, queries, _] = input.query.dims();
        let [_, keys, _] = input.key.dims();
        let check = |what, expected: Vec<usize>, found: Vec<usize>| {
            if expected == found {
                return Ok(());
            }
            Err(Error::Shape {
                layer: LAYER,
                what,
                expected: format!("{expected:?}"),
                found,
            })
        };
        check(
            "the query",
            vec![batch, queries, d_model],
            input.query.shape().to_vec(),
        )?;
        check("the key", vec![batch, keys, d_model], input.key.shape().to_vec())?;
        check(
            "the value",
            vec![batch, keys, d_model],
            input.value.shape().to_vec(),
        )?;
        if self.causal {
            check(
                "the key, of causal attention,",
                vec![batch, queries, d_model],
                input.key.shape().to_vec(),
            )?;
        }
        if let Some(mask) = &input.mask_pad {
            check("mask_pad", vec![batch, keys], mask.shape().to_vec())?;
        }
        if let Some(mask) = &input.mask_attn {
            let [of, ..] = mask.dims();
            let of = if of == 1 { 1 } else { batch };
            check("mask_attn", vec![of, queries, keys], mask.shape().to_vec())?;
        }
        Ok(())
    }
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("n_heads", &self.n_heads)
            .add("d_k", &self.d_k)
            .add("dropout", &self.dropout.prob)
            .add("causal", &self.causal)
            .optional()
    }
}
