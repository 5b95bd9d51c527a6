use std::any::Any;
use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::{DType, Element};

/// Where the bytes of a [`Buffer`] lie.
///
/// A group gives out memory of its own from [`allocate`](crate::ProcessGroup::allocate) and recognises it by its type.
pub trait Memory: Any + Send {
    /// All of the memory. Its start is aligned for the elements that lie in it.
    fn bytes(&self) -> &[u8];

    /// All of the memory, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Elements of one type, contiguous in host memory.
///
/// ```
/// use firebrand_collective::{Buffer, DType};
/// let mut buffer = Buffer::from_slice(&[1.0f32, 2.0]);
/// buffer.as_mut_slice::<f32>()?[0] = 3.0;
/// assert_eq!(buffer.as_slice::<f32>()?, [3.0, 2.0]);
/// assert_eq!((buffer.dtype(), buffer.len()), (DType::F32, 2));
/// # Ok::<(), firebrand_collective::Error>(())
/// ```
pub struct Buffer {
    memory: Box<dyn Memory>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    /// `len` zeros in ordinary memory.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        let lines = (len * dtype.size()).div_ceil(LINE);
        Self {
            memory: Box::new(Heap {
                lines: vec![Line::zeroed(); lines],
            }),
            dtype,
            len,
        }
    }

    /// A copy of elements in ordinary memory.
    pub fn from_slice<E: Element>(elements: &[E]) -> Self {
        let mut buffer = Self::zeros(E::DTYPE, elements.len());
        buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        buffer
    }

    /// Elements in memory of another kind.
    ///
    /// # Errors
    ///
    /// If the memory is smaller than the elements, or not aligned for them.
    pub fn from_memory(memory: Box<dyn Memory>, dtype: DType, len: usize) -> crate::Result<Self> {
        let available = memory.bytes().len();
        if !memory.bytes().as_ptr().addr().is_multiple_of(dtype.size()) {
            return Err(crate::Error::argument(format!(
                "the memory for {len} elements of {dtype} does not start at a multiple of {} bytes",
                dtype.size()
            )));
        }
        match len.checked_mul(dtype.size()) {
            Some(needed) if needed <= available => Ok(Self { memory, dtype, len }),
            _ => Err(crate::Error::argument(format!(
                "{len} elements of {dtype} do not fit in {available} bytes of memory"
            ))),
        }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of the elements in bytes.
    pub fn size(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// The bytes of the elements, in the machine's order.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.size()]
    }

    /// The bytes of the elements, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let size = self.size();
        &mut self.memory.bytes_mut()[..size]
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// If they are of another type.
    pub fn as_slice<E: Element>(&self) -> crate::Result<&[E]> {
        self.check::<E>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, to be written.
    ///
    /// # Errors
    ///
    /// If they are of another type.
    pub fn as_mut_slice<E: Element>(&mut self) -> crate::Result<&mut [E]> {
        self.check::<E>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// The memory, for a group that looks for its own.
    pub fn memory(&self) -> &dyn Memory {
        self.memory.as_ref()
    }

    /// The memory, for whoever put the elements into memory of a kind of their own.
    pub fn into_memory(self) -> Box<dyn Memory> {
        self.memory
    }

    fn check<E: Element>(&self) -> crate::Result<()> {
        if E::DTYPE == self.dtype {
            return Ok(());
        }
        Err(crate::Error::argument(format!(
            "the buffer holds {}, not {}",
            self.dtype,
            E::DTYPE
        )))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}[{}])", self.dtype, self.len)
    }
}

const LINE: usize = 64;

/// One cache line, so that elements are aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Ordinary memory.
struct Heap {
    lines: Vec<Line>,
}

impl Memory for Heap {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_aligned_and_checked() {
        let mut buffer = Buffer::zeros(DType::F64, 3);
        buffer.as_mut_slice::<f64>().unwrap()[2] = 1.5;
        assert_eq!(buffer.as_slice::<f64>().unwrap(), [0.0, 0.0, 1.5]);
        assert_eq!(buffer.bytes().as_ptr() as usize % 64, 0);
        let error = buffer.as_slice::<f32>().unwrap_err().to_string();
        assert!(error.contains("the buffer holds f64, not f32"), "{error}");
        assert!(Buffer::zeros(DType::I8, 0).is_empty());
    }
}
