//! The few layers that Burn's cannot be: a batch norm whose statistics are float32 whatever it is given, and those of all
//! ranks if asked for, and an attention whose softmax is float32.
//!
//! ```
//! use burn::tensor::{DType, Device, Tensor};
//! use firebrand_core::{Stage, StepContext, StepInfo};
//! use firebrand_nn::BatchNormConfig;
//!
//! let device = Device::flex().autodiff();
//! let norm = BatchNormConfig::new(8).with_synchronize(true).init(&device)?;
//! // Inside `training_step` this is the step that it was given.
//! let step = StepContext::new(StepInfo::first(Stage::Train, device.clone()));
//! let images = Tensor::<4>::ones([2, 8, 5, 5], (&device, DType::BF16));
//! let normalized = norm.forward(images, &step)?;
//! assert_eq!(normalized.dtype(), DType::BF16);
//! # Ok::<(), firebrand_nn::Error>(())
//! ```

mod attention;
mod batch_norm;
mod error;
mod softmax;

pub use attention::{MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use error::{Error, Result};

use burn::tensor::{DType, FloatDType, Tensor};

/// The dtype in which a layer adds up values of another: float64 for float64, float32 for the rest.
fn wide(dtype: DType) -> FloatDType {
    match dtype {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// The tensor in a float dtype, differentiably; without an operation in the graph if it has that dtype.
fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype {
        tensor
    } else {
        tensor.cast(dtype)
    }
}
