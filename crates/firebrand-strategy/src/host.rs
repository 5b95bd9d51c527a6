use burn::backend::Flex;
use burn::tensor::{DType, Tensor};
use firebrand_core::AnyTensor;

/// Calls a function with the elements of a float tensor in the order of its shape, as bytes of the type.
///
/// A tensor of the CPU backend that lies in one piece is read in its place; of another, a copy in host memory is made.
pub(crate) fn with_elements<R>(value: &AnyTensor, read: impl FnOnce(DType, &[u8]) -> R) -> R {
    // The rank in the type is a placeholder: the bridge tensor carries the real one.
    let handle = Tensor::<1>::from_bridge(value.clone().into_bridge());
    if let Ok(host) = handle.try_into_primitive::<Flex>()
        && let Some((start, end)) = host.layout().contiguous_offsets()
    {
        let dtype = value.dtype();
        let size = dtype.size();
        return read(dtype, &host.bytes()[start * size..end * size]);
    }
    let data = value.clone().into_data();
    read(data.dtype(), data.as_bytes())
}
