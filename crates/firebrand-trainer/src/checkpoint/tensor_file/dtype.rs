use std::borrow::Cow;

use burn::tensor::{BoolStore, Bytes, DType, TensorData};
use safetensors::Dtype;

use crate::checkpoint::CheckpointError;

#[cfg(target_endian = "big")]
compile_error!("checkpoints hold little-endian numbers, and this target is big-endian");

/// The dtype in a file for one of Burn's, or `None` if files have none for it.
///
/// `Flex32` is stored as `f32`, which it is in memory, and every store of `Bool` as one byte per element.
pub(super) fn to_file(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool(_) => Dtype::BOOL,
        DType::QFloat(_) => return None,
    })
}

/// Burn's dtype for one in a file, or `None` if Burn has none.
pub(super) fn from_file(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// The elements as a file holds them; Booleans are 0 or 1, in one byte each.
pub(super) fn host_bytes<'a>(tensor: &str, data: &'a TensorData) -> Result<Cow<'a, [u8]>, CheckpointError> {
    // `Deref` would panic where a lazy transfer from a device fails; this reports it.
    let bytes = data
        .bytes()
        .read(Default::default())
        .map_err(|error| CheckpointError::TensorAccess {
            tensor: tensor.to_owned(),
            reason: error.to_string(),
        })?;
    Ok(match data.dtype() {
        DType::Bool(BoolStore::Native) => Cow::Borrowed(bytes),
        DType::Bool(store) => {
            let width = DType::Bool(store).size();
            Cow::Owned(
                bytes
                    .chunks(width)
                    .map(|value| u8::from(value.iter().any(|&byte| byte != 0)))
                    .collect(),
            )
        }
        _ => Cow::Borrowed(bytes),
    })
}

/// Zeros that are aligned as elements of this dtype, or `None` if there is not enough memory.
///
/// The allocation has the layout of a vector of such elements, so that Burn takes it over without a copy.
pub(in crate::checkpoint) fn allocate(dtype: DType, num_bytes: usize) -> Option<Bytes> {
    match dtype.size() {
        2 => zeros(num_bytes / 2).map(|values: Vec<u16>| Bytes::from_elems(values)),
        4 => zeros(num_bytes / 4).map(|values: Vec<u32>| Bytes::from_elems(values)),
        8 => zeros(num_bytes / 8).map(|values: Vec<u64>| Bytes::from_elems(values)),
        _ => zeros(num_bytes).map(|values: Vec<u8>| Bytes::from_elems(values)),
    }
}

fn zeros<T: Clone + Default>(len: usize) -> Option<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize(len, T::default());
    Some(values)
}

#[cfg(test)]
pub(in crate::checkpoint) const STORED: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_comes_back_as_itself() {
        for dtype in STORED {
            assert_eq!(from_file(to_file(dtype).unwrap()), Some(dtype));
            assert_eq!(to_file(dtype).unwrap().bitsize(), dtype.size() * 8);
        }
    }

    #[test]
    fn booleans_are_stored_in_one_byte_whatever_the_backend_uses() {
        let wide = TensorData::from_bytes_vec(
            [1u32, 0, 256]
                .iter()
                .flat_map(|value| value.to_ne_bytes())
                .collect(),
            [3],
            DType::Bool(BoolStore::U32),
        );
        assert_eq!(*host_bytes("mask", &wide).unwrap(), [1, 0, 1]);
    }

    #[test]
    fn buffers_are_taken_over_without_a_copy() {
        for (dtype, align) in [(DType::F64, 8), (DType::F32, 4), (DType::BF16, 2), (DType::U8, 1)] {
            let bytes = allocate(dtype, 5 * dtype.size()).unwrap();
            assert_eq!((bytes.len(), bytes.align()), (5 * dtype.size(), align));
        }
        assert!(allocate(DType::F32, usize::MAX - 3).is_none());
    }
}
