use std::collections::BTreeMap;
use std::ops::Range;

/// The unit of allocation: a cache line.
const LINE: usize = 64;

/// Free memory that is kept at the end, at least, before its pages go back to the system: new pages are slow.
const KEEP: usize = 64 << 20;

/// Which bytes of an arena are taken: first fit in the order of addresses, with neighbours joined as they are freed. Keeping
/// to low addresses leaves as much as possible untouched, and lets the end be given back.
pub(super) struct Space {
    /// The free ranges by their start. No two touch each other.
    free: BTreeMap<usize, usize>,
    capacity: usize,
    /// What lies behind has never been written, or was given back: it takes no memory, and reads as zeros.
    touched: usize,
    used: usize,
    retired: bool,
}

impl Space {
    /// Nothing of a memory of whole pages is taken.
    pub(super) fn new(capacity: usize) -> Self {
        let page = rustix::param::page_size();
        let capacity = capacity / page * page;
        Self {
            free: BTreeMap::from([(0, capacity)]),
            capacity,
            touched: 0,
            used: 0,
            retired: false,
        }
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// At least `size` bytes (a whole number of lines, at least one), and how many of them, from the start, may hold old values.
    pub(super) fn allocate(&mut self, size: usize) -> Option<(Range<usize>, usize)> {
        let size = size.max(1).checked_next_multiple_of(LINE)?;
        let (&start, &len) = self.free.iter().find(|(_, len)| **len >= size)?;
        self.free.remove(&start);
        let end = start + size;
        if len > size {
            self.free.insert(end, len - size);
        }
        let old = self.touched.clamp(start, end) - start;
        self.touched = self.touched.max(end);
        self.used += size;
        Some((start..end, old))
    }

    /// Takes a range back. Returns the pages that should be given back to the system, if any.
    pub(super) fn free(&mut self, range: Range<usize>) -> Option<Range<usize>> {
        self.used -= range.len();
        if self.retired {
            return None;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &len)) = self.free.range(..start).next_back()
            && before + len == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(len) = self.free.remove(&end) {
            end += len;
        }
        self.free.insert(start, end - start);
        let page = rustix::param::page_size();
        let surplus = start.next_multiple_of(page)..self.touched.next_multiple_of(page);
        (end == self.capacity && surplus.end.saturating_sub(surplus.start) > KEEP.max(self.used))
            .then_some(surplus)
    }

    /// The pages that [`free`](Self::free) returned have gone back to the system.
    pub(super) fn given_back(&mut self, surplus: Range<usize>) {
        self.touched = surplus.start;
    }

    /// From now on nothing that was in use is given out again.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_given_out_is_aligned_disjoint_and_all_comes_back(
            sizes in prop::collection::vec((0usize..5000, any::<prop::sample::Index>(), any::<bool>()), 1..200)
        ) {
            let mut space = Space::new(1 << 18);
            let mut live: Vec<Range<usize>> = Vec::new();
            for (size, index, free) in sizes {
                if free && !live.is_empty() {
                    space.free(live.swap_remove(index.index(live.len())));
                    continue;
                }
                let Some((range, old)) = space.allocate(size) else { continue };
                prop_assert!(range.start % LINE == 0 && range.len() >= size && range.end <= 1 << 18);
                prop_assert!(old <= range.len());
                prop_assert!(live.iter().all(|other| other.end <= range.start || range.end <= other.start));
                live.push(range);
            }
            prop_assert_eq!(space.used(), live.iter().map(ExactSizeIterator::len).sum::<usize>());
            for range in live {
                space.free(range);
            }
            prop_assert_eq!(space.allocate(1 << 18).map(|(range, _)| range), Some(0..1 << 18));
            prop_assert_eq!(space.allocate(1), None);
        }
    }

    #[test]
    fn old_values_are_told_from_untouched_memory() {
        let mut space = Space::new(1 << 20);
        let (first, old) = space.allocate(100).unwrap();
        assert_eq!((first.clone(), old), (0..128, 0));
        space.free(first);
        assert_eq!(space.allocate(256).unwrap(), (0..256, 128));
    }

    #[test]
    fn a_large_free_end_is_given_back_and_counts_as_untouched() {
        let mut space = Space::new(4 * KEEP);
        let (small, _) = space.allocate(64).unwrap();
        let (large, _) = space.allocate(2 * KEEP).unwrap();
        let surplus = space.free(large.clone()).unwrap();
        let page = rustix::param::page_size();
        assert_eq!(surplus, page..large.end.next_multiple_of(page));
        space.given_back(surplus);
        let (again, old) = space.allocate(2 * KEEP).unwrap();
        assert_eq!(again, large);
        assert!(old < page);
        assert_eq!(space.free(small), None);
    }

    #[test]
    fn a_retired_space_gives_out_only_what_was_never_in_use() {
        let page = rustix::param::page_size();
        let mut space = Space::new(2 * page);
        let (first, _) = space.allocate(page).unwrap();
        space.retire();
        assert_eq!(space.free(first), None);
        assert_eq!(space.allocate(page).unwrap().0, page..2 * page);
        assert_eq!(space.allocate(64), None);
    }
}
