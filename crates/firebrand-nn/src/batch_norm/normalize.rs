//! The differentiable operation: normalising with statistics of the input itself, and of other ranks' inputs.
// Burn means to give LibTorch up; here it is one backend of several.
#![cfg_attr(feature = "libtorch", allow(deprecated))]

#[cfg(any(feature = "cuda", feature = "webgpu"))]
use burn::backend::Cube;
#[cfg(feature = "libtorch")]
use burn::backend::LibTorch;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, Scalar, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Tensor};

use super::ranks::Exchange;
use super::statistics::Statistics;

/// `(x − mean) / √(variance + epsilon) · gamma + beta`, in the dtype of `x`.
///
/// With `x̂ = (x − mean) / √(variance + epsilon)`, the gradient `g` of the output and `n` values per channel, of all ranks if
/// there is an exchange (Ioffe and Szegedy, 2015, section 3, with the sums drawn together):
///
/// ```text
/// d beta  = Σ g
/// d gamma = Σ g x̂
/// d x     = gamma / √(variance + epsilon) · (g − Σ g / n − x̂ · Σ g x̂ / n)
/// ```
///
/// The sums in `d x` are those of all ranks; `d gamma` and `d beta` are this rank's, since the reducer adds them up.
pub(super) fn normalize<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    batch: &Statistics,
    epsilon: f64,
    exchange: Option<Exchange>,
) -> Tensor<D> {
    let inverse_deviation = batch.variance().add_scalar(epsilon).sqrt().recip();
    Tensor::from_dispatch(<Dispatch as Normalize>::normalize(
        input.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        batch.mean.clone().into_dispatch(),
        inverse_deviation.into_dispatch(),
        Batch {
            count: batch.count as f64,
            exchange,
        },
    ))
}

/// What the backward pass needs to know of the batch.
#[derive(Clone, Debug)]
struct Batch {
    count: f64,
    exchange: Option<Exchange>,
}

#[backend_extension(
    Flex,
    LibTorch: cfg(feature = "libtorch"),
    Cube: cfg(any(feature = "cuda", feature = "webgpu")),
    Autodiff
)]
trait Normalize: Backend {
    fn normalize(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        inverse_deviation: FloatTensor<Self>,
        batch: Batch,
    ) -> FloatTensor<Self>;
}

/// Sums over the ranks, which go through the host; `Autodiff<B>` is generic over `B` and cannot do it itself.
trait SumOverRanks: Backend {
    fn sum_over_ranks(sums: FloatTensor<Self>, exchange: &Exchange) -> Option<FloatTensor<Self>>;
}

macro_rules! plain_backend {
    ($backend:ty) => {
        impl Normalize for $backend {
            fn normalize(
                x: FloatTensor<Self>,
                gamma: FloatTensor<Self>,
                beta: FloatTensor<Self>,
                mean: FloatTensor<Self>,
                inverse_deviation: FloatTensor<Self>,
                _: Batch,
            ) -> FloatTensor<Self> {
                forward::<Self>(x, gamma, beta, mean, inverse_deviation)
            }
        }

        impl SumOverRanks for $backend {
            fn sum_over_ranks(sums: FloatTensor<Self>, exchange: &Exchange) -> Option<FloatTensor<Self>> {
                let sums = exchange.sum(&Tensor::<1>::from_primitive::<Self>(sums))?;
                sums.try_into_primitive::<Self>().ok()
            }
        }
    };
}

plain_backend!(Flex);
#[cfg(feature = "libtorch")]
plain_backend!(LibTorch);
#[cfg(any(feature = "cuda", feature = "webgpu"))]
plain_backend!(Cube);

impl<B: Normalize + SumOverRanks, C: CheckpointStrategy> Normalize for Autodiff<B, C> {
    fn normalize(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        inverse_deviation: FloatTensor<Self>,
        batch: Batch,
    ) -> FloatTensor<Self> {
        let (mean, inverse_deviation) = (mean.into_primitive(), inverse_deviation.into_primitive());
        let nodes = [x.node(), gamma.node(), beta.node()];
        match Normalized.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prepared) => {
                let state = State {
                    x: prepared.checkpoint(&x),
                    gamma: prepared.checkpoint(&gamma),
                    beta: beta.dtype().into(),
                    mean: mean.clone(),
                    inverse_deviation: inverse_deviation.clone(),
                    batch,
                };
                let (x, gamma, beta) = (x.into_primitive(), gamma.into_primitive(), beta.into_primitive());
                prepared.finish(state, forward::<B>(x, gamma, beta, mean, inverse_deviation))
            }
            OpsKind::UnTracked(prepared) => {
                let (x, gamma, beta) = (x.into_primitive(), gamma.into_primitive(), beta.into_primitive());
                prepared.finish(forward::<B>(x, gamma, beta, mean, inverse_deviation))
            }
        }
    }
}

/// The backward step.
#[derive(Debug)]
struct Normalized;

#[derive(Clone, Debug)]
struct State<T> {
    x: NodeId,
    gamma: NodeId,
    beta: FloatDType,
    mean: T,
    inverse_deviation: T,
    batch: Batch,
}

impl<B: SumOverRanks> Backward<B, 3> for Normalized {
    type State = State<FloatTensor<B>>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [of_x, of_gamma, of_beta] = ops.parents;
        let state = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(state.x);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(state.gamma);

        let wide: FloatDType = state.mean.dtype().into();
        let (x_dtype, gamma_dtype) = (x.dtype().into(), gamma.dtype().into());
        let channels = x.shape()[1];
        let each = per_channel(&x.shape());
        let gradient = B::float_cast(gradient, wide);
        let normalized = standardize::<B>(x, state.mean, state.inverse_deviation.clone());
        let sum = sum_per_channel::<B>(gradient.clone());
        let projected = sum_per_channel::<B>(B::float_mul(gradient.clone(), normalized.clone()));

        if let Some(node) = of_x {
            let own = B::float_cat(vec![sum.clone(), projected.clone()], 0);
            let sums = match &state.batch.exchange {
                // Gradients that lack a rank's part must not be taken for whole ones.
                Some(exchange) => B::sum_over_ranks(own.clone(), exchange)
                    .unwrap_or_else(|| B::float_mul_scalar(own, Scalar::Float(f64::NAN))),
                None => own,
            };
            let means = B::float_mul_scalar(sums, Scalar::Float(1.0 / state.batch.count));
            let mean_of = |position: usize| {
                let range = position * channels..(position + 1) * channels;
                B::float_reshape(B::float_slice(means.clone(), &[range.into()]), each.clone())
            };
            let scale = B::float_mul(B::float_cast(gamma, wide), state.inverse_deviation);
            let along = B::float_mul(normalized, mean_of(1));
            let centred = B::float_sub(B::float_sub(gradient, mean_of(0)), along);
            let of_input = B::float_mul(centred, B::float_reshape(scale, each.clone()));
            grads.register::<B>(node.id, B::float_cast(of_input, x_dtype));
        }
        if let Some(node) = of_gamma {
            grads.register::<B>(node.id, B::float_cast(projected, gamma_dtype));
        }
        if let Some(node) = of_beta {
            grads.register::<B>(node.id, B::float_cast(sum, state.beta));
        }
    }
}

fn forward<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    mean: FloatTensor<B>,
    inverse_deviation: FloatTensor<B>,
) -> FloatTensor<B> {
    let wide: FloatDType = mean.dtype().into();
    let (dtype, each) = (x.dtype().into(), per_channel(&x.shape()));
    let gamma = B::float_reshape(B::float_cast(gamma, wide), each.clone());
    let beta = B::float_reshape(B::float_cast(beta, wide), each);
    let normalized = standardize::<B>(x, mean, inverse_deviation);
    B::float_cast(B::float_add(B::float_mul(normalized, gamma), beta), dtype)
}

/// `(x − mean) / deviation`, in the dtype of the statistics.
fn standardize<B: Backend>(
    x: FloatTensor<B>,
    mean: FloatTensor<B>,
    inverse_deviation: FloatTensor<B>,
) -> FloatTensor<B> {
    let each = per_channel(&x.shape());
    let x = B::float_cast(x, mean.dtype().into());
    let distances = B::float_sub(x, B::float_reshape(mean, each.clone()));
    B::float_mul(distances, B::float_reshape(inverse_deviation, each))
}

/// The shape in which a tensor of channels meets one of this shape.
fn per_channel(shape: &Shape) -> Shape {
    let mut each = vec![1; shape.num_dims()];
    each[1] = shape[1];
    Shape::from(each)
}

/// Sums over every axis but the second, those within a sample first.
fn sum_per_channel<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let shape = values.shape();
    let (batch, channels) = (shape[0], shape[1]);
    let points = shape.num_elements() / (batch * channels);
    let values = B::float_reshape(values, Shape::new([batch, channels, points]));
    let of_samples = B::float_reshape(B::float_sum_dim(values, 2), Shape::new([batch, channels]));
    let sums = B::float_sum_dim(B::float_swap_dims(of_samples, 0, 1), 1);
    B::float_reshape(sums, Shape::new([channels]))
}
