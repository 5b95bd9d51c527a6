//! Attention: Burn's in float32, a softmax that does not lose bits in 16, masks, and errors that can be read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::attention::{
    MhaInput as BurnInput, MultiHeadAttentionConfig as BurnConfig, generate_autoregressive_mask,
};
use burn::tensor::{Bool, DType, Device, FloatDType, Tensor, TensorData};
use firebrand_nn::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use support::*;

const BATCH: usize = 2;
const LENGTH: usize = 5;
const D_MODEL: usize = 8;

fn config() -> MultiHeadAttentionConfig {
    MultiHeadAttentionConfig::new(D_MODEL, 2).with_dropout(0.0)
}

fn sequence(dtype: DType, device: &Device) -> Tensor<3> {
    tensor(
        values(BATCH * LENGTH * D_MODEL, 1, 0.0),
        [BATCH, LENGTH, D_MODEL],
        dtype,
        device,
    )
}

struct Cast(FloatDType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.cast(self.0), mapper)
    }
}

fn cast(layer: &MultiHeadAttention, dtype: FloatDType) -> MultiHeadAttention {
    layer.clone().map(&mut Cast(dtype))
}

#[test]
fn it_is_burns_layer_in_float32() {
    for causal in [false, true] {
        let ours = config().with_causal(causal).init(&device()).unwrap();
        let mut theirs = BurnConfig::new(D_MODEL, 2).with_dropout(0.0).init(&device());
        theirs.query = ours.query.clone();
        theirs.key = ours.key.clone();
        theirs.value = ours.value.clone();
        theirs.output = ours.output.clone();
        let (x, y) = (
            sequence(DType::F32, &device()).require_grad(),
            sequence(DType::F32, &device()).require_grad(),
        );
        let padding = Tensor::<2, Bool>::from_data(
            TensorData::from([
                [false, false, false, false, true],
                [false, false, true, false, false],
            ]),
            &device(),
        );
        let found = ours
            .forward(MhaInput::self_attn(x.clone()).mask_pad(padding.clone()))
            .unwrap();
        let mut input = BurnInput::self_attn(y.clone()).mask_pad(padding);
        if causal {
            input = input.mask_attn(generate_autoregressive_mask(BATCH, LENGTH, &device()));
        }
        let expected = theirs.forward(input);
        assert_close(&host(found.weights), &host(expected.weights), 2e-6, "weights");
        assert_close(
            &host(found.context.clone()),
            &host(expected.context.clone()),
            5e-6,
            "context",
        );
        let of_x = found.context.powf_scalar(2.0).sum().backward();
        let of_y = expected.context.powf_scalar(2.0).sum().backward();
        assert_close(
            &host(x.grad(&of_x).unwrap()),
            &host(y.grad(&of_y).unwrap()),
            2e-5,
            "gradient",
        );
    }
}

#[test]
fn sixteen_bits_go_in_and_out_and_the_softmax_is_float32() {
    let layer = config().init(&device()).unwrap();
    for (dtype, tolerance) in [(FloatDType::F16, 5e-3), (FloatDType::BF16, 5e-2)] {
        let x = sequence(dtype.into(), &device()).require_grad();
        let found = cast(&layer, dtype)
            .forward(MhaInput::self_attn(x.clone()))
            .unwrap();
        assert_eq!(
            [found.context.dtype(), found.weights.dtype()],
            [DType::from(dtype); 2]
        );
        let expected = layer
            .forward(MhaInput::self_attn(x.clone().cast(DType::F32)))
            .unwrap();
        assert_close(
            &host(found.context.clone()),
            &host(expected.context.clone()),
            tolerance,
            "context",
        );
        let grads = found.context.cast(DType::F32).powf_scalar(2.0).sum().backward();
        let found = x.grad(&grads).unwrap();
        assert_eq!(found.dtype(), DType::from(dtype));
        let grads = expected.context.powf_scalar(2.0).sum().backward();
        assert_close(
            &host(found),
            &host(x.grad(&grads).unwrap()),
            4.0 * tolerance,
            "gradient",
        );
    }
}

#[test]
fn a_long_row_of_equal_scores_is_a_mean_also_in_bfloat16() {
    // A bfloat16 sum of ones stops at 256; 600 equal scores would get 1/256 each.
    let layer = config().with_bias(false).init(&Device::flex()).unwrap();
    let keys = tensor(
        vec![0.5; 600 * D_MODEL],
        [1, 600, D_MODEL],
        DType::BF16,
        &Device::flex(),
    );
    let weights = cast(&layer, FloatDType::BF16)
        .forward(MhaInput::self_attn(keys))
        .unwrap()
        .weights;
    let row: f64 = host(weights.slice([0..1, 0..1, 0..1])).iter().sum();
    assert!((row - 1.0).abs() < 5e-3, "{row}");
}

#[test]
fn a_causal_layer_does_not_look_ahead() {
    let layer = config().with_causal(true).init(&Device::flex()).unwrap();
    let early = |x: Tensor<3>| {
        let context = layer.forward(MhaInput::self_attn(x)).unwrap().context;
        host(context.slice([0..BATCH, 0..LENGTH - 1]))
    };
    let x = sequence(DType::F32, &Device::flex());
    let last = Tensor::<3>::ones([BATCH, 1, D_MODEL], &Device::flex()) * 100.0;
    let changed = x
        .clone()
        .slice_assign([0..BATCH, LENGTH - 1..LENGTH, 0..D_MODEL], last);
    assert_eq!(early(x), early(changed));
}

#[test]
fn a_query_without_keys_gets_a_mean_and_not_nan() {
    for dtype in [FloatDType::F32, FloatDType::F16] {
        let layer = cast(&config().init(&Device::flex()).unwrap(), dtype);
        let all = Tensor::<3, Bool>::full([1, LENGTH, LENGTH], true, &Device::flex());
        let input = MhaInput::self_attn(sequence(dtype.into(), &Device::flex())).mask_attn(all);
        let weights = host(layer.forward(input).unwrap().weights);
        assert_close(&weights, &vec![0.2; weights.len()], 1e-3, "weights");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let error = |config: MultiHeadAttentionConfig| config.init(&device()).unwrap_err().to_string();
    let text = error(MultiHeadAttentionConfig::new(10, 4));
    assert!(
        text.contains("d_model = 10") && text.contains("n_heads = 4") && text.contains("such as 12"),
        "{text}"
    );
    assert!(error(MultiHeadAttentionConfig::new(8, 0)).contains("n_heads 0"));
    assert!(error(config().with_dropout(1.0)).contains("dropout is 1"));
    let layer = config().with_causal(true).init(&device()).unwrap();
    let x = || sequence(DType::F32, &device());
    let says = |input: MhaInput, part: &str| {
        let text = layer.forward(input).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    };
    says(
        MhaInput::self_attn(Tensor::ones([2, 3, 7], &device())),
        "the query must be [2, 3, 8], and is [2, 3, 7]",
    );
    let long = Tensor::<3>::ones([BATCH, LENGTH + 1, D_MODEL], &device());
    says(
        MhaInput::new(x(), long.clone(), long),
        "of causal attention, must be [2, 5, 8], and is [2, 6, 8]",
    );
    says(
        MhaInput::self_attn(x()).mask_pad(Tensor::<2, Bool>::full([2, 4], false, &device())),
        "mask_pad must be [2, 5]",
    );
}

#[test]
fn dropout_drops_in_training_alone() {
    let layer = config().with_dropout(0.5).init(&device()).unwrap();
    let zeros = |layer: &MultiHeadAttention, device: &Device| {
        let weights = layer
            .forward(MhaInput::self_attn(sequence(DType::F32, device)))
            .unwrap()
            .weights;
        host(weights).iter().filter(|weight| **weight == 0.0).count()
    };
    assert!(zeros(&layer, &device()) > 0);
    assert_eq!(zeros(&layer.valid(), &Device::flex()), 0);
}
