use std::any::{Any, type_name};
use std::ops::Range;

use burn::tensor::kind::Basic;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::Error;

/// What a data loader hands to a step: a number of samples, along the first axis of every tensor.
///
/// Derive it with `#[derive(Batch)]` for a struct of tensors. Fields that are not per sample carry `#[batch(shared)]`: they
/// are moved and kept whole when the batch is split. Tensors, `Vec`s with one element per sample, and tuples of batches are
/// batches themselves.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch",
    label = "the trainer cannot count, move or split a `{Self}`",
    note = "add `#[derive(Batch, Clone, Debug)]` to `{Self}`; its fields are tensors whose first axis is the sample"
)]
pub trait Batch: Clone + Send + 'static {
    /// The number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batch on another device. The autodiff association of the device is taken over.
    fn to_device(self, device: &Device) -> Self;

    /// The batch with its float tensors in another dtype; integers and booleans are kept.
    fn to_dtype(self, dtype: FloatDType) -> Self {
        let _ = dtype;
        self
    }

    /// The samples in a range, which lies within `0..len`.
    fn slice(&self, samples: Range<usize>) -> Self;

    /// Checks that all fields hold the same number of samples.
    ///
    /// # Errors
    ///
    /// [`Error::BatchLength`] with the first field that disagrees.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl<const D: usize, K: Basic + 'static> Batch for Tensor<D, K>
where
    Tensor<D, K>: MoveWithAutodiff,
{
    fn len(&self) -> usize {
        self.shape().to_vec().first().copied().unwrap_or_default()
    }

    fn to_device(self, device: &Device) -> Self {
        self.move_with_autodiff(device)
    }

    fn to_dtype(self, dtype: FloatDType) -> Self {
        self.cast_floats(dtype)
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        if samples == (0..Batch::len(self)) {
            return self.clone();
        }
        Tensor::slice_dim(self.clone(), 0, samples.start..samples.end)
    }
}

/// Moves a tensor between devices together with the autodiff association of its new device.
#[doc(hidden)]
pub trait MoveWithAutodiff: Sized {
    fn move_with_autodiff(self, device: &Device) -> Self;
    fn cast_floats(self, dtype: FloatDType) -> Self;
}

macro_rules! move_with_autodiff {
    ($kind:ty, |$tensor:ident, $dtype:ident| $cast:expr) => {
        impl<const D: usize> MoveWithAutodiff for Tensor<D, $kind> {
            fn move_with_autodiff(self, device: &Device) -> Self {
                let moved = self.to_device(&device.clone().without_autodiff());
                if !device.is_autodiff() {
                    return moved.without_autodiff();
                }
                match device.gradient_checkpointing_strategy() {
                    Some(strategy) => moved
                        .autodiff()
                        .with_gradient_checkpointing_strategy(strategy),
                    None => moved.autodiff(),
                }
            }

            fn cast_floats(self, $dtype: FloatDType) -> Self {
                let $tensor = self;
                $cast
            }
        }
    };
}

move_with_autodiff!(burn::tensor::Float, |tensor, dtype| {
    if tensor.dtype() == DType::from(dtype) {
        tensor
    } else {
        tensor.cast(dtype)
    }
});
move_with_autodiff!(burn::tensor::Int, |tensor, _dtype| tensor);
move_with_autodiff!(burn::tensor::Bool, |tensor, _dtype| tensor);

/// One host value per sample: names, texts, keys.
impl<T: Clone + Send + 'static> Batch for Vec<T> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn slice(&self, samples: Range<usize>) -> Self {
        self.iter()
            .skip(samples.start)
            .take(samples.len())
            .cloned()
            .collect()
    }
}

macro_rules! tuple_batch {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            fn len(&self) -> usize {
                self.0.len()
            }

            fn to_device(self, device: &Device) -> Self {
                ($(self.$index.to_device(device),)+)
            }

            fn to_dtype(self, dtype: FloatDType) -> Self {
                ($(self.$index.to_dtype(dtype),)+)
            }

            fn slice(&self, samples: Range<usize>) -> Self {
                ($(self.$index.slice(samples.clone()),)+)
            }

            fn check(&self) -> Result<(), Error> {
                let expected = self.0.len();
                $(check_field(stringify!($index), &self.$index, expected)?;)+
                Ok(())
            }
        }
    };
}

tuple_batch!(A 0, B 1);
tuple_batch!(A 0, B 1, C 2);
tuple_batch!(A 0, B 1, C 2, D 3);

/// Checks one field against the number of samples of the fields before it; what `#[derive(Batch)]` calls.
///
/// # Errors
///
/// [`Error::BatchLength`] if the field holds another number of samples, or what the field's own check finds.
pub fn check_field<B: Batch>(field: &'static str, value: &B, expected: usize) -> Result<(), Error> {
    value.check()?;
    let found = value.len();
    if found == expected {
        Ok(())
    } else {
        Err(Error::BatchLength {
            field,
            expected,
            found,
        })
    }
}

/// A [`Batch`] without its type.
pub struct AnyBatch(Box<dyn ErasedBatch>);

impl AnyBatch {
    /// Erases the type of a batch.
    pub fn new<B: Batch>(batch: B) -> Self {
        Self(Box::new(batch))
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// See [`Batch::to_device`].
    #[must_use]
    pub fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }

    /// See [`Batch::to_dtype`].
    #[must_use]
    pub fn to_dtype(self, dtype: FloatDType) -> Self {
        Self(self.0.to_dtype(dtype))
    }

    /// See [`Batch::slice`].
    #[must_use]
    pub fn slice(&self, samples: Range<usize>) -> Self {
        Self(self.0.slice(samples))
    }

    /// The batch with its type again.
    ///
    /// # Errors
    ///
    /// [`Error::BatchType`] if it is of another type.
    pub fn downcast<B: Batch>(self) -> Result<B, Error> {
        let found = self.0.type_name();
        match self.0.into_any().downcast::<B>() {
            Ok(batch) => Ok(*batch),
            Err(_) => Err(Error::BatchType {
                expected: type_name::<B>(),
                found,
            }),
        }
    }
}

impl Clone for AnyBatch {
    fn clone(&self) -> Self {
        Self(self.0.clone_box())
    }
}

impl std::fmt::Debug for AnyBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} samples", self.0.type_name(), self.0.len())
    }
}

trait ErasedBatch: Send {
    fn len(&self) -> usize;
    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedBatch>;
    fn to_dtype(self: Box<Self>, dtype: FloatDType) -> Box<dyn ErasedBatch>;
    fn slice(&self, samples: Range<usize>) -> Box<dyn ErasedBatch>;
    fn clone_box(&self) -> Box<dyn ErasedBatch>;
    fn type_name(&self) -> &'static str;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<B: Batch> ErasedBatch for B {
    fn len(&self) -> usize {
        Batch::len(self)
    }

    fn to_device(self: Box<Self>, device: &Device) -> Box<dyn ErasedBatch> {
        Box::new(Batch::to_device(*self, device))
    }

    fn to_dtype(self: Box<Self>, dtype: FloatDType) -> Box<dyn ErasedBatch> {
        Box::new(Batch::to_dtype(*self, dtype))
    }

    fn slice(&self, samples: Range<usize>) -> Box<dyn ErasedBatch> {
        Box::new(Batch::slice(self, samples))
    }

    fn clone_box(&self) -> Box<dyn ErasedBatch> {
        Box::new(self.clone())
    }

    fn type_name(&self) -> &'static str {
        type_name::<B>()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
