//! What goes around the ring in which order, as data.

use std::ops::Range;

/// Elements that come in one step of a ring, or go out in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub elements: Range<usize>,
    pub kind: Kind,
}

/// What is done with what comes, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The elements of one rank, which the receiver adds its own to.
    First,
    /// The sum over some ranks, which the receiver adds its own to.
    Partial,
    /// The result, which replaces what the receiver has.
    Whole,
}

/// What goes out and what comes in.
pub(super) struct Steps {
    pub outgoing: Vec<Step>,
    pub incoming: Vec<Step>,
    /// What goes out in a step came in so many steps before: 1 where this rank begins with something of its own, else 0.
    pub lead: usize,
}

impl Steps {
    /// Every rank ends with the reduced block of its own number. Block `b` is reduced in the order of the ranks `b + 1`, `b + 2`,
    /// …, `b`, so that every element has one order, whatever the timing is.
    pub fn reduce_scatter(len: usize, rank: usize, size: usize) -> Self {
        let step = |number: usize, distance: usize| Step {
            elements: block(len, (rank + 2 * size - number - distance) % size, size),
            kind: if number == 0 { Kind::First } else { Kind::Partial },
        };
        Self {
            outgoing: (0..size - 1).map(|number| step(number, 1)).collect(),
            incoming: (0..size - 1).map(|number| step(number, 2)).collect(),
            lead: 1,
        }
    }

    /// Every rank begins with the block of its own number, and ends with all.
    pub fn all_gather(len: usize, rank: usize, size: usize) -> Self {
        let step = |number: usize, distance: usize| Step {
            elements: block(len, (rank + 2 * size - number - distance) % size, size),
            kind: Kind::Whole,
        };
        Self {
            outgoing: (0..size - 1).map(|number| step(number, 0)).collect(),
            incoming: (0..size - 1).map(|number| step(number, 1)).collect(),
            lead: 1,
        }
    }

    /// One after the other.
    pub fn all_reduce(len: usize, rank: usize, size: usize) -> Self {
        let mut steps = Self::reduce_scatter(len, rank, size);
        let gather = Self::all_gather(len, rank, size);
        steps.outgoing.extend(gather.outgoing);
        steps.incoming.extend(gather.incoming);
        steps
    }

    /// Along the ring from one rank to the one before it.
    pub fn broadcast(len: usize, rank: usize, size: usize, root: usize) -> Self {
        let whole = Step {
            elements: 0..len,
            kind: Kind::Whole,
        };
        let place = (rank + size - root) % size;
        let step = |exists: bool| exists.then(|| whole.clone()).into_iter().collect();
        Self {
            outgoing: step(place + 1 < size),
            incoming: step(place > 0),
            lead: usize::from(place == 0),
        }
    }
}

/// The elements of one block: the first blocks have one more if they cannot be equal.
pub(super) fn block(len: usize, block: usize, blocks: usize) -> Range<usize> {
    let (base, more) = (len / blocks, len % blocks);
    let start = |block: usize| block * base + block.min(more);
    start(block)..start(block + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_elements_in_order() {
        for len in [0, 1, 7, 12, 100] {
            for blocks in 1..10 {
                let ends: Vec<Range<usize>> = (0..blocks).map(|number| block(len, number, blocks)).collect();
                assert_eq!((ends[0].start, ends[blocks - 1].end), (0, len));
                assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(ends.iter().all(|range| range.len().abs_diff(len / blocks) <= 1));
            }
        }
    }

    #[test]
    fn what_one_rank_sends_is_what_the_next_expects_and_what_came_before() {
        for size in 2..10 {
            for make in [Steps::reduce_scatter, Steps::all_gather, Steps::all_reduce] {
                for rank in 0..size {
                    let own = make(100, rank, size);
                    let next = make(100, (rank + 1) % size, size);
                    assert_eq!(own.outgoing, next.incoming);
                    for (came, goes) in own.incoming.iter().zip(&own.outgoing[1..]) {
                        assert_eq!(came.elements, goes.elements);
                    }
                }
            }
            for rank in 0..size {
                let last = Steps::reduce_scatter(100, rank, size).incoming.pop();
                assert_eq!(last.map(|step| step.elements), Some(block(100, rank, size)));
            }
        }
    }

    #[test]
    fn a_broadcast_goes_along_the_ring() {
        let counts: Vec<(usize, usize)> = (0..4)
            .map(|rank| {
                let steps = Steps::broadcast(5, rank, 4, 2);
                (steps.outgoing.len(), steps.incoming.len())
            })
            .collect();
        assert_eq!(counts, [(1, 1), (0, 1), (1, 0), (1, 1)]);
    }
}
