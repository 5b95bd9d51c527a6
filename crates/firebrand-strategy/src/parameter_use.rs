use std::fmt;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Tensor, kind::BridgeTensor};
use firebrand_core::AnyTensor;

use crate::GradientSink;

/// Puts a parameter to use in one forward pass: its value in the compute dtype, whose gradient goes to a sink.
///
/// In the backward pass the gradient is cast back to the parameter's dtype and handed to the sink: once, as soon as it is
/// complete, also when the value is used several times. Nothing flows further back, so the parameter itself collects no
/// gradient. A value without autodiff is only cast.
pub fn parameter_use(
    value: AnyTensor,
    compute: FloatDType,
    parameter: usize,
    sink: Arc<dyn GradientSink>,
) -> AnyTensor {
    let used = <Dispatch as ParameterUse>::parameter_use(
        value.into_bridge().into(),
        compute,
        parameter,
        SinkHandle(sink),
    );
    AnyTensor::from_bridge(BridgeTensor::float(used))
}

/// A sink that an autodiff state may carry.
#[derive(Clone)]
struct SinkHandle(Arc<dyn GradientSink>);

impl fmt::Debug for SinkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GradientSink")
    }
}

#[backend_extension(Flex, Autodiff)]
trait ParameterUse: Backend {
    fn parameter_use(
        value: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self>;
}

/// Wraps a backend's own tensor as a rank-free one; `Autodiff<B>` is generic over `B` and cannot do it itself.
trait Deliver: Backend {
    fn deliver(sink: &SinkHandle, parameter: usize, gradient: FloatTensor<Self>);
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
                <Self as FloatTensorOps<Self>>::float_cast(value, compute)
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

impl<B: ParameterUse + Deliver, C: CheckpointStrategy> ParameterUse for Autodiff<B, C> {
    fn parameter_use(
        value: FloatTensor<Self>,
        compute: FloatDType,
        parameter: usize,
        sink: SinkHandle,
    ) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Use;

        impl<B: Deliver> Backward<B, 1> for Use {
            type State = (FloatDType, usize, SinkHandle);

            fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
                let (master, parameter, sink) = ops.state;
                let gradient = grads.consume::<B>(&ops.node);
                B::deliver(&sink, parameter, B::float_cast(gradient, master));
            }
        }

        let master: FloatDType = value.dtype().into();
        let node = value.node();
        let cast = |value: FloatTensor<Self>| B::float_cast(value.into_primitive(), compute);
        match Use.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((master, parameter, sink), cast(value)),
            OpsKind::UnTracked(prepared) => prepared.finish(cast(value)),
        }
    }
}
