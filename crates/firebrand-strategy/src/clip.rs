use burn::tensor::{DType, Device, FloatDType, Tensor};
use bytemuck::try_cast_slice;
use firebrand_core::AnyTensor;
use half::{bf16, f16};

use crate::Gradient;
use crate::host::with_elements;

/// How gradients are kept from exploding.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum GradientClip {
    /// Scale all gradients of an update so that their common Euclidean norm is at most this, as PyTorch's
    /// `clip_grad_norm_`: by `max_norm / (norm + 1e-6)` if that is below one.
    Norm(f64),
    /// Clamp every element to `-value..=value`.
    Value(f64),
}

impl GradientClip {
    /// Whether the limit can be kept to.
    pub(crate) fn is_valid(self) -> bool {
        match self {
            Self::Norm(limit) | Self::Value(limit) => limit > 0.0,
        }
    }
}

/// What one pass over the gradients of an update finds.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The Euclidean norm over all of them.
    pub norm: f64,
    /// The first gradient, by position, that holds a value that is not finite.
    pub non_finite: Option<usize>,
}

/// Surveys gradients in one pass and with one synchronisation. The sums are taken in fixed chunks, in fixed order, in float64.
///
/// On the CPU backend the gradients are read where they lie.
pub(crate) fn survey(gradients: &[Gradient]) -> Survey {
    let on_host = gradients
        .first()
        .is_some_and(|gradient| gradient.value.device() == Device::flex());
    let squares = if on_host {
        gradients
            .iter()
            .map(|gradient| with_elements(&gradient.value, sum_of_squares))
            .collect()
    } else {
        device_squares(gradients)
    };
    Survey {
        norm: squares.iter().sum::<f64>().sqrt(),
        non_finite: squares.iter().position(|square| !square.is_finite()),
    }
}

/// Whether every element of a gradient is finite.
pub(crate) fn is_finite(gradient: &AnyTensor) -> bool {
    with_elements(gradient, sum_of_squares).is_finite()
}

/// Maps gradients by their only handles, so that operations may work in place.
fn map_values(gradients: &mut Vec<Gradient>, mut function: impl FnMut(AnyTensor) -> Option<AnyTensor>) {
    let mapped = std::mem::take(gradients).into_iter().filter_map(|gradient| {
        let value = function(gradient.value)?;
        Some(Gradient { value, ..gradient })
    });
    *gradients = mapped.collect();
}

/// The sum of the squares of float elements, infinite or not-a-number if one is, or if they are no floats.
fn sum_of_squares(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F32 => try_cast_slice(bytes).map_or(f64::NAN, |values: &[f32]| chunked(values, |value| value)),
        DType::F16 => try_cast_slice(bytes).map_or(f64::NAN, |values: &[f16]| chunked(values, f16::to_f32)),
        DType::BF16 => {
            try_cast_slice(bytes).map_or(f64::NAN, |values: &[bf16]| chunked(values, bf16::to_f32))
        }
        DType::F64 => try_cast_slice(bytes).map_or(f64::NAN, |values: &[f64]| {
            values.iter().map(|value| value * value).sum()
        }),
        _ => f64::NAN,
    }
}

/// Squares in float32 are added in lanes over a short chunk, chunks in float64: fast, and the same on every run.
fn chunked<T: Copy>(values: &[T], read: impl Fn(T) -> f32 + Copy) -> f64 {
    const LANES: usize = 16;
    const CHUNK: usize = 16 * LANES;
    let mut total = 0.0;
    let mut chunks = values.chunks_exact(CHUNK);
    for chunk in &mut chunks {
        let mut lanes = [0.0f32; LANES];
        for row in chunk.chunks_exact(LANES) {
            for (lane, value) in lanes.iter_mut().zip(row) {
                let value = read(*value);
                *lane += value * value;
            }
        }
        let sum: f64 = lanes.iter().map(|lane| f64::from(*lane)).sum();
        total += if sum.is_finite() { sum } else { exact(chunk, read) };
    }
    total + exact(chunks.remainder(), read)
}

/// Squares in float64, for values whose squares leave the range of float32.
fn exact<T: Copy>(values: &[T], read: impl Fn(T) -> f32) -> f64 {
    let wide = values.iter().map(|value| f64::from(read(*value)));
    wide.map(|value| value * value).sum()
}

/// The sum of squares of each gradient, on its device, with one read for all.
fn device_squares(gradients: &[Gradient]) -> Vec<f64> {
    let sums: Vec<Tensor<1>> = gradients
        .iter()
        .filter_map(|gradient| gradient.value.clone().flat())
        .map(|flat| {
            // A sum of 16-bit squares leaves their range, or stops growing.
            let wide = match flat.dtype() {
                DType::F16 | DType::BF16 => flat.cast(FloatDType::F32),
                _ => flat,
            };
            (wide.clone() * wide).sum()
        })
        .collect();
    if sums.is_empty() {
        return Vec::new();
    }
    let squares = Tensor::cat(sums, 0).into_data();
    // A sum that has left the range of float32 says nothing yet of the values.
    let checked = squares.iter::<f64>().zip(gradients).map(|(square, gradient)| {
        if square.is_finite() {
            square
        } else {
            with_elements(&gradient.value, sum_of_squares)
        }
    });
    checked.collect()
}

/// Scales and clips the gradients of an update whose norm before scaling is known.
pub(crate) fn scale_and_clip(
    gradients: &mut Vec<Gradient>,
    scale: f64,
    norm: f64,
    clip: Option<GradientClip>,
) {
    let factor = match clip {
        Some(GradientClip::Norm(limit)) => scale * (limit / (norm * scale + 1e-6)).min(1.0),
        _ => scale,
    };
    if factor != 1.0 {
        map_values(gradients, |value| Some(value.mul_scalar(factor)));
    }
    if let Some(GradientClip::Value(limit)) = clip {
        map_values(gradients, |value| {
            Some(value.map_float(|flat| flat.clamp(-limit, limit)))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(values: &[f32]) -> Gradient {
        Gradient {
            parameter: 0,
            value: Tensor::<1>::from_floats(values, &Device::flex()).into(),
        }
    }

    fn values(gradient: &Gradient) -> Vec<f32> {
        gradient.value.clone().into_data().iter::<f32>().collect()
    }

    #[test]
    fn norm_is_over_all_gradients() {
        let mut gradients = vec![gradient(&[3.0, 0.0]), gradient(&[0.0, 4.0])];
        let found = survey(&gradients);
        assert_eq!(found.norm, 5.0);
        assert_eq!(found.non_finite, None);
        scale_and_clip(&mut gradients, 1.0, found.norm, Some(GradientClip::Norm(1.0)));
        assert!((survey(&gradients).norm - 1.0).abs() < 1e-6);
    }

    #[test]
    fn norm_below_the_limit_changes_nothing() {
        let mut gradients = vec![gradient(&[3.0, 4.0])];
        let norm = survey(&gradients).norm;
        scale_and_clip(&mut gradients, 1.0, norm, Some(GradientClip::Norm(5.1)));
        assert_eq!(values(&gradients[0]), [3.0, 4.0]);
    }

    #[test]
    fn clips_after_scaling() {
        let mut gradients = vec![gradient(&[8.0, -0.5])];
        scale_and_clip(&mut gradients, 0.5, 8.0, Some(GradientClip::Value(1.0)));
        assert_eq!(values(&gradients[0]), [1.0, -0.25]);
    }

    #[test]
    fn long_gradients_are_summed_exactly_enough_and_infinities_found() {
        let long: Vec<f32> = (0..10_001).map(|i| (i % 7) as f32).collect();
        let expected: f64 = long.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let gradients = vec![
            gradient(&long),
            gradient(&[1e30; 300]),
            gradient(&[1.0, f32::INFINITY]),
        ];
        let found = survey(&gradients[..1]);
        assert!((found.norm - expected.sqrt()).abs() < 1e-9 * found.norm);
        assert!((survey(&gradients[1..2]).norm / (1e30 * 300f64.sqrt()) - 1.0).abs() < 1e-6);
        assert_eq!(survey(&gradients).non_finite, Some(2));
        let nan = vec![gradient(&[0.0, f32::NAN])];
        assert_eq!(survey(&nan).non_finite, Some(0));
    }

    #[test]
    fn a_device_finds_what_the_host_finds() {
        let half = |values: &[f32]| Gradient {
            value: gradient(values).value.cast(FloatDType::F16),
            ..gradient(values)
        };
        let gradients = [
            gradient(&[3.0, 4.0]),
            gradient(&[1e30; 300]),
            half(&[300.0; 1000]),
            gradient(&[1.0, f32::INFINITY]),
            half(&[1.0, f32::NAN]),
        ];
        let found = device_squares(&gradients);
        for (gradient, found) in gradients.iter().zip(found) {
            let expected = with_elements(&gradient.value, sum_of_squares);
            if expected.is_finite() {
                assert!(
                    (found / expected - 1.0).abs() < 1e-5,
                    "{found} and not {expected}"
                );
            } else {
                assert!(!found.is_finite());
            }
        }
    }
}
