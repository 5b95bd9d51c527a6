use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Mapping, Region};
use super::space::Space;
use crate::{Buffer, DType, Error, Memory, Result};

/// The memory of one rank that its peers read: buffers in it are reduced where they lie.
pub(crate) struct Arena {
    mapping: Arc<Mapping>,
    space: Mutex<Space>,
}

impl Arena {
    pub(super) fn new(mapping: Mapping) -> Arc<Self> {
        let space = Mutex::new(Space::new(mapping.len()));
        Arc::new(Self {
            mapping: Arc::new(mapping),
            space,
        })
    }

    /// A buffer of zeros that the peers can read.
    ///
    /// # Errors
    ///
    /// If there is no room.
    pub(crate) fn allocate(self: &Arc<Self>, dtype: DType, len: usize) -> Result<Buffer> {
        let (mut block, old) = self.take(dtype, len)?;
        block.region.bytes_mut()[..old].fill(0);
        Buffer::from_memory(Box::new(block), dtype, len)
    }

    /// A buffer whose elements are yet to be written, in ordinary memory if the arena has no room.
    pub(super) fn result(self: &Arc<Self>, dtype: DType, len: usize) -> Result<Buffer> {
        match self.take(dtype, len) {
            Ok((block, _)) => Buffer::from_memory(Box::new(block), dtype, len),
            Err(_) => Ok(Buffer::zeros(dtype, len)),
        }
    }

    /// A block for a number of bytes with old values.
    pub(super) fn block(self: &Arc<Self>, size: usize) -> Result<Block> {
        Ok(self.take(DType::U8, size)?.0)
    }

    /// From now on no memory is used again, since a peer may still be reading it.
    pub(super) fn retire(&self) {
        self.space().retire();
    }

    fn take(self: &Arc<Self>, dtype: DType, len: usize) -> Result<(Block, usize)> {
        let size = len
            .checked_mul(dtype.size())
            .ok_or_else(|| Error::argument(format!("{dtype}[{len}] is larger than any memory")))?;
        let mut space = self.space();
        let Some((range, old)) = space.allocate(size) else {
            let (used, capacity) = (space.used(), space.capacity());
            return Err(Error::system(
                format!("there is no room for {dtype}[{len}] in the shared memory of this rank"),
                format!(
                    "{used} of {capacity} bytes are in use, and no gap has {size}; drop buffers that are not needed, or start \
                     with a higher limit of address space (`ulimit -v`) or file size (`ulimit -f`) if there is one"
                ),
            ));
        };
        drop(space);
        let region = Region::new(Arc::clone(&self.mapping), range)?;
        let arena = Arc::clone(self);
        Ok((Block { arena, region }, old))
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a buffer in an arena.
pub(super) struct Block {
    arena: Arc<Arena>,
    region: Region,
}

impl Block {
    /// Where in the arena a buffer lies, if it is in this one.
    pub(super) fn offset_in(arena: &Arc<Arena>, buffer: &Buffer) -> Option<usize> {
        let memory: &dyn Any = buffer.memory();
        let block = memory.downcast_ref::<Self>()?;
        Arc::ptr_eq(&block.arena, arena).then(|| block.offset())
    }

    pub(super) fn offset(&self) -> usize {
        self.region.range().start
    }
}

impl Memory for Block {
    fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.region.bytes_mut()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // The pages are given back under the lock, before anyone can be given the range.
        let mut space = self.arena.space();
        if let Some(surplus) = space.free(self.region.range())
            && self.arena.mapping.discard(surplus.clone())
        {
            space.given_back(surplus);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::shm::memfd;

    fn arena(size: usize) -> Arc<Arena> {
        let file = memfd::create("test", size).unwrap();
        Arena::new(Mapping::writable(&file, size).unwrap())
    }

    #[test]
    fn buffers_are_zeros_aligned_and_apart_also_in_memory_that_was_used() {
        let arena = arena(1 << 20);
        for _ in 0..3 {
            let mut buffers: Vec<Buffer> = (0..10)
                .map(|len| arena.allocate(DType::F32, len * 7).unwrap())
                .collect();
            for (value, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.bytes().iter().all(|byte| *byte == 0));
                assert_eq!(buffer.bytes().as_ptr() as usize % 64, 0);
                buffer.as_mut_slice::<f32>().unwrap().fill(value as f32);
            }
            for (value, buffer) in buffers.iter().enumerate() {
                assert!(
                    buffer
                        .as_slice::<f32>()
                        .unwrap()
                        .iter()
                        .all(|found| *found == value as f32)
                );
            }
        }
    }

    #[test]
    fn threads_allocate_and_free_at_once() {
        let arena = arena(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..500 {
                        let mut buffer = arena.allocate(DType::U8, 1 + round * 17 % 3000).unwrap();
                        buffer.bytes_mut().fill(thread);
                        std::thread::yield_now();
                        assert!(buffer.bytes().iter().all(|byte| *byte == thread));
                    }
                });
            }
        });
        assert_eq!(arena.space().used(), 0);
    }

    #[test]
    fn pages_that_were_given_back_take_no_memory_and_read_as_zeros() {
        let size = 256 << 20;
        let file = memfd::create("test", size).unwrap();
        let arena = Arena::new(Mapping::writable(&file, size).unwrap());
        let committed = || rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        let mut buffer = arena.allocate(DType::U8, 100 << 20).unwrap();
        buffer.bytes_mut().fill(7);
        assert!(committed() >= 100 << 20);
        drop(buffer);
        assert!(committed() < 1 << 20, "{} bytes are left", committed());
        let buffer = arena.allocate(DType::U8, 100 << 20).unwrap();
        assert!(buffer.bytes().iter().step_by(511).all(|byte| *byte == 0));
    }

    #[test]
    fn a_full_arena_says_so() {
        let arena = arena(4096);
        let error = arena.allocate(DType::F32, 2000).unwrap_err().to_string();
        assert!(
            error.contains("f32[2000]") && error.contains("0 of 4096 bytes"),
            "{error}"
        );
        assert!(arena.allocate(DType::F32, usize::MAX).is_err());
        let result = arena.result(DType::F32, 2000).unwrap();
        assert_eq!(Block::offset_in(&arena, &result), None);
    }
}
