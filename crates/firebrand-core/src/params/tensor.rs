use burn::tensor::kind::{Basic, BridgeTensor, Kind};
use burn::tensor::{
    AllocationProperty, Bool, DType, Device, Float, FloatDType, Int, Shape, Tensor, TensorData,
};

/// A tensor without its rank in the type: what crosses the boundary between a user's module and the trainer.
///
/// It is a handle like [`Tensor`]; cloning it copies no data.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrand_core::AnyTensor;
///
/// let device = Device::flex();
/// let any = AnyTensor::from(Tensor::<2>::ones([2, 3], &device));
/// assert_eq!(any.shape().to_vec(), [2, 3]);
/// let back: Tensor<2> = any.float().unwrap();
/// assert_eq!(back.dims(), [2, 3]);
/// ```
#[derive(Clone, Debug)]
pub struct AnyTensor(BridgeTensor);

impl<const D: usize, K: Basic> From<Tensor<D, K>> for AnyTensor {
    fn from(tensor: Tensor<D, K>) -> Self {
        Self(tensor.into_bridge())
    }
}

/// Runs a body with a runtime rank as a constant.
macro_rules! with_rank {
    ($rank:expr, $d:ident => $body:expr, else $otherwise:expr) => {
        match $rank {
            1 => {
                const $d: usize = 1;
                $body
            }
            2 => {
                const $d: usize = 2;
                $body
            }
            3 => {
                const $d: usize = 3;
                $body
            }
            4 => {
                const $d: usize = 4;
                $body
            }
            5 => {
                const $d: usize = 5;
                $body
            }
            6 => {
                const $d: usize = 6;
                $body
            }
            7 => {
                const $d: usize = 7;
                $body
            }
            8 => {
                const $d: usize = 8;
                $body
            }
            _ => $otherwise,
        }
    };
}

pub(crate) use with_rank;

/// Runs a body with the tensor in its own rank and kind.
macro_rules! with_kind {
    ($bridge:expr, $tensor:ident => $body:expr) => {{
        let bridge = $bridge;
        let rank = bridge.rank();
        with_rank!(
            rank,
            D => if bridge.is_int() {
                let $tensor = Tensor::<D, Int>::from_bridge(bridge);
                $body
            } else if bridge.is_bool() {
                let $tensor = Tensor::<D, Bool>::from_bridge(bridge);
                $body
            } else {
                let $tensor = Tensor::<D>::from_bridge(bridge);
                $body
            },
            // Burn has no module parameter of rank zero, and none above eight.
            else unreachable!("a tensor of rank {rank} cannot be a parameter")
        )
    }};
}

impl AnyTensor {
    /// The highest rank that is carried.
    pub const MAX_RANK: usize = 8;

    /// Wraps Burn's own rank-free tensor.
    pub fn from_bridge(tensor: BridgeTensor) -> Self {
        Self(tensor)
    }

    /// Burn's own rank-free tensor.
    pub fn into_bridge(self) -> BridgeTensor {
        self.0
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        self.0.shape().num_elements()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Whether the elements are floating-point numbers that are not quantised.
    pub fn is_float(&self) -> bool {
        self.0.is_float()
    }

    /// The tensor with its rank again, or `None` if the rank or the kind is another.
    pub fn typed<const D: usize, K: Basic>(self) -> Option<Tensor<D, K>> {
        let kind = match K::KIND {
            Kind::Float => self.0.is_float() || self.0.is_qfloat(),
            Kind::Int => self.0.is_int(),
            Kind::Bool => self.0.is_bool(),
        };
        (kind && self.rank() == D).then(|| Tensor::from_bridge(self.0))
    }

    /// The float tensor with its rank again, or `None` if it is another.
    pub fn float<const D: usize>(self) -> Option<Tensor<D>> {
        self.typed::<D, Float>()
    }

    /// The float tensor in one dimension, or `None` if it holds no floats.
    pub fn flat(self) -> Option<Tensor<1>> {
        if !self.is_float() {
            return None;
        }
        let elements = self.num_elements();
        with_rank!(
            self.rank(),
            D => Some(Tensor::<D>::from_bridge(self.0).reshape([elements])),
            else None
        )
    }

    /// The same elements in `shape`, or `None` if it holds no floats or the number of elements differs.
    pub fn reshape(self, shape: &Shape) -> Option<Self> {
        if shape.num_elements() != self.num_elements() {
            return None;
        }
        let flat = self.flat()?;
        with_rank!(
            shape.num_dims(),
            D => Some(Self::from(flat.reshape::<D, _>(shape.clone()))),
            else None
        )
    }

    /// Applies a function of float tensors that does not depend on the rank; others are returned unchanged.
    pub fn map_float(self, function: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        let shape = self.shape();
        match self.clone().flat() {
            Some(flat) => Self::from(function(flat)).reshape(&shape).unwrap_or(self),
            None => self,
        }
    }

    /// The sum of two float tensors of one shape, keeping the shape.
    ///
    /// Ranks are not erased to one dimension here: an addition in place stays possible. Others are returned unchanged.
    #[allow(clippy::should_implement_trait)] // An operator would promise a sum of whatever it is given.
    pub fn add(self, other: Self) -> Self {
        if !self.is_float() || !other.is_float() {
            return self;
        }
        with_rank!(
            self.rank(),
            D => Self::from(Tensor::<D>::from_bridge(self.0).add(Tensor::<D>::from_bridge(other.0))),
            else self
        )
    }

    /// The tensors joined along their first axis; `None` if there are none, or if ranks, kinds or other axes differ.
    pub fn concat(parts: Vec<Self>) -> Option<Self> {
        let first = parts.first()?;
        let (rank, dtype, tail) = (first.rank(), first.dtype(), first.shape().to_vec());
        let alike = |part: &Self| {
            part.rank() == rank && part.dtype() == dtype && part.shape().to_vec().get(1..) == tail.get(1..)
        };
        if !parts.iter().all(alike) {
            return None;
        }
        with_rank!(
            rank,
            D => Some(if dtype.is_float() {
                Self::from(Tensor::cat(parts.into_iter().map(|part| Tensor::<D>::from_bridge(part.0)).collect(), 0))
            } else if dtype.is_bool() {
                Self::from(Tensor::cat(parts.into_iter().map(|part| Tensor::<D, Bool>::from_bridge(part.0)).collect(), 0))
            } else {
                Self::from(Tensor::cat(parts.into_iter().map(|part| Tensor::<D, Int>::from_bridge(part.0)).collect(), 0))
            }),
            else None
        )
    }

    /// The rows, along the first axis, with these indices and in their order.
    #[must_use]
    pub fn select_rows(self, rows: &[usize]) -> Self {
        let indices: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        with_kind!(self.0, tensor => {
            let indices = Tensor::<1, Int>::from_data(indices.as_slice(), &tensor.device());
            Self::from(tensor.select(0, indices))
        })
    }

    /// The tensor multiplied by a number; tensors that hold no floats are returned unchanged.
    pub fn mul_scalar(self, factor: f64) -> Self {
        if !self.is_float() {
            return self;
        }
        with_rank!(
            self.rank(),
            D => Self::from(Tensor::<D>::from_bridge(self.0).mul_scalar(factor)),
            else self
        )
    }

    /// The tensor cast to another float dtype; tensors that hold no floats are returned unchanged.
    pub fn cast(self, dtype: FloatDType) -> Self {
        if !self.is_float() || self.dtype() == DType::from(dtype) {
            return self;
        }
        with_rank!(
            self.rank(),
            D => Self::from(Tensor::<D>::from_bridge(self.0).cast(dtype)),
            else self
        )
    }

    /// The device.
    pub fn device(&self) -> Device {
        with_kind!(self.0.clone(), tensor => tensor.device())
    }

    /// The tensor without its autodiff association.
    pub fn inner(self) -> Self {
        with_kind!(self.0, tensor => Self::from(tensor.inner()))
    }

    /// The tensor with the autodiff association and gradient-checkpointing strategy of a device that it lies on.
    pub fn on_autodiff(self, device: &Device, requires_grad: bool) -> Self {
        let Some(strategy) = device.gradient_checkpointing_strategy() else {
            return self;
        };
        if self.is_float() {
            return with_rank!(
                self.rank(),
                D => {
                    let tensor = Tensor::<D>::from_bridge(self.0).autodiff().with_gradient_checkpointing_strategy(strategy);
                    Self::from(if requires_grad { tensor.require_grad() } else { tensor })
                },
                else self
            );
        }
        with_kind!(self.0, tensor => Self::from(tensor.autodiff().with_gradient_checkpointing_strategy(strategy)))
    }

    /// The tensor on another device.
    pub fn to_device(self, device: &Device) -> Self {
        with_kind!(self.0, tensor => Self::from(tensor.to_device(device)))
    }

    /// Copies the elements to the host, now.
    pub fn into_data(self) -> TensorData {
        with_kind!(self.0, tensor => on_host(tensor.into_data()))
    }

    /// A tensor of `data` on `device`, with the dtype of the data; `None` for a rank of zero or above
    /// [`MAX_RANK`](Self::MAX_RANK).
    pub fn from_data(data: TensorData, device: &Device) -> Option<Self> {
        let dtype = data.dtype();
        let rank = data.shape().num_dims();
        with_rank!(
            rank,
            D => Some(if dtype.is_float() {
                Self::from(Tensor::<D>::from_data(data, (device, dtype)))
            } else if dtype.is_bool() {
                Self::from(Tensor::<D, Bool>::from_data(data, (device, dtype)))
            } else {
                Self::from(Tensor::<D, Int>::from_data(data, (device, dtype)))
            }),
            else None
        )
    }
}

/// The data, read from its device if it has not been.
///
/// What Burn gives for a tensor of an asynchronous device may be a promise that is kept at the first access: by then the tensor's
/// memory may hold something newer, or be another's. Data that is kept, such as a checkpoint on its way to the disk, is read at once.
#[must_use]
pub fn on_host(data: TensorData) -> TensorData {
    match data.bytes().property() {
        AllocationProperty::Device => {
            TensorData::from_bytes_vec(data.as_bytes().to_vec(), data.shape().clone(), data.dtype())
        }
        _ => data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_shape_and_kind() {
        let device = Device::flex();
        let ints = AnyTensor::from(Tensor::<1, Int>::arange(0..6, &device).reshape([2, 3]));
        assert!(!ints.is_float());
        assert!(ints.clone().float::<2>().is_none());
        assert!(ints.clone().flat().is_none());
        assert_eq!(ints.into_data().shape().to_vec(), [2, 3]);

        let floats = AnyTensor::from(Tensor::<3>::ones([2, 3, 4], &device));
        assert_eq!(floats.clone().flat().unwrap().dims(), [24]);
        assert!(floats.clone().float::<2>().is_none());
        let sum = floats.clone().add(floats).mul_scalar(0.5);
        assert_eq!(sum.shape().to_vec(), [2, 3, 4]);
        assert_eq!(sum.into_data().iter::<f32>().sum::<f32>(), 24.0);
    }

    #[test]
    fn survives_the_host_in_every_float_dtype() {
        let device = Device::flex();
        for dtype in [
            FloatDType::F64,
            FloatDType::F32,
            FloatDType::F16,
            FloatDType::BF16,
        ] {
            let tensor = AnyTensor::from(Tensor::<1>::from_floats([0.5, -2.0], &device)).cast(dtype);
            let data = tensor.into_data();
            assert_eq!(data.dtype(), DType::from(dtype));
            let back = AnyTensor::from_data(data.clone(), &device).unwrap().into_data();
            assert_eq!(back, data);
        }
    }
}
