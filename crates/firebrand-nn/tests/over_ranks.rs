//! Batch norm over ranks: batches of different sizes are one batch, and a rank that fails ends the others with its name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use burn::tensor::{DType, Tensor};
use firebrand_nn::{BatchNormConfig, Error};
use support::*;

const FEATURES: usize = 3;
const POINTS: usize = 4;

/// What one rank has after several steps: for each the output and the input gradient, then the weight gradients of all
/// steps and the running statistics.
#[derive(Debug)]
struct Outcome {
    outputs: Vec<Vec<f64>>,
    of_inputs: Vec<Vec<f64>>,
    of_weights: Vec<f64>,
    running: Vec<f64>,
}

const STEPS: u64 = 3;

/// Trains on rows of a batch, all of which are the same for every caller.
fn train(
    step: &firebrand_core::StepContext,
    rows: std::ops::Range<usize>,
    total: usize,
    dtype: DType,
) -> Outcome {
    let norm = layer(&BatchNormConfig::new(FEATURES).with_synchronize(true), dtype);
    let device = device();
    let row = FEATURES * POINTS;
    let mut outcome = Outcome {
        outputs: Vec::new(),
        of_inputs: Vec::new(),
        of_weights: vec![0.0; 2 * FEATURES],
        running: Vec::new(),
    };
    for number in 0..STEPS {
        let part = |salt, offset| {
            let all = values(total * row, salt, offset);
            tensor(
                all[rows.start * row..rows.end * row].to_vec(),
                [rows.len(), FEATURES, POINTS],
                dtype,
                &device,
            )
        };
        let x = part(10 + number, 2.0).require_grad();
        let output = norm.forward(x.clone(), step).unwrap();
        let loss = (output.clone().tanh() * part(50 + number, 0.0)).sum();
        let grads = loss.backward();
        outcome.outputs.push(host(output));
        outcome.of_inputs.push(host(x.grad(&grads).unwrap()));
        let of_weights =
            [norm.gamma.val().grad(&grads), norm.beta.val().grad(&grads)].map(|g| host(g.unwrap()));
        let sums = outcome.of_weights.iter_mut();
        sums.zip(of_weights.concat())
            .for_each(|(sum, gradient)| *sum += gradient);
    }
    outcome.running = host(norm.running_mean.value_sync());
    outcome.running.extend(host(norm.running_var.value_sync()));
    outcome
}

/// The rows of each rank.
fn shares(sizes: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let ranges = sizes.iter().map(|size| {
        start += size;
        start - size..start
    });
    ranges.collect()
}

fn compare(sizes: &'static [usize], dtype: DType, tolerance: f64) {
    let total = sizes.iter().sum();
    let expected = train(&step(), 0..total, total, dtype);
    let found = on_ranks(sizes.len(), move |group| {
        let rows = shares(sizes)[group.rank()].clone();
        train(&step_of(&group), rows, total, dtype)
    });
    for number in 0..STEPS as usize {
        let of_all = |part: fn(&Outcome) -> &Vec<Vec<f64>>| -> Vec<f64> {
            found.iter().flat_map(|rank| part(rank)[number].clone()).collect()
        };
        assert_close(
            &of_all(|o| &o.outputs),
            &expected.outputs[number],
            tolerance,
            "outputs",
        );
        assert_close(
            &of_all(|o| &o.of_inputs),
            &expected.of_inputs[number],
            tolerance,
            "input gradients",
        );
    }
    let mut of_weights = vec![0.0; 2 * FEATURES];
    for rank in &found {
        of_weights
            .iter_mut()
            .zip(&rank.of_weights)
            .for_each(|(sum, part)| *sum += part);
        assert_eq!(
            rank.running, found[0].running,
            "all ranks have the same statistics, bit for bit"
        );
    }
    assert_close(&of_weights, &expected.of_weights, tolerance, "weight gradients");
    assert_close(
        &found[0].running,
        &expected.running,
        tolerance,
        "running statistics",
    );
}

#[test]
fn ranks_with_batches_of_any_size_are_one_rank_with_all_of_them() {
    compare(&[3, 5], DType::F64, 1e-10);
    compare(&[1, 6], DType::F64, 1e-10);
    compare(&[4, 1, 2], DType::F64, 1e-10);
    compare(&[3, 5], DType::F32, 2e-6);
    compare(&[3, 5], DType::F16, 4e-3);
}

#[test]
fn a_layer_that_is_not_synchronised_is_each_ranks_own() {
    let means = on_ranks(2, |group| {
        let norm = BatchNormConfig::new(1).init(&device()).unwrap();
        let batch = Tensor::<2>::from_floats([[1.0], [2.0]], &device()) * (1 + group.rank()) as f32;
        norm.forward(batch, &step_of(&group)).unwrap();
        host(norm.running_mean.value_sync())
    });
    assert_close(&means.concat(), &[0.15, 0.3], 1e-6, "means");
}

#[test]
fn one_value_per_rank_is_enough_for_two() {
    let outputs = on_ranks(2, |group| {
        let norm = BatchNormConfig::new(1)
            .with_synchronize(true)
            .init(&device())
            .unwrap();
        let batch = Tensor::<2>::from_floats([[group.rank() as f32]], &device());
        host(norm.forward(batch, &step_of(&group)).unwrap())
    });
    assert_close(&outputs.concat(), &[-1.0, 1.0], 1e-4, "outputs");
}

#[test]
fn a_rank_that_leaves_before_the_forward_pass_is_named() {
    let outcomes = on_mortal_ranks(3, |group| {
        let norm = BatchNormConfig::new(FEATURES)
            .with_synchronize(true)
            .init(&device())
            .unwrap();
        let batch = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [2.0, 3.0, 5.0]], &device());
        norm.forward(batch.clone(), &step_of(&group)).unwrap();
        if group.rank() == 1 {
            return None;
        }
        let start = Instant::now();
        let error = norm.forward(batch, &step_of(&group)).unwrap_err();
        Some((error, start.elapsed()))
    });
    let survivors: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(survivors.len(), 2);
    for (error, took) in survivors {
        assert!(took < Duration::from_secs(5), "{took:?}");
        let Error::Ranks(cause) = error else {
            panic!("{error}")
        };
        assert!(cause.to_string().contains("rank 1"), "{cause}");
    }
}

#[test]
fn a_rank_that_leaves_before_the_backward_pass_leaves_no_numbers_and_its_name() {
    let outcomes = on_mortal_ranks(2, |group| {
        let norm = BatchNormConfig::new(FEATURES)
            .with_synchronize(true)
            .init(&device())
            .unwrap();
        let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [2.0, 3.0, 5.0]], &device()).require_grad();
        let loss = norm
            .forward(x.clone(), &step_of(&group))
            .unwrap()
            .powf_scalar(2.0)
            .sum();
        if group.rank() == 1 {
            return None;
        }
        let start = Instant::now();
        let grads = loss.backward();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(
            host(x.grad(&grads).unwrap())
                .iter()
                .all(|gradient| gradient.is_nan())
        );
        Some(group.health().check().unwrap_err().to_string())
    });
    let cause = outcomes[0].clone().unwrap();
    assert!(cause.contains("rank 1"), "{cause}");
}

#[test]
fn ranks_that_go_back_through_different_layers_are_told() {
    let errors = on_ranks(2, |group| {
        let config = BatchNormConfig::new(FEATURES).with_synchronize(true);
        let (first, second) = (config.init(&device()).unwrap(), config.init(&device()).unwrap());
        let step = step_of(&group);
        let x = tensor(values(12, 3, 1.0), [4, FEATURES], DType::F32, &device()).require_grad();
        let a = first.forward(x.clone(), &step).unwrap().powf_scalar(3.0).sum();
        let b = second
            .forward(x * 2.0 + 1.0, &step)
            .unwrap()
            .powf_scalar(3.0)
            .sum();
        // Each rank goes through its graph in the order of its own sums.
        let (one, other) = if group.rank() == 0 { (a, b) } else { (b, a) };
        drop(one.backward());
        drop(other.backward());
        group.health().check().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("went back through"), "{error}");
    }
}
