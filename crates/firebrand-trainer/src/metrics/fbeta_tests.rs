use burn::tensor::{Device, TensorData};

use super::*;

fn ints(values: &[i64]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &Device::flex())
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-15, "{found} is not {expected}");
    }
}

/// The values for macro, micro and weighted averages.
macro_rules! averages {
    ($metric:expr, $predicted:expr, $targets:expr) => {
        [Average::Macro, Average::Micro, Average::Weighted].map(|average| {
            $metric
                .average(average)
                .update_classes(&ints(&$predicted), &ints(&$targets))
                .unwrap()
                .compute()
        })
    };
}

const TARGETS: [i64; 10] = [0, 1, 2, 2, 1, 0, 2, 2, 1, 3];
const PREDICTED: [i64; 10] = [0, 2, 2, 2, 2, 1, 0, 2, 1, 2];

// The expected values are those of scikit-learn 1.9 for T = TARGETS, P = PREDICTED and zero_division=0:
//   precision_score(T, P, average=a), recall_score(…), fbeta_score(T, P, beta=b, average=a)
//   with a in "macro", "micro", "weighted", and None for the classes.

#[test]
fn precision_as_scikit_learn() {
    close(
        &averages!(Precision::new(4), PREDICTED, TARGETS),
        &[0.375, 0.5, 0.45],
    );
    let classes = Precision::new(4)
        .update_classes(&ints(&PREDICTED), &ints(&TARGETS))
        .unwrap();
    close(&classes.scores(), &[0.5, 0.5, 0.5, 0.0]);
}

#[test]
fn recall_as_scikit_learn() {
    close(
        &averages!(Recall::new(4), PREDICTED, TARGETS),
        &[0.395_833_333_333_333_3, 0.5, 0.5],
    );
    let classes = Recall::new(4)
        .update_classes(&ints(&PREDICTED), &ints(&TARGETS))
        .unwrap();
    close(&classes.scores(), &[0.5, 1.0 / 3.0, 0.75, 0.0]);
}

#[test]
fn f_beta_as_scikit_learn() {
    for (beta, expected, of_classes) in [
        (
            0.5,
            [0.372_564_935_064_935_04, 0.5, 0.450_649_350_649_350_6],
            [0.5, 5.0 / 11.0, 15.0 / 28.0, 0.0],
        ),
        (1.0, [0.375, 0.5, 0.46], [0.5, 0.4, 0.6, 0.0]),
        (
            2.0,
            [0.384_740_259_740_259_7, 0.5, 0.479_870_129_870_129_8],
            [0.5, 5.0 / 14.0, 15.0 / 22.0, 0.0],
        ),
    ] {
        close(&averages!(FBeta::new(beta, 4), PREDICTED, TARGETS), &expected);
        let classes = FBeta::new(beta, 4)
            .update_classes(&ints(&PREDICTED), &ints(&TARGETS))
            .unwrap();
        close(&classes.scores(), &of_classes);
    }
    assert_eq!(FBeta::f1(3), FBeta::new(1.0, 3));
}

#[test]
fn absent_classes_are_no_part_of_a_macro_average() {
    // Class 3 is only predicted, class 4 is nowhere. scikit-learn: f1_score(T, P, average="macro", zero_division=0),
    // average="weighted", and average=None with labels=range(5). torchmetrics 1.9, f1_score(…, task="multiclass",
    // num_classes=5, average="macro"), gives 0.5417 as well.
    let (targets, predicted) = ([0, 1, 2, 2, 1, 0], [0, 3, 2, 2, 1, 1]);
    let [macro_f1, _, weighted] = averages!(FBeta::f1(5), predicted, targets);
    close(
        &[macro_f1, weighted],
        &[0.541_666_666_666_666_6, 0.722_222_222_222_222_2],
    );
    let metric = FBeta::f1(5)
        .per_class()
        .update_classes(&ints(&predicted), &ints(&targets))
        .unwrap();
    close(&metric.scores(), &[2.0 / 3.0, 0.5, 1.0, 0.0, 0.0]);
    assert_eq!(metric.components()[2], ("2".to_owned(), 1.0));
    close(&averages!(Precision::new(5), predicted, targets)[..1], &[0.625]);
    close(&averages!(Recall::new(5), predicted, targets)[..1], &[0.5]);
}

#[test]
fn one_class_is_the_binary_score() {
    // precision_score([0, 0, 1, 1, 0], [0, 1, 1, 0, 1]) is 1/3, recall_score 1/2.
    let (targets, predicted) = (ints(&[0, 0, 1, 1, 0]), ints(&[0, 1, 1, 0, 1]));
    let precision = Precision::new(2)
        .average(Average::Class(1))
        .update_classes(&predicted, &targets)
        .unwrap();
    let recall = Recall::new(2)
        .average(Average::Class(1))
        .update_classes(&predicted, &targets)
        .unwrap();
    assert_eq!((precision.compute(), recall.compute()), (1.0 / 3.0, 0.5));
}

#[test]
fn logits_and_their_arg_max_say_the_same() {
    let device = Device::flex().autodiff();
    let logits = Tensor::<2>::from_floats([[0.1, 0.9, 0.9], [0.7, 0.1, 0.2], [0.0, 0.0, 5.0]], &device);
    let targets = Tensor::<1, Int>::from_ints([1, 2, -1], &device);
    let from_logits = FBeta::f1(3)
        .ignore_index(-1)
        .update(&logits.require_grad(), &targets)
        .unwrap();
    let from_classes = FBeta::f1(3)
        .ignore_index(-1)
        .update_classes(&ints(&[1, 0, 2]), &targets)
        .unwrap();
    assert_eq!(from_logits, from_classes);
    assert_eq!(from_logits.state(), [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
}

#[test]
fn options_that_make_no_sense_are_named() {
    let one = ints(&[0]);
    let error = |metric: FBeta| metric.update_classes(&one, &one).unwrap_err().to_string();
    assert!(error(FBeta::f1(2).average(Average::Class(2))).contains("`average` is Average::Class(2)"));
    assert!(error(FBeta::new(-1.0, 2)).contains("`beta` is -1"));
    assert!(error(FBeta::new(f64::NAN, 2)).contains("`beta` is NaN"));
    for num_classes in [0, 1 << 60, usize::MAX] {
        assert!(error(FBeta::f1(num_classes)).contains(&format!("`num_classes` is {num_classes}")));
    }
}

#[test]
fn scores_of_other_settings_have_no_sum() {
    let one = ints(&[0]);
    let of = |metric: FBeta| metric.update_classes(&one, &one).unwrap();
    for other in [
        FBeta::new(2.0, 2),
        FBeta::f1(3),
        FBeta::f1(2).average(Average::Micro),
    ] {
        let mut metric = of(FBeta::f1(2));
        assert_eq!(metric.compute(), 1.0);
        metric.merge(of(other));
        assert!(metric.compute().is_nan());
    }
}

#[test]
fn contradictory_states_are_refused() {
    let mut metric = Recall::new(2);
    for state in [
        &[1.0, 1.0, 1.0][..],
        &[2.0, 1.0, 2.0, 0.0, 1.0, 0.0],
        &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
    ] {
        assert!(metric.load_state(state).is_err(), "{state:?}");
    }
    metric.load_state(&[1.0, 2.0, 1.0, 0.0, 0.0, 1.0]).unwrap();
    assert_eq!(metric.compute(), 0.5);
}
