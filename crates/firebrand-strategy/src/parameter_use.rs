// Burn means to give LibTorch up; here it is one backend of several.
#![cfg_attr(feature = "libtorch", allow(deprecated))]

use std::fmt;
use std::sync::Arc;

#[cfg(any(feature = "cuda", feature = "webgpu"))]
use burn::backend::Cube;
#[cfg(feature = "libtorch")]
use burn::backend::LibTorch;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, FloatDType, Tensor, kind::BridgeTensor};
use firebrand_core::AnyTensor;

use crate::GradientSink;

/// Puts a parameter to use in one forward pass: its value in the compute dtype, whose gradient goes to a sink.
///
/// In the backward pass the complete gradient is cast back to the parameter's dtype and handed to the sink: once, also when
/// the value is used several times. Nothing flows further back, so the parameter itself collects no gradient. A value without
/// autodiff is only cast.
///
/// Without a `turn` the gradients of all parameters arrive together, at the end of the backward pass; see [`Turns`].
pub fn parameter_use(
    value: AnyTensor,
    turn: Option<&AnyTensor>,
    compute: FloatDType,
    parameter: usize,
    sink: Arc<dyn GradientSink>,
) -> AnyTensor {
    let (value, sink) = (value.into_bridge().into(), SinkHandle(sink));
    let used = match turn {
        Some(turn) => {
            let turn = turn.clone().into_bridge().into();
            <Dispatch as ParameterUse>::parameter_use_in_turn(value, turn, compute, parameter, sink)
        }
        None => <Dispatch as ParameterUse>::parameter_use(value, compute, parameter, sink),
    };
    AnyTensor::from_bridge(BridgeTensor::float(used))
}

/// Places in the order of a backward pass, so that gradients arrive during it: those of late layers first.
///
/// Burn runs a backward pass by depth, the length of the longest chain of operations before one. A parameter is a leaf, so that
/// its use has depth one whatever layer it belongs to, and runs at the very end. A use that also depends on a constant of
/// depth `d` runs when everything deeper is done. The constants are made once; depths grow with the position of the parameter
/// in the module, by more than the number of operations that a layer has for each of its parameters. If a module uses its
/// parameters in another order, gradients come later, and are as right.
///
/// The price is the order of sums: where a value is used three times or more, as before the projections of an attention, its
/// gradients are added in another order than in a plain Burn loop, though in the same one every time.
pub struct Turns(Vec<AnyTensor>);

impl Turns {
    /// The depth between two parameters.
    const STRIDE: usize = 8;

    /// One turn for each of `count` parameters, on an autodiff device.
    pub fn new(count: usize, device: &Device) -> Self {
        let mut deep = Tensor::<1>::zeros([1], device);
        let turns = (0..count).map(|_| {
            for _ in 0..Self::STRIDE {
                deep = -deep.clone();
            }
            AnyTensor::from(deep.clone())
        });
        Self(turns.collect())
    }

    /// The turn of a parameter by its position.
    pub fn get(&self, parameter: usize) -> Option<&AnyTensor> {
        self.0.get(parameter)
    }
}

/// A sink that an autodiff state may carry.
#[derive(Clone)]
struct SinkHandle(Arc<dyn GradientSink>);

impl fmt::Debug for SinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GradientSink")
    }
}

#[backend_extension(
    Flex,
    LibTorch: cfg(feature = "libtorch"),
    Cube: cfg(any(feature = "cuda", feature = "webgpu")),
    Autodiff
)]
trait ParameterUse: Backend {
    fn parameter_use(
        value: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self>;

    fn parameter_use_in_turn(
        value: FloatTensor<Self>,
        turn: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self>;
}

/// Wraps a backend's own tensor as a rank-free one; `Autodiff<B>` is generic over `B` and cannot do it itself.
trait Deliver: Backend {
    fn deliver(sink: &SinkHandle, parameter: usize, gradient: FloatTensor<Self>);
}

/// The value in a dtype. Where it has that already, a backend that records operations would copy it.
fn cast<B: Backend>(value: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if value.dtype() == DType::from(dtype) {
        return value;
    }
    B::float_cast(value, dtype)
}

macro_rules! plain_backend {
    ($backend:ty) => {
        impl ParameterUse for $backend {
            fn parameter_use(
                value: FloatTensor<Self>,
                compute: FloatDType,
                _parameter: usize,
                _sink: SinkHandle,
            ) -> FloatTensor<Self> {
                cast::<Self>(value, compute)
            }

            fn parameter_use_in_turn(
                value: FloatTensor<Self>,
                _turn: FloatTensor<Self>,
                compute: FloatDType,
                _parameter: usize,
                _sink: SinkHandle,
            ) -> FloatTensor<Self> {
                cast::<Self>(value, compute)
            }
        }

        impl Deliver for $backend {
            fn deliver(sink: &SinkHandle, parameter: usize, gradient: FloatTensor<Self>) {
                // The rank in the type is a placeholder: the bridge tensor carries the real one.
                let gradient = Tensor::<1>::from_primitive::<Self>(gradient).into_bridge();
                sink.0.push(parameter, AnyTensor::from_bridge(gradient));
            }
        }
    };
}

plain_backend!(Flex);
#[cfg(feature = "libtorch")]
plain_backend!(LibTorch);
#[cfg(any(feature = "cuda", feature = "webgpu"))]
plain_backend!(Cube);

/// The backward step: the gradient ends here.
#[derive(Debug)]
struct Use;

impl<B: Deliver, const N: usize> Backward<B, N> for Use {
    type State = (FloatDType, usize, SinkHandle);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (master, parameter, sink) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        B::deliver(&sink, parameter, cast::<B>(gradient, master));
    }
}

/// Records a use that depends on the value and, perhaps, on a turn.
fn record<B: Deliver, C: CheckpointStrategy, const N: usize>(
    value: FloatTensor<Autodiff<B, C>>,
    nodes: [NodeGuard; N],
    compute: FloatDType,
    parameter: usize,
    sink: SinkHandle,
) -> FloatTensor<Autodiff<B, C>> {
    let master: FloatDType = value.dtype().into();
    let output = cast::<B>(value.into_primitive(), compute);
    match Use.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish((master, parameter, sink), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}

impl<B: ParameterUse + Deliver, C: CheckpointStrategy> ParameterUse for Autodiff<B, C> {
    fn parameter_use(
        value: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self> {
        let nodes = [value.node()];
        record::<B, C, 1>(value, nodes, compute, parameter, sink)
    }

    fn parameter_use_in_turn(
        value: FloatTensor<Self>,
        turn: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self> {
        let nodes = [value.node(), turn.node()];
        record::<B, C, 2>(value, nodes, compute, parameter, sink)
    }
}
