use std::any::Any;

use burn::backend::Flex;
use burn::tensor::{Bytes, DType, Device, Element, Shape, Tensor, TensorData};
use bytemuck::{Pod, try_cast_slice, try_cast_slice_mut};
use firebrand_collective::{Buffer, DType as Wire, Memory};
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

/// The elements of a float tensor as a buffer, in the order of its shape.
///
/// A tensor of the CPU backend that lies in one piece and has no other handle gives its memory away; of another, a copy in host
/// memory is made. `None` if it holds no floats.
pub(crate) fn into_buffer(value: AnyTensor) -> Option<Buffer> {
    let (bytes, shape, dtype) = value.into_data().into_parts();
    let len = shape.num_elements();
    Buffer::from_memory(Box::new(TensorMemory(bytes)), collective_dtype(dtype)?, len).ok()
}

/// A float tensor of the elements of a buffer on a device. What [`into_buffer`] took from the CPU backend goes back as it is.
pub(crate) fn from_buffer(buffer: Buffer, shape: &Shape, dtype: DType, device: &Device) -> Option<AnyTensor> {
    if !(buffer.memory() as &dyn Any).is::<TensorMemory>() {
        return with_values(shape, dtype, buffer.bytes(), device);
    }
    if buffer.size() != shape.num_elements() * dtype.size() {
        return None;
    }
    let memory: Box<dyn Any> = buffer.into_memory();
    let TensorMemory(bytes) = *memory.downcast().ok()?;
    AnyTensor::from_data(TensorData::from_bytes(bytes, shape.clone(), dtype), device)
}

/// A float tensor with a copy of these elements on a device.
pub(crate) fn with_values(shape: &Shape, dtype: DType, bytes: &[u8], device: &Device) -> Option<AnyTensor> {
    AnyTensor::from_data(data_from(bytes, shape, dtype)?, device)
}

/// The host memory of a tensor.
struct TensorMemory(Bytes);

impl Memory for TensorMemory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
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
