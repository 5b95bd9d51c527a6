use burn::tensor::{
    DType, Device, FloatDType, Shape, Tensor, TensorData,
    kind::{Basic, BridgeTensor},
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
            1 => { const $d: usize = 1; $body }
            2 => { const $d: usize = 2; $body }
            3 => { const $d: usize = 3; $body }
            4 => { const $d: usize = 4; $body }
            5 => { const $d: usize = 5; $body }
            6 => { const $d: usize = 6; $body }
            7 => { const $d: usize = 7; $body }
            8 => { const $d: usize = 8; $body }
            _ => $otherwise,
        }
    };
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
            burn::tensor::ops::Kind::Float => self.0.is_float() || self.0.is_qfloat(),
            burn::tensor::ops::Kind::Int => self.0.is_int(),
            burn::tensor::ops::Kind::Bool => self.0.is_bool(),
        };
        (kind && self.rank() == D).then(|| Tensor::from_bridge(self.0))
    }

    /// The float tensor with its rank again, or `None` if it is another.
    pub fn float<const D: usize>(self) -> Option<Tensor<D>> {
        self.typed::<D, burn::tensor::Float>()
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
        with_any(self, |tensor| match tensor {
            Typed::Float(t) => t.device(),
            Typed::Int(t) => t.device(),
            Typed::Bool(t) => t.device(),
        })
    }

    /// The tensor without its autodiff association.
    pub fn inner(self) -> Self {
        with_any(&self, |tensor| match tensor {
            Typed::Float(t) => t.inner(),
            Typed::Int(t) => t.inner(),
            Typed::Bool(t) => t.inner(),
        })
    }

    /// Copies the elements to the host.
    pub fn into_data(self) -> TensorData {
        with_any(&self, |tensor| match tensor {
            Typed::Float(t) => t.into_data(),
            Typed::Int(t) => t.into_data(),
            Typed::Bool(t) => t.into_data(),
        })
    }
}
