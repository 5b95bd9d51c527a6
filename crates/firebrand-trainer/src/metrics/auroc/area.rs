//! The area under a ROC curve, and the scores that it is taken of.

/// The area for groups of equal scores, `(negatives, positives)` each, from the lowest score to the highest.
///
/// `Σ positives·(2·negatives below + negatives beside) / (2·positives·negatives)`, in whole numbers, so that neither the order
/// nor the split of the samples changes a bit of it. Not-a-number without a negative or a positive.
pub(super) fn area(groups: impl Iterator<Item = (u64, u64)>) -> f64 {
    let (mut below, mut all_positive, mut doubled) = (0_u128, 0_u128, 0_u128);
    for (negative, positive) in groups {
        let (negative, positive) = (u128::from(negative), u128::from(positive));
        doubled += positive * (2 * below + negative);
        below += negative;
        all_positive += positive;
    }
    let pairs = below * all_positive;
    if pairs == 0 {
        f64::NAN
    } else {
        doubled as f64 / (2 * pairs) as f64
    }
}

/// Groups scores that are equal, from the lowest to the highest.
pub(super) fn groups(mut samples: Vec<(f64, bool)>) -> impl Iterator<Item = (u64, u64)> {
    // −0 comes right before 0 in this order, and is equal to it below.
    samples.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = 0;
    std::iter::from_fn(move || {
        let score = samples.get(next)?.0;
        let mut group = (0, 0);
        while let Some((_, positive)) = samples.get(next).filter(|sample| sample.0 == score) {
            if *positive {
                group.1 += 1;
            } else {
                group.0 += 1;
            }
            next += 1;
        }
        Some(group)
    })
}

/// The logarithm of the softmax of a row of logits; not-a-number where the softmax is none.
///
/// The highest logit is kept out of the sum and `ln(1 + x)` is taken of the others, so that two classes that are nearly sure
/// are still told apart where their probabilities both round to 1.
pub(super) fn log_softmax(logits: &[f64]) -> impl Iterator<Item = f64> {
    let best = crate::metrics::input::arg_max(logits);
    let max = logits.get(best).copied().unwrap_or(f64::NAN);
    let others = logits.iter().enumerate().filter(|(class, _)| *class != best);
    let log_sum = others.map(|(_, logit)| (logit - max).exp()).sum::<f64>().ln_1p();
    logits.iter().map(move |logit| (logit - max) - log_sum)
}

/// The logistic function, `1 / (1 + exp(−x))`.
pub(super) fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[(f64, bool)]) -> f64 {
        area(groups(samples.to_vec()))
    }

    #[test]
    fn ties_count_one_half() {
        assert_eq!(of(&[(0.1, false), (0.2, true)]), 1.0);
        assert_eq!(of(&[(0.2, false), (0.1, true)]), 0.0);
        assert_eq!(of(&[(0.2, false), (0.2, true)]), 0.5);
        assert_eq!(of(&[(0.0, false), (-0.0, true), (-0.0, false), (0.0, true)]), 0.5);
        assert_eq!(
            of(&[(f64::NEG_INFINITY, false), (0.0, false), (0.0, true), (1.0, true)]),
            3.5 / 4.0
        );
        assert!(of(&[(0.3, true), (0.4, true)]).is_nan() && of(&[(0.3, false)]).is_nan() && of(&[]).is_nan());
    }

    #[test]
    fn many_samples_do_not_overflow() {
        let half = u64::from(u32::MAX);
        assert_eq!(area([(half, 0), (half, half), (0, half)].into_iter()), 0.875);
    }

    #[test]
    fn probabilities_near_one_are_told_apart() {
        let sure: Vec<f64> = log_softmax(&[50.0, 0.0]).collect();
        let surer: Vec<f64> = log_softmax(&[60.0, 0.0]).collect();
        assert!(sure[0] < surer[0] && surer[0] < 0.0);
        let ruled_out: Vec<f64> = log_softmax(&[f64::NEG_INFINITY, 1.0, 1.0]).collect();
        assert_eq!(ruled_out, [f64::NEG_INFINITY, -(2.0_f64.ln()), -(2.0_f64.ln())]);
        assert!(log_softmax(&[f64::INFINITY, 0.0]).any(f64::is_nan));
        assert!(log_softmax(&[f64::NEG_INFINITY; 2]).all(f64::is_nan));
    }
}
