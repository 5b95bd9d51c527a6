//! The one place that touches shared memory. Everything else in this folder is safe code.
//!
//! The rules that exclude races, on which every `SAFETY` below rests:
//!
//! 1. Bytes of an arena are written only by the rank that owns it, and only through a [`Region`]; the allocator gives each
//!    byte to one region at a time. Other ranks map the arena read-only.
//! 2. A rank reads a peer's bytes only within one collective operation, after the peer has announced them in its progress
//!    counters and before it has announced that it is done with them. The owner writes them only outside that span. Counters
//!    are written with release and read with acquire order.
//! 3. An operation that fails breaks the transport for good, and the arena never reuses a byte again, so that a peer which
//!    is still reading sees no write.
//! 4. A rank writes its payload of a [`Slot`](super::control::Slot) before it announces its arrival; the two slots alternate,
//!    and nobody is two operations ahead of a peer.
//!
//! A peer is a process of the same user that has proved that it knows the secret of the job. One that breaks the rules
//! on purpose can make results wrong, but not read or write outside the memory shared with it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use super::control::RankArea;
use crate::{Error, Result};

/// A shared mapping of a whole memory file.
pub(super) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps a file of `len` bytes, which must be sealed against shrinking, to be read and written.
    pub(super) fn writable(file: &OwnedFd, len: usize) -> std::io::Result<Self> {
        MmapOptions::new()
            .len(len)
            .map_raw(file.as_raw_fd())
            .map(Self::without_dump)
    }

    /// The same, to be read only.
    pub(super) fn read_only(file: &OwnedFd, len: usize) -> std::io::Result<Self> {
        MmapOptions::new()
            .len(len)
            .map_raw_read_only(file.as_raw_fd())
            .map(Self::without_dump)
    }

    /// A dump of a process that crashes leaves it out: to write one, the system would fill all of the memory with zeros.
    fn without_dump(mapping: MmapRaw) -> Self {
        // An old kernel may refuse; the dump is larger then.
        let _ = mapping.advise(Advice::DontDump);
        Self(mapping)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of a peer's arena that it has announced (rule 2).
    pub(super) fn announced(&self, range: Range<usize>) -> Result<&[u8]> {
        self.check(&range)?;
        // SAFETY: the range lies in the mapping, which lives as long as `self` and cannot shrink. The peer does not write
        // these bytes while this rank looks at them (rule 2, and 3 after a failure). Any bytes are valid as `u8`.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(range.start), range.len()) })
    }

    /// The control areas of the ranks, as many as fit.
    pub(super) fn areas(&self) -> &[RankArea] {
        let count = self.len() / size_of::<RankArea>();
        // SAFETY: the areas lie in the mapping, whose start is aligned to a page. They consist of atomics and payloads, for
        // which any bytes are valid, and which may change behind a shared reference.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<RankArea>(), count) }
    }

    /// Gives pages back to the system; returns whether they are gone, and read as zeros. Only for bytes that belong to no
    /// region.
    pub(super) fn discard(&self, pages: Range<usize>) -> bool {
        // The system would round the start down.
        if !pages.start.is_multiple_of(rustix::param::page_size()) || self.check(&pages).is_err() {
            return false;
        }
        // SAFETY: the pages lie in the mapping, and no region, thus no reference, covers them. No peer reads them, since they
        // belong to no buffer of an operation (rules 2 and 3).
        let answer = unsafe {
            self.0
                .unchecked_advise_range(UncheckedAdvice::Remove, pages.start, pages.len())
        };
        answer.is_ok()
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        Err(Error::Protocol {
            peer: "a rank of this node".to_owned(),
            reason: format!(
                "it announced bytes {}..{} of {} bytes of shared memory",
                range.start,
                range.end,
                self.len()
            ),
        })
    }
}

/// A part of this rank's own arena, which nothing else in this process refers to.
pub(super) struct Region {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl Region {
    /// The allocator vouches that no other region covers any byte of the range (rule 1), and that the mapping is writable.
    pub(super) fn new(mapping: Arc<Mapping>, range: Range<usize>) -> Result<Self> {
        mapping.check(&range)?;
        Ok(Self { mapping, range })
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the range was checked. Only this region writes these bytes (rule 1), which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.mapping.0.as_ptr().add(self.range.start), self.range.len()) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range was checked, and the mapping is writable. No other reference in this process covers these bytes
        // (rule 1), and a peer reads only those of them that are not written meanwhile (rule 2).
        unsafe {
            std::slice::from_raw_parts_mut(
                self.mapping.0.as_mut_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

/// Plain bytes in the control memory, with the protocol of rule 4.
#[repr(C, align(64))]
pub(super) struct Payload<const N: usize>(UnsafeCell<[u8; N]>);

// SAFETY: writes and reads of different threads are kept apart by rule 4.
unsafe impl<const N: usize> Sync for Payload<N> {}

impl<const N: usize> Payload<N> {
    /// Writes the first bytes, as many as fit. Only the owning rank does, before it announces them.
    pub(super) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(N);
        // SAFETY: at most `N` bytes are written; nobody reads them before they are announced, and only the thread of the
        // owning rank's group writes (rule 4).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.get().cast::<u8>(), len) }
    }

    /// The first bytes, at most all; after they were announced.
    pub(super) fn read(&self, len: usize) -> &[u8] {
        // SAFETY: at most `N` bytes, which are not written before every rank is done with them (rule 4).
        unsafe { std::slice::from_raw_parts(self.0.get().cast::<u8>(), len.min(N)) }
    }
}
