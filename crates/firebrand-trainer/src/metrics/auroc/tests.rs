use burn::tensor::{Device, TensorData};

use super::*;

fn floats<const C: usize>(rows: &[[f64; C]]) -> Tensor<2> {
    let data = TensorData::new(rows.concat(), [rows.len(), C]);
    Tensor::from_data(data, (&Device::flex(), burn::tensor::DType::F64))
}

fn ints(values: &[i64]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &Device::flex())
}

const LOGITS: [[f64; 3]; 8] = [
    [2.0, 0.5, -1.0],
    [0.1, 1.5, 0.3],
    [0.2, 0.2, 0.2],
    [-0.5, 0.7, 2.2],
    [1.0, 1.0, -2.0],
    [0.0, 0.3, 0.1],
    [3.0, -1.0, 0.5],
    [0.4, 0.6, 0.9],
];
const TARGETS: [i64; 8] = [0, 1, 2, 2, 0, 1, 0, 1];

#[test]
fn binary_with_ties_as_scikit_learn() {
    // sklearn.metrics.roc_auc_score([0, 0, 1, 1, 0, 1, 1, 0], [.1, .4, .4, .8, .4, .35, .9, .2])
    let scores = [[0.1], [0.4], [0.4], [0.8], [0.4], [0.35], [0.9], [0.2]];
    let targets = ints(&[0, 0, 1, 1, 0, 1, 1, 0]);
    let metric = Auroc::binary().update_scores(&floats(&scores), &targets).unwrap();
    assert_eq!(metric.compute(), 0.8125);
    let binned = Auroc::binary()
        .bins(1000)
        .update_scores(&floats(&scores), &targets)
        .unwrap();
    assert_eq!(binned.compute(), 0.8125);
    // Two columns of logits say the same as their difference, and as the probabilities of the second.
    let logits = scores.map(|[score]: [f64; 1]| [0.0, (score / (1.0 - score)).ln()]);
    for metric in [Auroc::binary(), Auroc::binary().bins(1000)] {
        assert_eq!(
            metric.update(&floats(&logits), &targets).unwrap().compute(),
            0.8125
        );
    }
    let pairs = scores.map(|[score]| [1.0 - score, score]);
    assert_eq!(
        Auroc::binary()
            .update_scores(&floats(&pairs), &targets)
            .unwrap()
            .compute(),
        0.8125
    );
}

#[test]
fn one_against_the_rest_as_scikit_learn() {
    // p = scipy.special.softmax(LOGITS, axis=1)
    // roc_auc_score(TARGETS, p, multi_class="ovr", average="macro")
    // [roc_auc_score(TARGETS == c, p[:, c]) for c in range(3)]
    let metric = Auroc::multiclass(3)
        .per_class()
        .update(&floats(&LOGITS), &ints(&TARGETS))
        .unwrap();
    assert!((metric.compute() - 0.905_555_555_555_555_6).abs() < 1e-15);
    let expected = [("0", 1.0), ("1", 0.8), ("2", 11.0 / 12.0)];
    assert_eq!(
        metric.components(),
        expected.map(|(class, area)| (class.to_owned(), area))
    );
    // Raw logits compared across samples would give 0.8055…: the softmax matters.
    let raw = Auroc::multiclass(3)
        .update_scores(&floats(&LOGITS), &ints(&TARGETS))
        .unwrap();
    assert!((raw.compute() - 0.805_555_555_555_555_6).abs() < 1e-15);
    let binned = Auroc::multiclass(3)
        .bins(1000)
        .update(&floats(&LOGITS), &ints(&TARGETS))
        .unwrap();
    assert_eq!(binned.compute(), metric.compute());
}

#[test]
fn a_class_without_a_sample_is_left_out() {
    let metric = Auroc::multiclass(3)
        .update(&floats(&LOGITS[..2]), &ints(&[0, 1]))
        .unwrap();
    let areas = metric.areas();
    assert!(areas[2].is_nan() && !areas[0].is_nan());
    assert_eq!(metric.compute(), (areas[0] + areas[1]) / 2.0);
    let one_sided = Auroc::binary()
        .update(&floats(&[[0.5], [0.1]]), &ints(&[1, 1]))
        .unwrap();
    assert!(one_sided.compute().is_nan() && Auroc::multiclass(3).compute().is_nan());
}

#[test]
fn binary_areas_are_not_logged_twice() {
    let metric = Auroc::binary()
        .per_class()
        .update(&floats(&[[0.5], [0.1]]), &ints(&[1, 0]))
        .unwrap();
    assert_eq!((metric.compute(), metric.components()), (1.0, Vec::new()));
}

#[test]
fn bad_batches_are_refused() {
    let two = ints(&[0, 1]);
    let refuse = |metric: Auroc, scores: Tensor<2>, part: &str| {
        let error = metric.update_scores(&scores, &two).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refuse(
        Auroc::binary(),
        floats(&[[0.1], [f64::NAN]]),
        "element 1 of the scores is NaN",
    );
    refuse(
        Auroc::binary(),
        floats(&[[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]]),
        "[2, 3], not [samples, 2]",
    );
    refuse(Auroc::binary(), floats(&[[0.1]]), "one class for each row");
    refuse(
        Auroc::binary().bins(10),
        floats(&[[0.1], [1.5]]),
        "is 1.5; bins need probabilities",
    );
    refuse(Auroc::binary().bins(1), floats(&[[0.1], [0.5]]), "`bins` is 1");
    refuse(
        Auroc::multiclass(4).bins(usize::MAX),
        floats(&[[0.1; 4], [0.5; 4]]),
        "`bins` is",
    );
    refuse(
        Auroc::multiclass(1),
        floats(&[[0.1], [0.5]]),
        "`num_classes` is 1",
    );
    let targets = Auroc::binary()
        .update(&floats(&[[0.1], [0.5]]), &ints(&[0, 2]))
        .unwrap_err();
    assert!(matches!(
        targets,
        MetricError::Class {
            row: 1,
            class: 2,
            num_classes: 2,
            ..
        }
    ));
    let infinite = [[f64::INFINITY, 0.0, 0.0], [0.0, 0.0, 0.0]];
    let error = Auroc::multiclass(3).update(&floats(&infinite), &two).unwrap_err();
    assert!(matches!(error, MetricError::Value { index: 0, .. }), "{error}");
}

#[test]
fn states_of_other_settings_are_refused_or_spoil_the_value() {
    let metric = Auroc::binary()
        .update(&floats(&[[0.5], [0.1]]), &ints(&[1, 0]))
        .unwrap();
    assert_eq!(metric.state(), [1.0, 0.5, 0.0, 0.1]);
    let mut other = Auroc::multiclass(3);
    for state in [
        &[1.0, 0.5, 0.0, 0.1, 0.2][..],
        &[3.0, 0.1, 0.1, 0.1],
        &[0.0, 0.1, f64::NAN, 0.1],
    ] {
        assert!(other.load_state(state).is_err());
    }
    for mut mixed in [other, Auroc::binary().bins(10)] {
        mixed.merge(metric.clone());
        let mut loaded = metric.clone();
        loaded.load_state(&mixed.state()).unwrap();
        assert!(mixed.compute().is_nan() && loaded.compute().is_nan());
    }
    // For good: what is counted afterwards does not hide it.
    let mut mixed = metric.clone();
    mixed.merge(Auroc::binary().bins(10));
    let more = mixed.update(&floats(&[[0.5], [0.1]]), &ints(&[1, 0])).unwrap();
    assert!(more.compute().is_nan());
}
