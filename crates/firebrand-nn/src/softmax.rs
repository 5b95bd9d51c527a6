//! The differentiable softmax of 16-bit scores, in float32 inside.
// Burn means to give LibTorch up; here it is one backend of several.
#![cfg_attr(feature = "libtorch", allow(deprecated))]

#[cfg(any(feature = "cuda", feature = "webgpu"))]
use burn::backend::Cube;
#[cfg(feature = "libtorch")]
use burn::backend::LibTorch;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::wide;

/// The softmax over the last axis, computed in float32 (float64 for float64) and rounded once to the dtype of the scores.
///
/// The backward pass needs nothing but the result `w`, which is kept in its own dtype:
///
/// ```text
/// d scores = w · (d w − Σ d w · w)
/// ```
pub(crate) fn softmax<const D: usize>(scores: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as WideSoftmax>::wide_softmax(scores.into_dispatch()))
}

#[backend_extension(
    Flex,
    LibTorch: cfg(feature = "libtorch"),
    Cube: cfg(any(feature = "cuda", feature = "webgpu")),
    Autodiff
)]
trait WideSoftmax: Backend {
    fn wide_softmax(scores: FloatTensor<Self>) -> FloatTensor<Self>;
}

macro_rules! plain_backend {
    ($backend:ty) => {
        impl WideSoftmax for $backend {
            fn wide_softmax(scores: FloatTensor<Self>) -> FloatTensor<Self> {
                forward::<Self>(scores)
            }
        }
    };
}

plain_backend!(Flex);
#[cfg(feature = "libtorch")]
plain_backend!(LibTorch);
#[cfg(any(feature = "cuda", feature = "webgpu"))]
plain_backend!(Cube);

impl<B: WideSoftmax, C: CheckpointStrategy> WideSoftmax for Autodiff<B, C> {
    fn wide_softmax(scores: FloatTensor<Self>) -> FloatTensor<Self> {
        let node = scores.node();
        let weights = forward::<B>(scores.into_primitive());
        match Softmax.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(weights.clone(), weights),
            OpsKind::UnTracked(prepared) => prepared.finish(weights),
        }
    }
}

/// The backward step.
#[derive(Debug)]
struct Softmax;

impl<B: Backend> Backward<B, 1> for Softmax {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let weights = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let [Some(scores)] = ops.parents else { return };
        let dtype = weights.dtype();
        let last = weights.shape().num_dims() - 1;
        let (weights, gradient) = (widened::<B>(weights), widened::<B>(gradient));
        let sum = B::float_sum_dim(B::float_mul(gradient.clone(), weights.clone()), last);
        let of_scores = B::float_mul(B::float_sub(gradient, sum), weights);
        grads.register::<B>(scores.id, in_dtype::<B>(of_scores, dtype.into()));
    }
}

fn forward<B: Backend>(scores: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = scores.dtype();
    let last = scores.shape().num_dims() - 1;
    in_dtype::<B>(B::softmax(widened::<B>(scores), last), dtype.into())
}

fn widened<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = wide(tensor.dtype());
    in_dtype::<B>(tensor, dtype)
}

fn in_dtype<B: Backend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    B::float_cast(tensor, dtype)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use burn::tensor::{Device, TensorData, activation};

    use super::*;

    fn scores(dtype: DType) -> Tensor<3> {
        let values: Vec<f64> = (0..2 * 3 * 5)
            .map(|i| f64::from(i * 37 % 23) / 4.0 - 3.0)
            .collect();
        let device = Device::flex().autodiff();
        Tensor::from_data(TensorData::new(values, [2, 3, 5]), (&device, dtype)).require_grad()
    }

    /// The weights, and the gradient of a sum that looks at each of them differently.
    fn weights_and_gradient(dtype: DType, softmax: impl Fn(Tensor<3>) -> Tensor<3>) -> (Vec<f64>, Vec<f64>) {
        let scores = scores(dtype);
        let weights = softmax(scores.clone());
        assert_eq!(weights.dtype(), dtype);
        let factors: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 11) - 5.0).collect();
        let factors = Tensor::<3>::from_data(TensorData::new(factors, [2, 3, 5]), (&scores.device(), dtype));
        let gradients = (weights.clone() * factors).sum().backward();
        let gradient = scores.grad(&gradients).unwrap();
        let numbers = |data: TensorData| data.iter::<f64>().collect();
        (numbers(weights.into_data()), numbers(gradient.into_data()))
    }

    fn assert_close(expected: &[f64], found: &[f64], tolerance: f64) {
        for (expected, found) in expected.iter().zip(found) {
            assert!(
                (expected - found).abs() <= tolerance,
                "{found} and not {expected}"
            );
        }
    }

    #[test]
    fn is_burns_softmax_with_its_gradient() {
        let exact = weights_and_gradient(DType::F64, |scores| activation::softmax(scores, 2));
        for (dtype, tolerance) in [
            (DType::F64, 1e-14),
            (DType::F32, 1e-6),
            (DType::F16, 4e-3),
            (DType::BF16, 3e-2),
        ] {
            let found = weights_and_gradient(dtype, softmax);
            assert_close(&exact.0, &found.0, tolerance);
            assert_close(&exact.1, &found.1, tolerance);
        }
    }

    #[test]
    fn a_sum_of_many_is_not_lost_in_sixteen_bits() {
        let device = Device::flex();
        // In bfloat16 a sum of ones stays at 256.
        let weights = softmax(Tensor::<2>::zeros([1, 4096], (&device, DType::BF16)));
        assert_eq!(weights.into_data().iter::<f64>().next(), Some(1.0 / 4096.0));
    }
}
