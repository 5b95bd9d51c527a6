use std::cmp::Ordering;
use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::flow::Flow;
use super::steps::{Kind, Step, Steps};
use crate::{DType, Error, ReduceOp, Result, reduce_into, scale};

/// How much goes out in one system call: what is worked on stays in the second-level cache.
const CHUNK: usize = 512 << 10;

/// How many 16-bit floats are widened at a time.
const WIDENED: usize = 1024;

/// Elements on their way around the ring, in a stream without pauses: what has come is reduced as soon as it is there, and goes
/// on while the rest comes.
///
/// Bytes are written over only with what depends on them: a result comes back to a rank only after everything that the rank
/// had to give for it went out.
pub(super) struct Ring<'a> {
    memories: Memories<'a>,
    dtype: DType,
    op: ReduceOp,
    size: usize,
    outgoing: Cursor,
    incoming: Cursor,
    /// How many bytes are in `arrived`.
    filled: usize,
}

/// The place in the steps of one direction.
struct Cursor {
    steps: Vec<Step>,
    step: usize,
    /// The bytes of the step that are over.
    done: usize,
}

impl Cursor {
    fn current(&self) -> Option<&Step> {
        self.steps.get(self.step)
    }

    /// Counts bytes; goes on to the next step that has any.
    fn advance(&mut self, bytes: usize, width: impl Fn(&Step) -> usize) {
        self.done += bytes;
        while let Some(step) = self.current() {
            if self.done < step.elements.len() * width(step) {
                break;
            }
            self.step += 1;
            self.done = 0;
        }
    }
}

/// The memory that a ring works in.
pub(super) struct Memories<'a> {
    /// All elements.
    pub buffer: &'a mut [u8],
    /// Sums over some ranks of 16-bit floats, as float32, for all elements; empty if they are not needed.
    pub sums: &'a mut [u8],
    /// What has come and is to be reduced.
    pub arrived: &'a mut [u8],
}

/// Whether sums over some ranks, but not all, have to be kept more precisely than the elements.
pub(super) fn needs_sums(dtype: DType, size: usize) -> bool {
    size > 2 && matches!(dtype, DType::F16 | DType::BF16)
}

impl<'a> Ring<'a> {
    pub fn new(memories: Memories<'a>, steps: Steps, dtype: DType, op: ReduceOp, size: usize) -> Self {
        let cursor = |steps| Cursor {
            steps,
            step: 0,
            done: 0,
        };
        let mut ring = Self {
            memories,
            dtype,
            op,
            size,
            outgoing: cursor(steps.outgoing),
            incoming: cursor(steps.incoming),
            filled: 0,
        };
        // Steps without elements are over before they begin.
        ring.advance_outgoing(0);
        ring.advance_incoming(0);
        ring
    }

    fn advance_outgoing(&mut self, bytes: usize) {
        let (dtype, size) = (self.dtype, self.size);
        self.outgoing.advance(bytes, |step| width(step, dtype, size));
    }

    fn advance_incoming(&mut self, bytes: usize) {
        let (dtype, size) = (self.dtype, self.size);
        self.incoming.advance(bytes, |step| width(step, dtype, size));
    }

    /// How many elements of the step that goes out are ready.
    fn ready(&self, step: &Step) -> usize {
        let Some(source) = step.source else {
            return step.elements.len();
        };
        match source.cmp(&self.incoming.step) {
            Ordering::Less => step.elements.len(),
            Ordering::Equal => self.incoming.current().map_or(step.elements.len(), |incoming| {
                self.incoming.done / width(incoming, self.dtype, self.size)
            }),
            Ordering::Greater => 0,
        }
    }

    /// Adds what has come to this rank's elements, or the other way round: the ranks before come first.
    fn reduce(&mut self, elements: Range<usize>, kind: Kind, completes: bool) -> Result<()> {
        let arrived = elements.len() * width_of(kind, self.dtype, self.size);
        if needs_sums(self.dtype, self.size) {
            return match self.dtype {
                DType::F16 => self.reduce_wide(elements, arrived, kind, completes, &F16),
                _ => self.reduce_wide(elements, arrived, kind, completes, &BF16),
            };
        }
        let width = self.dtype.size();
        let own = &mut self.memories.buffer[elements.start * width..elements.end * width];
        let arrived = &self.memories.arrived[..arrived];
        if self.size == 2 {
            return reduce_into(own, 1, &[arrived], self.dtype, self.op);
        }
        reduce_into(own, 1, &[arrived], self.dtype, partial(self.op))?;
        if completes && self.op == ReduceOp::Mean {
            scale(own, self.dtype, self.size)?;
        }
        Ok(())
    }

    fn reduce_wide(
        &mut self,
        elements: Range<usize>,
        arrived: usize,
        kind: Kind,
        completes: bool,
        half: &dyn Half,
    ) -> Result<()> {
        let own = &mut self.memories.buffer[elements.start * 2..elements.end * 2];
        let sums: &mut [f32] = floats_mut(&mut self.memories.sums[elements.start * 4..elements.end * 4])?;
        half.widen(own, sums)?;
        let arrived = &self.memories.arrived[..arrived];
        let op = partial(self.op);
        if kind == Kind::First {
            let mut wide = [0f32; WIDENED];
            for (sums, arrived) in sums.chunks_mut(WIDENED).zip(arrived.chunks(2 * WIDENED)) {
                let wide = &mut wide[..sums.len()];
                half.widen(arrived, wide)?;
                let (sums, wide) = (bytemuck::cast_slice_mut(sums), bytemuck::cast_slice(wide));
                reduce_into(sums, 1, &[wide], DType::F32, op)?;
            }
        } else {
            reduce_into(bytemuck::cast_slice_mut(sums), 1, &[arrived], DType::F32, op)?;
        }
        if completes {
            if self.op == ReduceOp::Mean {
                scale(bytemuck::cast_slice_mut(sums), DType::F32, self.size)?;
            }
            half.narrow(sums, own)?;
        }
        Ok(())
    }
}

impl Flow for Ring<'_> {
    fn outgoing(&self) -> &[u8] {
        let Some(step) = self.outgoing.current() else {
            return &[];
        };
        let width = width(step, self.dtype, self.size);
        let memory: &[u8] = if step.kind == Kind::Partial && needs_sums(self.dtype, self.size) {
            self.memories.sums
        } else {
            self.memories.buffer
        };
        let start = step.elements.start * width;
        let ready = (self.ready(step) * width).min(self.outgoing.done + CHUNK);
        &memory[start + self.outgoing.done..start + ready]
    }

    fn sent(&mut self, bytes: usize) {
        self.advance_outgoing(bytes);
    }

    fn incoming(&mut self) -> &mut [u8] {
        let Some(step) = self.incoming.current() else {
            return &mut [];
        };
        let width = width(step, self.dtype, self.size);
        let left = step.elements.len() * width - self.incoming.done;
        if step.kind == Kind::Whole {
            let start = step.elements.start * width + self.incoming.done;
            return &mut self.memories.buffer[start..start + left.min(CHUNK)];
        }
        let end = left.min(self.memories.arrived.len());
        &mut self.memories.arrived[self.filled..end]
    }

    fn received(&mut self, bytes: usize) -> Result<()> {
        let Some(step) = self.incoming.current().cloned() else {
            return Ok(());
        };
        if step.kind == Kind::Whole {
            self.advance_incoming(bytes);
            return Ok(());
        }
        let width = width(&step, self.dtype, self.size);
        self.filled += bytes;
        let whole = self.filled / width;
        let start = step.elements.start + self.incoming.done / width;
        self.reduce(start..start + whole, step.kind, step.completes)?;
        let rest = whole * width;
        self.memories.arrived.copy_within(rest..self.filled, 0);
        self.filled -= rest;
        self.advance_incoming(rest);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.outgoing.current().is_none() && self.incoming.current().is_none()
    }
}

/// The size of an element of a step on the wire.
fn width(step: &Step, dtype: DType, size: usize) -> usize {
    width_of(step.kind, dtype, size)
}

fn width_of(kind: Kind, dtype: DType, size: usize) -> usize {
    if kind == Kind::Partial && needs_sums(dtype, size) {
        return DType::F32.size();
    }
    dtype.size()
}

/// What is done with sums over some ranks; a mean is divided once, at the end.
fn partial(op: ReduceOp) -> ReduceOp {
    match op {
        ReduceOp::Mean => ReduceOp::Sum,
        other => other,
    }
}

/// One of the 16-bit floats.
trait Half {
    fn widen(&self, narrow: &[u8], wide: &mut [f32]) -> Result<()>;
    fn narrow(&self, wide: &[f32], narrow: &mut [u8]) -> Result<()>;
}

struct F16;
struct BF16;

macro_rules! halves {
    ($($name:ident => $element:ty),+) => {
        $(impl Half for $name {
            fn widen(&self, narrow: &[u8], wide: &mut [f32]) -> Result<()> {
                let narrow: &[$element] = bytemuck::try_cast_slice(narrow).map_err(misaligned)?;
                narrow.convert_to_f32_slice(wide);
                Ok(())
            }

            fn narrow(&self, wide: &[f32], narrow: &mut [u8]) -> Result<()> {
                let narrow: &mut [$element] = bytemuck::try_cast_slice_mut(narrow).map_err(misaligned)?;
                narrow.convert_from_f32_slice(wide);
                Ok(())
            }
        })+
    };
}

halves!(F16 => f16, BF16 => bf16);

fn floats_mut(bytes: &mut [u8]) -> Result<&mut [f32]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(misaligned)
}

fn misaligned(reason: bytemuck::PodCastError) -> Error {
    Error::argument(format!("the bytes are no floats: {reason}"))
}
