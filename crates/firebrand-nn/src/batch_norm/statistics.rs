use burn::tensor::{DType, Tensor, TensorData};

use crate::wide;

/// The statistics of the channels of a batch, without autodiff, in float32 or float64.
pub(super) struct Statistics {
    /// The values of each channel.
    pub count: u64,
    /// `[channels]`.
    pub mean: Tensor<1>,
    /// The sums of the squares of the distances from the mean, `[channels]`.
    pub squares: Tensor<1>,
}

impl Statistics {
    /// Those of `[batch, channels, ...]`, without autodiff.
    ///
    /// In two passes, since sums of squares alone cancel where the mean is large against the deviation.
    pub(super) fn of<const D: usize>(input: Tensor<D>) -> Self {
        let shape = input.shape();
        let (batch, channels) = (shape[0], shape[1]);
        let points = shape.num_elements() / (batch * channels);
        let dtype = wide(input.dtype());
        let values: Tensor<3> = input.cast(dtype).reshape([batch, channels, points]);
        let count = (batch * points) as u64;
        let mean = sum_per_channel(values.clone()).div_scalar(count as f64);
        let distances = values - mean.clone().reshape([1, channels, 1]);
        let squares = sum_per_channel(distances.clone() * distances);
        Self { count, mean, squares }
    }

    /// The biased variance, with which a batch is normalised: `squares / count`.
    pub(super) fn variance(&self) -> Tensor<1> {
        self.squares.clone().div_scalar(self.count as f64)
    }

    /// The unbiased variance, which is kept for evaluation: `squares / (count − 1)`.
    pub(super) fn unbiased_variance(&self) -> Tensor<1> {
        self.squares.clone().div_scalar((self.count - 1) as f64)
    }
}

/// Sums over `[batch, channels, points]`: over the points of each sample first, so that a sum is one of short sums, and only
/// those are transposed.
fn sum_per_channel(values: Tensor<3>) -> Tensor<1> {
    let [batch, channels, _] = values.dims();
    let of_samples: Tensor<2> = values.sum_dim(2).reshape([batch, channels]);
    of_samples.transpose().sum_dim(1).reshape([channels])
}

/// Statistics on the host, where those of ranks are merged in float64.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moments {
    pub count: f64,
    pub mean: Vec<f64>,
    pub squares: Vec<f64>,
}

impl Moments {
    /// Copies statistics to the host.
    pub(super) fn read(statistics: &Statistics) -> Self {
        Self {
            count: statistics.count as f64,
            mean: to_host(statistics.mean.clone()),
            squares: to_host(statistics.squares.clone()),
        }
    }

    /// Adds those of other values.
    ///
    /// Chan, Golub and LeVeque, *Updating Formulae and a Pairwise Algorithm for Computing Sample Variances*, 1979, equations 2.1:
    ///
    /// ```text
    /// δ = mean_b − mean_a,  n = n_a + n_b
    /// mean = mean_a + δ · n_b / n
    /// squares = squares_a + squares_b + δ² · n_a · n_b / n
    /// ```
    pub(super) fn merge(&mut self, other: &Self) {
        let count = self.count + other.count;
        let (share, cross) = (other.count / count, self.count * other.count / count);
        let means = self.mean.iter_mut().zip(&other.mean);
        let squares = self.squares.iter_mut().zip(&other.squares);
        for ((mean, other_mean), (square, other_square)) in means.zip(squares) {
            let distance = other_mean - *mean;
            *mean += distance * share;
            *square += other_square + distance * distance * cross;
        }
        self.count = count;
    }

    /// The statistics on the device and in the dtype of others.
    pub(super) fn write_like(self, like: &Statistics) -> Statistics {
        Statistics {
            count: self.count as u64,
            mean: to_device_of(self.mean, &like.mean),
            squares: to_device_of(self.squares, &like.squares),
        }
    }
}

/// The values of a tensor on the host.
pub(super) fn to_host(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// Values from the host on the device and in the dtype of a tensor.
pub(super) fn to_device_of(values: Vec<f64>, like: &Tensor<1>) -> Tensor<1> {
    let (count, dtype): (usize, DType) = (values.len(), like.dtype());
    let data = TensorData::new(values, [count]).convert_dtype(dtype);
    Tensor::from_data(data, (&like.device(), dtype))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moments(values: &[f64]) -> Moments {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
        Moments {
            count,
            mean: vec![mean],
            squares: vec![squares],
        }
    }

    proptest! {
        #[test]
        fn merged_statistics_are_those_of_all_values(
            parts in prop::collection::vec(prop::collection::vec(-10.0..10.0f64, 1..20), 1..6),
            offset in -1e6..1e6f64,
        ) {
            let parts: Vec<Vec<f64>> = parts.into_iter().map(|part| part.iter().map(|v| v + offset).collect()).collect();
            let mut merged = moments(&parts[0]);
            for part in &parts[1..] {
                merged.merge(&moments(part));
            }
            let all = moments(&parts.concat());
            prop_assert_eq!(merged.count, all.count);
            prop_assert!((merged.mean[0] - all.mean[0]).abs() <= 1e-9, "{merged:?} {all:?}");
            prop_assert!((merged.squares[0] - all.squares[0]).abs() <= 1e-6 * (1.0 + all.squares[0]), "{merged:?} {all:?}");
        }
    }
}
