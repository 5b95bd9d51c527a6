use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Device, Element, Shape, Tensor, TensorData};
use bytemuck::{Pod, try_cast_slice, try_cast_slice_mut};
use firebrand_collective::DType as Wire;
use firebrand_core::AnyTensor;
use half::{bf16, f16};

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

/// The name of a dtype between ranks. Gradients and parameters are floats, buffers may be integers.
pub(crate) fn collective_dtype(dtype: DType) -> Option<Wire> {
    Some(match dtype {
        DType::F64 => Wire::F64,
        DType::F32 | DType::Flex32 => Wire::F32,
        DType::F16 => Wire::F16,
        DType::BF16 => Wire::BF16,
        _ => return None,
    })
}

/// Adds float elements to others of the same type; `false` if they are none.
pub(crate) fn add_into(sums: &mut [u8], elements: &[u8], dtype: Wire) -> bool {
    fn add<E: Pod>(sums: &mut [u8], elements: &[u8], add: impl Fn(E, E) -> E) -> bool {
        let (Ok(sums), Ok(elements)) = (try_cast_slice_mut::<_, E>(sums), try_cast_slice::<_, E>(elements))
        else {
            return false;
        };
        sums.iter_mut()
            .zip(elements)
            .for_each(|(sum, element)| *sum = add(*sum, *element));
        true
    }
    match dtype {
        Wire::F64 => add(sums, elements, |a: f64, b| a + b),
        Wire::F32 => add(sums, elements, |a: f32, b| a + b),
        Wire::F16 => add(sums, elements, |a: f16, b: f16| {
            f16::from_f32(a.to_f32() + b.to_f32())
        }),
        Wire::BF16 => add(sums, elements, |a: bf16, b: bf16| {
            bf16::from_f32(a.to_f32() + b.to_f32())
        }),
        _ => false,
    }
}

/// A float tensor with these elements on a device. If `old` is the only handle of a tensor of the CPU backend with this shape and
/// type, its memory is used again.
pub(crate) fn with_values(
    old: Option<AnyTensor>,
    shape: &Shape,
    dtype: DType,
    bytes: &[u8],
    device: &Device,
) -> Option<AnyTensor> {
    let old = old.filter(|old| old.shape() == *shape && old.dtype() == dtype);
    if let Some(old) = old
        && let Ok(mut host) = Tensor::<1>::from_bridge(old.into_bridge()).try_into_primitive::<Flex>()
        && write(&mut host, dtype, bytes)
    {
        return Some(AnyTensor::from_bridge(
            Tensor::<1>::from_primitive::<Flex>(host).into_bridge(),
        ));
    }
    AnyTensor::from_data(data_from(bytes, shape, dtype)?, device)
}

/// Overwrites all elements of a tensor that nobody else holds.
fn write(host: &mut FloatTensor<Flex>, dtype: DType, bytes: &[u8]) -> bool {
    fn fill<E: Element + Pod>(host: &mut FloatTensor<Flex>, bytes: &[u8]) -> bool {
        let (Some(to), Ok(from)) = (host.try_storage_mut::<E>(), try_cast_slice::<_, E>(bytes)) else {
            return false;
        };
        if to.len() != from.len() {
            return false;
        }
        to.copy_from_slice(from);
        true
    }
    let whole = host
        .layout()
        .contiguous_offsets()
        .is_some_and(|(start, _)| start == 0);
    whole
        && match dtype {
            DType::F64 => fill::<f64>(host, bytes),
            DType::F32 => fill::<f32>(host, bytes),
            DType::F16 => fill::<f16>(host, bytes),
            DType::BF16 => fill::<bf16>(host, bytes),
            _ => false,
        }
}

/// Elements as Burn's data, aligned for their type; `None` for a type that is no float, or bytes that do not fit.
fn data_from(bytes: &[u8], shape: &Shape, dtype: DType) -> Option<TensorData> {
    fn typed<E: Element + Pod>(bytes: &[u8], shape: &Shape) -> Option<TensorData> {
        let elements = try_cast_slice::<_, E>(bytes).ok()?;
        (elements.len() == shape.num_elements()).then(|| TensorData::new(elements.to_vec(), shape.clone()))
    }
    match dtype {
        DType::F64 => typed::<f64>(bytes, shape),
        DType::F32 => typed::<f32>(bytes, shape),
        DType::F16 => typed::<f16>(bytes, shape),
        DType::BF16 => typed::<bf16>(bytes, shape),
        _ => None,
    }
}
