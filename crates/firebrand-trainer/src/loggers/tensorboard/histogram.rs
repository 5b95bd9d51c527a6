use std::sync::LazyLock;

use tfrecord::HistogramProto;

/// The upper limits of the buckets that TensorFlow uses: 0 and ±1e-12 × 1.1ⁿ below 1e20, then the largest number.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let positive: Vec<f64> = std::iter::successors(Some(1e-12), |limit| Some(limit * 1.1))
        .take_while(|limit| *limit < 1e20)
        .collect();
    let negative = positive.iter().rev().map(|limit| -limit);
    negative
        .chain([0.0])
        .chain(positive.iter().copied())
        .chain([f64::MAX])
        .collect()
});

/// Counts the finite values in TensorFlow's buckets; `None` if there are none. Values that are not finite have no bucket.
///
/// Runs of empty buckets are merged into one, as TensorFlow does, which makes a histogram of some thousand weights a few
/// hundred bytes instead of 25 KB.
pub(super) fn histogram(values: &[f64]) -> Option<HistogramProto> {
    let mut counts = vec![0_u64; LIMITS.len()];
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut num, mut sum, mut sum_squares) = (0_u64, 0.0, 0.0);
    for &value in values.iter().filter(|value| value.is_finite()) {
        // A bucket holds lower limit <= value < upper limit; the largest number has none above it.
        let bucket = LIMITS
            .partition_point(|limit| *limit <= value)
            .min(counts.len() - 1);
        counts[bucket] += 1;
        num += 1;
        sum += value;
        sum_squares += value * value;
        min = min.min(value);
        max = max.max(value);
    }
    if num == 0 {
        return None;
    }
    let (mut bucket_limit, mut bucket) = (Vec::new(), Vec::new());
    for (index, &count) in counts.iter().enumerate() {
        // An empty bucket is written only where it ends a run of them, as the lower limit of the next one. The first
        // bucket needs none: TensorBoard lets it begin at the smallest value.
        let ends_a_run = !bucket.is_empty() && counts.get(index + 1).is_some_and(|&next| next > 0);
        if count > 0 || ends_a_run {
            bucket_limit.push(LIMITS[index]);
            bucket.push(count as f64);
        }
    }
    Some(HistogramProto {
        min,
        max,
        num: num as f64,
        sum,
        sum_squares,
        bucket_limit,
        bucket,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_the_bucket_around_it() {
        let values: Vec<f64> = (0..2000)
            .map(|i| ((i * 7919) % 2000) as f64 / 700.0 - 1.2)
            .chain([0.0, -1e-30, 1e30])
            .collect();
        let histogram = histogram(&values).unwrap();
        assert_eq!(histogram.num, 2003.0);
        assert_eq!(histogram.bucket.iter().sum::<f64>(), 2003.0);
        assert_eq!((histogram.min, histogram.max), (-1.2, 1e30));
        assert!(
            (histogram.sum_squares - values.iter().map(|v| v * v).sum::<f64>()).abs()
                < 1e-6 * histogram.sum_squares
        );
        let mut lower = -f64::MAX;
        for (&upper, &count) in histogram.bucket_limit.iter().zip(&histogram.bucket) {
            let inside = values
                .iter()
                .filter(|value| (lower..upper).contains(*value))
                .count();
            assert_eq!(inside as f64, count, "{lower}..{upper}");
            lower = upper;
        }
    }

    #[test]
    fn empty_runs_are_merged_and_what_is_not_finite_is_left_out() {
        let histogram = histogram(&[1.0, f64::NAN, 1.0, f64::INFINITY, -100.0]).unwrap();
        assert_eq!(histogram.bucket, [1.0, 0.0, 2.0]);
        assert_eq!(histogram.num, 3.0);
        assert!(super::histogram(&[f64::NAN]).is_none());
        assert!(super::histogram(&[]).is_none());
    }
}
