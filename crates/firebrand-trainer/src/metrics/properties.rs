//! What every metric promises: the split into batches, the order of merges and a trip through a state change nothing.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use firebrand_core::Metric;
use proptest::prelude::*;

use super::*;

const CLASSES: usize = 4;
const PADDING: i64 = -1;

/// Samples: the logits of the classes, and the right class or padding.
type Samples = Vec<([f32; CLASSES], i64)>;

/// Few different logits, so that ties occur.
fn samples() -> impl Strategy<Value = Samples> {
    let logit = (-8_i8..8).prop_map(|step| f32::from(step) * 0.5);
    prop::collection::vec((prop::array::uniform4(logit), PADDING..CLASSES as i64), 1..40)
}

fn tensors(samples: &[([f32; CLASSES], i64)], dtype: DType) -> (Tensor<2>, Tensor<1, Int>) {
    let device = Device::flex();
    let logits: Vec<f32> = samples.iter().flat_map(|(logits, _)| *logits).collect();
    let targets: Vec<i64> = samples.iter().map(|(_, target)| *target).collect();
    (
        Tensor::from_data(
            TensorData::new(logits, [samples.len(), CLASSES]),
            (&device, dtype),
        ),
        Tensor::from_data(TensorData::new(targets, [samples.len()]), &device),
    )
}

/// Equal up to the rounding of sums of `f64`, or both not a number.
fn same(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs()) || (a.is_nan() && b.is_nan())
}

fn same_values<M: Metric>(a: &M, b: &M) -> bool {
    let (ours, theirs) = (a.components(), b.components());
    let components = ours
        .iter()
        .zip(&theirs)
        .all(|(a, b)| a.0 == b.0 && same(a.1, b.1));
    same(a.compute(), b.compute()) && ours.len() == theirs.len() && components
}

/// Checks one metric; `count` adds samples to it.
fn check<M: Metric>(
    empty: M,
    samples: &Samples,
    cuts: (usize, usize),
    count: impl Fn(M, &(Tensor<2>, Tensor<1, Int>)) -> Result<M, MetricError>,
) -> Result<(), TestCaseError> {
    let add = |metric: M, samples: &[([f32; CLASSES], i64)]| {
        let counted = count(metric, &tensors(samples, DType::F32));
        counted.map_err(|error| TestCaseError::fail(error.to_string()))
    };
    let (first, second) = (
        cuts.0.min(cuts.1) % samples.len(),
        cuts.0.max(cuts.1) % samples.len(),
    );
    let (first, second) = (first.min(second), first.max(second));
    let whole = add(empty.clone(), samples)?;

    // Batches one after the other into one metric.
    let mut chained = empty.clone();
    for part in [&samples[..first], &samples[first..second], &samples[second..]] {
        chained = add(chained, part)?;
    }
    prop_assert!(
        same_values(&chained, &whole),
        "chained {chained:?}, whole {whole:?}"
    );

    // (a + b) + c = a + (b + c), and c + a + b has the same value.
    let a = add(empty.clone(), &samples[..first])?;
    let b = add(empty.clone(), &samples[first..second])?;
    let c = add(empty.clone(), &samples[second..])?;
    let merge = |mut left: M, right: M| {
        left.merge(right);
        left
    };
    let left = merge(merge(a.clone(), b.clone()), c.clone());
    let right = merge(a.clone(), merge(b.clone(), c.clone()));
    for merged in [
        &left,
        &right,
        &merge(merge(c, a), b),
        &merge(empty.clone(), left.clone()),
    ] {
        prop_assert!(same_values(merged, &whole), "merged {merged:?}, whole {whole:?}");
    }

    // A state restores the metric to the bit, and goes on from there.
    let mut loaded = empty.clone();
    loaded
        .load_state(&left.state())
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(loaded.state(), left.state());
    prop_assert_eq!(loaded.compute().to_bits(), left.compute().to_bits());
    loaded
        .load_state(&empty.state())
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(loaded.compute().is_nan());
    prop_assert!(loaded.load_state(&[f64::NAN; 1000]).is_err());
    Ok(())
}

/// Binary targets: whether the class is one of the upper half.
fn halves(targets: &Tensor<1, Int>) -> Tensor<1, Int> {
    let padding = targets.clone().equal_elem(PADDING);
    targets
        .clone()
        .greater_equal_elem(CLASSES as i64 / 2)
        .int()
        .mask_fill(padding, PADDING)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn accuracies(samples in samples(), cuts: (usize, usize), k in 1..=CLASSES) {
        check(Accuracy::new().top_k(k).ignore_index(PADDING), &samples, cuts, |m, (x, y)| m.update(x, y))?;
    }

    #[test]
    fn confusion_matrices(samples in samples(), cuts: (usize, usize)) {
        check(ConfusionMatrix::new(CLASSES).ignore_index(PADDING), &samples, cuts, |m, (x, y)| m.update(x, y))?;
    }

    #[test]
    fn scores_of_classes(samples in samples(), cuts: (usize, usize), beta in 0.0..4.0_f64) {
        for average in [Average::Macro, Average::Micro, Average::Weighted, Average::Class(2)] {
            let precision = Precision::new(CLASSES).average(average).ignore_index(PADDING).per_class();
            check(precision, &samples, cuts, |m, (x, y)| m.update(x, y))?;
            let recall = Recall::new(CLASSES).average(average).ignore_index(PADDING).per_class();
            check(recall, &samples, cuts, |m, (x, y)| m.update(x, y))?;
            let f = FBeta::new(beta, CLASSES).average(average).ignore_index(PADDING).per_class();
            check(f, &samples, cuts, |m, (x, y)| m.update(x, y))?;
        }
    }

    #[test]
    fn areas(samples in samples(), cuts: (usize, usize), bins in 2..50_usize) {
        let many = Auroc::multiclass(CLASSES).ignore_index(PADDING).per_class();
        let two = Auroc::binary().ignore_index(PADDING);
        let of_two = |m: Auroc, (x, y): &(Tensor<2>, Tensor<1, Int>)| m.update(&x.clone().narrow(1, 0, 2), &halves(y));
        check(many.clone(), &samples, cuts, |m, (x, y)| m.update(x, y))?;
        check(many.bins(bins), &samples, cuts, |m, (x, y)| m.update(x, y))?;
        check(two.clone(), &samples, cuts, of_two)?;
        check(two.bins(bins), &samples, cuts, of_two)?;
    }

    #[test]
    fn bins_are_as_wrong_as_their_ties(samples in samples(), bins in 2..50_usize) {
        let (x, y) = tensors(&samples, DType::F32);
        let (x, y) = (x.narrow(1, 0, 2), halves(&y));
        let exact = Auroc::binary().ignore_index(PADDING).update(&x, &y).unwrap().compute();
        let binned = Auroc::binary().bins(bins).ignore_index(PADDING).update(&x, &y).unwrap();
        // For each bin: negatives, positives.
        let cells = binned.state();
        let [negative, positive] = [0, 1].map(|kind| cells.iter().skip(kind).step_by(2).sum::<f64>());
        let tied: f64 = cells.chunks_exact(2).map(|bin| bin[0] * bin[1]).sum();
        let off = (exact - binned.compute()).abs();
        prop_assert!(exact.is_nan() || off <= 0.5 * tied / (negative * positive) + 1e-12);
    }

    #[test]
    fn errors_and_means(samples in samples(), cuts: (usize, usize)) {
        let other = |x: &Tensor<2>| x.clone().flip([1]);
        check(MeanSquaredError::new(), &samples, cuts, |m, (x, _)| m.update(x, &other(x)))?;
        check(MeanSquaredError::new().root(), &samples, cuts, |m, (x, _)| m.update(x, &other(x)))?;
        check(MeanAbsoluteError::new(), &samples, cuts, |m, (x, _)| m.update(x, &other(x)))?;
        check(Mean::new(), &samples, cuts, |m, (x, _)| m.update(x))?;
        check(Mean::new(), &samples, cuts, |m, (x, _)| m.update_weighted(x, &other(x).abs()))?;
        check(Perplexity::new().ignore_index(PADDING), &samples, cuts, |m, (x, y)| m.update(x, y))?;
    }

    #[test]
    fn the_dtype_changes_nothing_that_it_can_hold(samples in samples()) {
        // Halves up to 4 are exact in every dtype.
        let of = |dtype| {
            let (x, y) = tensors(&samples, dtype);
            let accuracy = Accuracy::new().ignore_index(PADDING).update(&x, &y).unwrap().compute();
            let f = FBeta::f1(CLASSES).ignore_index(PADDING).update(&x, &y).unwrap().compute();
            let area = Auroc::multiclass(CLASSES).ignore_index(PADDING).update(&x, &y).unwrap().compute();
            let error = MeanSquaredError::new().update(&x, &x.clone().flip([1])).unwrap().compute();
            [accuracy, f, area, error].map(f64::to_bits)
        };
        let expected = of(DType::F64);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            prop_assert_eq!(of(dtype), expected);
        }
    }

    #[test]
    fn exact_areas_count_pairs(samples in samples()) {
        // The definition, pair by pair.
        let (x, y) = tensors(&samples, DType::F64);
        let area = Auroc::binary().ignore_index(PADDING).update(&x.narrow(1, 0, 1), &halves(&y)).unwrap().compute();
        let of = |upper: bool| {
            let counted = samples.iter().filter(move |(_, class)| *class != PADDING && (*class >= 2) == upper);
            counted.map(|(logits, _)| logits[0]).collect::<Vec<f32>>()
        };
        let (negatives, positives) = (of(false), of(true));
        let won = positives.iter().flat_map(|p| negatives.iter().map(move |n| {
            if p > n { 1.0 } else if p == n { 0.5 } else { 0.0 }
        }));
        let pairs = (negatives.len() * positives.len()) as f64;
        prop_assert!(same(area, won.sum::<f64>() / pairs));
    }
}
