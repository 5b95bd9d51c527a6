#![allow(clippy::unwrap_used)]

use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, AdamWConfig, StateSink, StateSource};
use burn::tensor::{Device, FloatDType};
use firebrand_core::{AnyTensor, OptimizerSetup};
use proptest::prelude::*;

use super::super::Slot;
use super::*;

const RATES: [f64; 3] = [1e-3, 0.3, 0.0];

/// Configurations that are covered: both optimizers, other betas, decay of weights or not.
fn covered() -> Vec<OptimizerSetup> {
    let decay = |penalty| Some(WeightDecayConfig::new(penalty));
    let adam = || AdamConfig::new().with_beta_1(0.8).with_beta_2(0.95);
    let adamw = || AdamWConfig::new().with_beta_1(0.5).with_beta_2(0.9);
    vec![
        OptimizerSetup::new(AdamWConfig::new(), 0.0),
        OptimizerSetup::new(AdamWConfig::new().with_weight_decay(0.0), 0.0),
        OptimizerSetup::new(adamw().with_weight_decay(0.7).with_epsilon(1e-8), 0.0),
        OptimizerSetup::new(adamw().with_beta_1(0.0).with_epsilon(0.1), 0.0),
        OptimizerSetup::new(AdamConfig::new(), 0.0),
        OptimizerSetup::new(AdamConfig::new().with_weight_decay(decay(0.1)), 0.0),
        OptimizerSetup::new(adam().with_epsilon(1e-8), 0.0),
        OptimizerSetup::new(adam().with_weight_decay(decay(0.0)).with_epsilon(1e-3), 0.0),
    ]
}

/// A parameter that is updated in one pass where that is possible, or always by Burn.
fn slot(setup: &OptimizerSetup, rank: usize, fused: bool) -> Slot {
    let single = &setup.optimizers()[0];
    Slot {
        path: "net.weight".to_owned(),
        optimizer: 0,
        update: single.optimizer.clone(),
        adam: single.adam.filter(|_| fused),
        group_rate: None,
        state: None,
        rank,
    }
}

fn tensor(values: Vec<f64>, shape: &[usize], dtype: FloatDType) -> BridgeTensor {
    let data = TensorData::new(values, shape.to_vec()).convert_dtype(dtype.into());
    AnyTensor::from_data(data, &Device::flex()).unwrap().into_bridge()
}

/// Numbers as gradients and weights have them, among them those that are easily got wrong: both zeros, and numbers whose squares
/// vanish, are subnormal or overflow.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let uniform = (state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0;
        match state % 32 {
            0 => 0.0,
            1 => -0.0,
            2 => uniform * 1e-42,
            3 => uniform * 1e-21,
            4 => uniform * 1e25,
            5..10 => uniform * 1e3,
            _ => uniform,
        }
    };
    (0..count).map(|_| next()).collect()
}

/// Everything that must be the same: the weight and what a checkpoint keeps of the state, as bytes.
fn bits(weight: &BridgeTensor, slot: &Slot) -> (Vec<(String, DType, Vec<u8>)>, String) {
    let mut sink = StateSink::default();
    slot.update
        .state_flatten("w", slot.state.as_ref().unwrap(), &mut sink);
    let weight = AnyTensor::from_bridge(weight.clone()).into_data();
    sink.tensors.push(("weight".to_owned(), weight));
    let bytes = |(name, data): (String, TensorData)| (name, data.dtype(), data.as_bytes().to_vec());
    let tensors = sink.tensors.into_iter().map(bytes).collect();
    (tensors, format!("{:?}", sink.scalars))
}

/// The state as a checkpoint gives it back.
fn restore(slot: &mut Slot) {
    let mut sink = StateSink::default();
    slot.update
        .state_flatten("w", slot.state.as_ref().unwrap(), &mut sink);
    let mut source = StateSource::new(sink.scalars.into_iter().collect());
    for (name, data) in sink.tensors {
        source.insert_tensor(name, data);
    }
    let state = slot
        .update
        .state_unflatten(slot.rank, "w", &mut source, &Device::flex());
    slot.state = Some(state.unwrap());
}

fn is_fused(slot: &Slot, weight: &BridgeTensor, gradient: &BridgeTensor) -> bool {
    let fused = |rule| FusedAdam::new(rule, slot.rank, weight, gradient, slot.state.as_ref());
    slot.adam.as_ref().and_then(fused).is_some()
}

/// Where the elements of a tensor lie.
fn address(tensor: &BridgeTensor) -> *const u8 {
    from_bridge(tensor).unwrap().bytes().as_ptr()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The two go on with each other's states, directly and by way of a checkpoint, and all three get the same bits.
    #[test]
    fn several_hundred_updates_are_bit_equal_to_burns(
        setup in prop::sample::select(covered()),
        shape in prop::collection::vec(1usize..8, 1..=4),
        steps in 200usize..400,
        seed: u64,
    ) {
        let dtype = FloatDType::F32;
        let count = shape.iter().product();
        let start = tensor(numbers(seed, count), &shape, dtype);
        let slot = |fused| slot(&setup, shape.len(), fused);
        let mut burn = (slot(false), start.clone());
        let mut fused = (slot(true), start.clone());
        let mut turns = (slot(true), start);
        for step in 0..steps {
            let gradient = tensor(numbers(seed ^ (step as u64 + 1), count), &shape, dtype);
            let rate = RATES[step / 7 % RATES.len()];
            prop_assert!(is_fused(&fused.0, &fused.1, &gradient));
            let rule = fused.0.adam;
            turns.0.adam = rule.filter(|_| step / 3 % 2 == 0);
            if step % 40 == 39 {
                restore(&mut turns.0);
            }
            for (slot, weight) in [&mut burn, &mut fused, &mut turns] {
                *weight = slot.step(rate, weight.clone(), gradient.clone());
            }
            let expected = bits(&burn.1, &burn.0);
            prop_assert_eq!(&bits(&fused.1, &fused.0), &expected, "step {}", step);
            prop_assert_eq!(&bits(&turns.1, &turns.0), &expected, "taking turns, step {}", step);
        }
    }
}

#[test]
fn several_threads_and_odd_lengths_change_no_bit() {
    for count in [1, 2, 15, 17, 31, 33, 127, (1 << 16) + 1, 3 * (1 << 16) + 77] {
        for setup in covered() {
            let mut results = Vec::new();
            for fused in [false, true] {
                let mut slot = slot(&setup, 1, fused);
                let mut weight = tensor(numbers(1, count), &[count], FloatDType::F32);
                for step in 2..4 {
                    let gradient = tensor(numbers(step, count), &[count], FloatDType::F32);
                    assert_eq!(is_fused(&slot, &weight, &gradient), fused);
                    weight = slot.step(1e-2, weight, gradient);
                }
                results.push(bits(&weight, &slot));
            }
            assert!(results[0] == results[1], "{count} elements, {setup:?}");
        }
    }
}

#[test]
fn memory_is_written_in_place_only_where_no_one_else_sees_it() {
    let setup = &covered()[0];
    let gradient = || tensor(numbers(5, 12), &[3, 4], FloatDType::F32);
    let mut slot = slot(setup, 2, true);
    let weight = tensor(numbers(4, 12), &[3, 4], FloatDType::F32);
    let place = address(&weight);
    let weight = slot.step(0.1, weight, gradient());
    assert_eq!(address(&weight), place);

    // As while a checkpoint is being written.
    let (held, state) = (weight.clone(), slot.state.clone());
    let before = bits(&held, &slot);
    let weight = slot.step(0.1, weight, gradient());
    assert_ne!(address(&weight), place);
    let after = bits(&weight, &slot);
    slot.state = state;
    assert_eq!(bits(&held, &slot), before);
    let again = slot.step(0.1, held, gradient());
    assert_eq!(bits(&again, &slot), after);
}

#[test]
fn a_part_of_another_tensor_is_read_where_it_lies() {
    let rows = |seed| Tensor::<2>::from_bridge(tensor(numbers(seed, 15), &[5, 3], FloatDType::F32));
    let part = |seed| rows(seed).slice([1..4, 0..3]).into_bridge();
    for setup in covered() {
        let mut results = Vec::new();
        for fused in [false, true] {
            let mut slot = slot(&setup, 2, fused);
            let mut weight = part(1);
            for step in 2..5 {
                assert_eq!(is_fused(&slot, &weight, &part(step)), fused);
                weight = slot.step(1e-2, weight, part(step));
            }
            results.push(bits(&weight, &slot));
        }
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn what_is_not_covered_is_left_to_burn() {
    let setup = &covered()[0];
    let square = |seed, dtype| tensor(numbers(seed, 9), &[3, 3], dtype);
    let single = |seed| square(seed, FloatDType::F32);
    let transposed = |seed| Tensor::<2>::from_bridge(single(seed)).transpose().into_bridge();
    let tracked = |seed| Tensor::<2>::from_bridge(single(seed)).autodiff().into_bridge();
    let fused = |weight, gradient| is_fused(&slot(setup, 2, true), &weight, &gradient);
    assert!(fused(single(1), single(2)));
    assert!(!fused(single(1), transposed(2)));
    assert!(!fused(transposed(1), single(2)));
    assert!(!fused(tracked(1), single(2)));
    assert!(!fused(single(1), square(2, FloatDType::F64)));
    for dtype in [FloatDType::F64, FloatDType::BF16, FloatDType::F16] {
        assert!(!fused(square(1, dtype), square(2, dtype)));
    }
    let wide = |seed| tensor(numbers(seed, 3), &[1, 3], FloatDType::F32);
    assert!(!fused(single(1), wide(2)));
    let empty = || tensor(Vec::new(), &[0, 3], FloatDType::F32);
    assert!(!fused(empty(), empty()));

    // Which includes that Burn does it.
    let step = |fused| {
        let mut slot = slot(setup, 2, fused);
        let weight = slot.step(0.1, single(1), transposed(2));
        let weight = slot.step(0.1, weight, transposed(3));
        bits(&weight, &slot)
    };
    assert_eq!(step(true), step(false));
}

/// A checkpoint that was made with AMSGrad may be gone on with without; its maxima stay in the state.
#[test]
fn a_state_with_maxima_is_left_to_burn() {
    let amsgrad = OptimizerSetup::new(AdamWConfig::new().with_amsgrad(true), 0.0);
    let values = |seed| tensor(numbers(seed, 4), &[4], FloatDType::F32);
    let mut slot = slot(&amsgrad, 1, true);
    assert!(slot.adam.is_none());
    let weight = slot.step(0.1, values(1), values(2));
    slot.adam = covered()[0].optimizers()[0].adam;
    assert!(!is_fused(&slot, &weight, &values(3)));
    let tensors = bits(&weight, &slot).0;
    assert!(tensors.iter().any(|(name, ..)| name.ends_with("max_moment_2")));
}
