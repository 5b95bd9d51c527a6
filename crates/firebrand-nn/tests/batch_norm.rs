//! Batch norm on one rank: Burn's layer in float32, its gradient by finite differences, and what it does in 16 bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use burn::module::Module;
use burn::nn::BatchNormConfig as BurnBatchNormConfig;
use burn::tensor::{DType, Device, Tensor};
use firebrand_nn::{BatchNorm, BatchNormConfig, Error};
use proptest::prelude::*;
use support::*;

const FEATURES: usize = 3;

/// The same parameters as ours in Burn's layer.
fn burns(ours: &BatchNorm) -> burn::nn::BatchNorm {
    let mut norm = BurnBatchNormConfig::new(FEATURES).init(&device());
    norm.gamma = ours.gamma.clone();
    norm.beta = ours.beta.clone();
    norm
}

fn compare_with_burn<const D: usize>(shape: [usize; D]) {
    let ours = layer(&BatchNormConfig::new(FEATURES), DType::F32);
    let theirs = burns(&ours);
    let (count, step) = (shape.iter().product::<usize>(), step());
    let values_of_channel = (count / FEATURES) as f64;
    let weights = tensor(values(count, 7, 0.0), shape, DType::F32, &device());
    const STEPS: i32 = 4;
    for number in 0..STEPS {
        let batch = values(count, 20 + number as u64, 5.0);
        let leaf = || tensor(batch.clone(), shape, DType::F32, &device()).require_grad();
        let (x, y) = (leaf(), leaf());
        let (a, b) = (ours.forward(x.clone(), &step).unwrap(), theirs.forward(y.clone()));
        assert_close(&host(a.clone()), &host(b.clone()), 2e-6, "output");
        let (of_a, of_b) = (
            (a * weights.clone()).sum().backward(),
            (b * weights.clone()).sum().backward(),
        );
        assert_close(
            &host(x.grad(&of_a).unwrap()),
            &host(y.grad(&of_b).unwrap()),
            5e-6,
            "input gradient",
        );
        for (ours, theirs) in [(&ours.gamma, &theirs.gamma), (&ours.beta, &theirs.beta)] {
            let (a, b) = (ours.val().grad(&of_a).unwrap(), theirs.val().grad(&of_b).unwrap());
            assert_close(&host(a), &host(b), 2e-6, "parameter gradient");
        }
    }
    let mean = (ours.running_mean.value_sync(), theirs.running_mean.value_sync());
    assert_close(&host(mean.0), &host(mean.1), 1e-6, "running mean");
    // Burn adds biased variances to what is left of the first value, 1; ours are n / (n − 1) times those.
    let left = 0.9f64.powi(STEPS);
    let unbiased: Vec<f64> = host(theirs.running_var.value_sync())
        .into_iter()
        .map(|biased| left + (biased - left) * values_of_channel / (values_of_channel - 1.0))
        .collect();
    assert_close(
        &host(ours.running_var.value_sync()),
        &unbiased,
        1e-6,
        "running variance",
    );

    let (ours, mut theirs) = (ours.valid(), theirs.valid());
    theirs.running_var = ours.running_var.clone();
    let plain = Device::flex();
    let batch = tensor(values(count, 9, 5.0), shape, DType::F32, &plain);
    let evaluated = ours.forward(batch.clone(), &step).unwrap();
    assert_close(&host(evaluated), &host(theirs.forward(batch)), 1e-6, "evaluation");
}

#[test]
fn it_is_burns_layer_in_float32_on_one_rank() {
    compare_with_burn([8, FEATURES]);
    compare_with_burn([5, FEATURES, 7]);
    compare_with_burn([4, FEATURES, 5, 6]);
}

#[test]
fn running_statistics_are_those_of_pytorch() {
    // torch.nn.BatchNorm1d(1) after one step on [1, 2, 4]: mean 7/3 · 0.1, variance 0.9 + 0.1 · 7/3 (the unbiased one).
    let norm = BatchNormConfig::new(1).init(&device()).unwrap();
    norm.forward(
        Tensor::<2>::from_floats([[1.0], [2.0], [4.0]], &device()),
        &step(),
    )
    .unwrap();
    assert_close(&host(norm.running_mean.value_sync()), &[0.7 / 3.0], 1e-6, "mean");
    assert_close(
        &host(norm.running_var.value_sync()),
        &[0.9 + 0.7 / 3.0],
        1e-6,
        "variance",
    );
}

#[test]
fn a_large_mean_does_not_cancel_the_variance() {
    let norm = BatchNormConfig::new(1).init(&device()).unwrap();
    let batch = Tensor::<2>::from_floats([[10_001.0], [10_003.0]], &device());
    let output = norm.forward(batch, &step()).unwrap();
    assert_close(&host(output), &[-1.0, 1.0], 1e-4, "output");
}

#[test]
fn sixteen_bits_are_normalised_in_float32() {
    let shape = [16, FEATURES, 4, 4];
    let count: usize = shape.iter().product();
    // A sum of 256 values near 300 overflows float16.
    let batch = values(count, 3, 300.0);
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let input = || tensor(batch.clone(), shape, dtype, &device());
        let weights = tensor(values(count, 7, 0.0), shape, DType::F32, &device());
        let run = |x: Tensor<4>, parameters: DType| {
            let norm = layer(&BatchNormConfig::new(FEATURES), DType::F32);
            let (gamma, beta) = (
                norm.gamma.val().cast(parameters),
                norm.beta.val().cast(parameters),
            );
            let mut used = norm.clone();
            used.gamma = burn::module::Param::from_mapped_value(norm.gamma.id, gamma, Default::default());
            used.beta = burn::module::Param::from_mapped_value(norm.beta.id, beta, Default::default());
            let x = x.require_grad();
            let output = used.forward(x.clone(), &step()).unwrap();
            let dtypes = [output.dtype(), used.running_var.value_sync().dtype()];
            let grads = (output.clone().cast(DType::F32) * weights.clone())
                .sum()
                .backward();
            let of_x = x.grad(&grads).unwrap();
            let of_gamma = norm.gamma.val().grad(&grads).unwrap();
            let of_beta = norm.beta.val().grad(&grads).unwrap();
            assert_eq!(of_x.dtype(), x.dtype());
            assert_eq!([of_gamma.dtype(), of_beta.dtype()], [DType::F32; 2]);
            let results = [
                host(output),
                host(of_x),
                host(of_gamma),
                host(of_beta),
                host(used.running_var.value_sync()),
            ];
            (dtypes, results)
        };
        // The same values, so that only what is computed differs.
        let (_, expected) = run(input().cast(DType::F32), DType::F32);
        for parameters in [DType::F32, dtype] {
            let (dtypes, found) = run(input(), parameters);
            assert_eq!(dtypes, [dtype, DType::F32]);
            for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_close(found, expected, tolerance, &format!("{dtype:?}, result {number}"));
            }
        }
    }
}

#[test]
fn evaluation_takes_any_dtype_and_leaves_the_statistics_alone() {
    let norm = layer(&BatchNormConfig::new(FEATURES), DType::F32);
    let batch = || values(8 * FEATURES, 4, 2.0);
    norm.forward(tensor(batch(), [8, FEATURES], DType::F32, &device()), &step())
        .unwrap();
    let norm = norm.valid();
    let before = host(norm.running_mean.value());
    let input = |dtype| tensor(batch(), [8, FEATURES], dtype, &Device::flex());
    let expected = host(norm.forward(input(DType::F64), &step()).unwrap());
    for (dtype, tolerance) in [
        (DType::F64, 0.0),
        (DType::F32, 1e-6),
        (DType::F16, 5e-3),
        (DType::BF16, 4e-2),
    ] {
        let output = norm.forward(input(dtype), &step()).unwrap();
        assert_eq!(output.dtype(), dtype);
        assert_close(&host(output), &expected, tolerance, &format!("{dtype:?}"));
    }
    assert_eq!(host(norm.running_mean.value()), before);
}

#[test]
fn a_frozen_layer_takes_its_running_statistics_and_passes_gradients_on() {
    let norm = layer(&BatchNormConfig::new(FEATURES), DType::F32).freeze();
    let x = tensor(values(4 * FEATURES, 5, 3.0), [4, FEATURES], DType::F32, &device()).require_grad();
    let output = norm.forward(x.clone(), &step()).unwrap();
    let scale = 1.0 / (1.0f64 + 1e-5).sqrt();
    let gamma = host(norm.gamma.val());
    let grads = output.sum().backward();
    let expected: Vec<f64> = (0..4 * FEATURES).map(|i| gamma[i % FEATURES] * scale).collect();
    assert_close(&host(x.grad(&grads).unwrap()), &expected, 1e-6, "gradient");
    assert_eq!(host(norm.running_mean.value_sync()), [0.0; FEATURES]);
}

#[test]
fn it_trains_where_activations_are_computed_again() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let gradients = |device: &Device| {
        let norm = BatchNormConfig::new(FEATURES).init(device).unwrap();
        let x = tensor(values(6 * FEATURES, 5, 3.0), [6, FEATURES], DType::F32, device).require_grad();
        let output = norm.forward(x.clone().powf_scalar(2.0) * 0.5, &step()).unwrap();
        let grads = output.powf_scalar(3.0).sum().backward();
        host(x.grad(&grads).unwrap())
    };
    assert_eq!(gradients(&device), gradients(&support::device()));
}

#[test]
fn what_it_cannot_do_is_said() {
    let says = |error: Error, parts: &[&str]| {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let config = || BatchNormConfig::new(FEATURES);
    says(
        BatchNormConfig::new(0).init(&device()).unwrap_err(),
        &["num_features is 0"],
    );
    says(
        config().with_epsilon(0.0).init(&device()).unwrap_err(),
        &["epsilon is 0"],
    );
    says(
        config().with_momentum(1.5).init(&device()).unwrap_err(),
        &["momentum is 1.5", "[0, 1]"],
    );
    let norm = config().init(&device()).unwrap();
    let wrong = norm
        .forward(Tensor::<2>::ones([4, 5], &device()), &step())
        .unwrap_err();
    says(wrong, &["[batch, 3, ...]", "[4, 5]"]);
    let wrong = norm
        .forward(Tensor::<1>::ones([3], &device()), &step())
        .unwrap_err();
    says(wrong, &["[batch, 3, ...]", "[3]"]);
    let one = norm
        .forward(Tensor::<2>::ones([1, 3], &device()), &step())
        .unwrap_err();
    says(one, &["1 value", "larger batch"]);
    assert_eq!(
        host(norm.running_mean.value_sync()),
        [0.0; FEATURES],
        "nothing was kept"
    );
}

/// A loss of the output that is not linear in it, by the layer's parameters and its input.
fn loss(x: Tensor<3>, gamma: Tensor<1>, beta: Tensor<1>, weights: &Tensor<3>) -> Tensor<1> {
    let mut norm = BatchNormConfig::new(2).init(&device()).unwrap();
    norm.gamma = burn::module::Param::initialized(norm.gamma.id, gamma);
    norm.beta = burn::module::Param::initialized(norm.beta.id, beta);
    let output = norm.forward(x, &step()).unwrap();
    (output.clone().tanh() * weights.clone() + output.powf_scalar(2.0) * 0.1).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn gradients_are_finite_differences(
        batch in 1usize..4, points in 2usize..4, salt in 0u64..1000, offset in -3.0..3.0f64,
    ) {
        let shape = [batch, 2, points];
        let count = batch * 2 * points;
        let all = [values(count, salt, offset), values(2, salt + 1, 1.0), values(2, salt + 2, 0.0)];
        let weights = tensor(values(count, salt + 3, 0.0), shape, DType::F64, &device());
        let tensors = |all: &[Vec<f64>; 3]| (
            tensor(all[0].clone(), shape, DType::F64, &device()).require_grad(),
            tensor(all[1].clone(), [2], DType::F64, &device()).require_grad(),
            tensor(all[2].clone(), [2], DType::F64, &device()).require_grad(),
        );
        let at = |all: &[Vec<f64>; 3]| {
            let (x, gamma, beta) = tensors(all);
            host(loss(x, gamma, beta, &weights))[0]
        };
        let (x, gamma, beta) = tensors(&all);
        let grads = loss(x.clone(), gamma.clone(), beta.clone(), &weights).backward();
        let found = [
            host(x.grad(&grads).unwrap()),
            host(gamma.grad(&grads).unwrap()),
            host(beta.grad(&grads).unwrap()),
        ];
        for part in 0..3 {
            for position in 0..all[part].len() {
                let mut moved = all.clone();
                let h = 1e-5;
                moved[part][position] += h;
                let above = at(&moved);
                moved[part][position] -= 2.0 * h;
                let difference = (above - at(&moved)) / (2.0 * h);
                let gradient = found[part][position];
                prop_assert!(
                    (gradient - difference).abs() <= 1e-4 * (1.0 + gradient.abs()),
                    "part {part}, position {position}: {gradient} and {difference}"
                );
            }
        }
    }
}
