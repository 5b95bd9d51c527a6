//! What goes around the ring in which order, as data.

use std::ops::Range;

/// Elements that come in one step of a ring, or go out in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub elements: Range<usize>,
    pub kind: Kind,
    /// Of a step that goes out: the step in which the elements came; none for those that this rank has from the start.
    pub source: Option<usize>,
    /// Of a step that comes in: whether the elements are reduced over all ranks with this rank's own.
    pub completes: bool,
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

/// What goes out and what comes in, each in its order.
#[derive(Default)]
pub(super) struct Steps {
    pub outgoing: Vec<Step>,
    pub incoming: Vec<Step>,
}

/// A rank's place in a ring, and what goes around.
#[derive(Clone, Copy)]
pub(super) struct Around {
    pub len: usize,
    pub rank: usize,
    pub size: usize,
    /// How many parts every block has. One goes around after the other, while it is in the cache.
    pub parts: usize,
}

impl Around {
    /// Every rank ends with the reduced block of its own number. Block `b` is reduced in the order of the ranks `b + 1`, `b + 2`,
    /// …, `b`, so that every element has one order, whatever the timing is.
    pub fn reduce_scatter(self) -> Steps {
        self.in_parts(true, false)
    }

    /// Every rank begins with the block of its own number, and ends with all.
    pub fn all_gather(self) -> Steps {
        self.in_parts(false, true)
    }

    /// One after the other.
    pub fn all_reduce(self) -> Steps {
        self.in_parts(true, true)
    }

    fn in_parts(self, reduces: bool, gathers: bool) -> Steps {
        let mut steps = Steps::default();
        for part in 0..self.parts {
            let begin = steps.incoming.len();
            if reduces {
                for number in 0..self.size - 1 {
                    let kind = if number == 0 { Kind::First } else { Kind::Partial };
                    steps.push(self, (part, begin), number + 1, kind, number + 2 == self.size);
                }
            }
            if gathers {
                for number in 0..self.size - 1 {
                    steps.push(self, (part, begin), number, Kind::Whole, false);
                }
            }
        }
        steps
    }

    /// The elements of a part of the block that so many ranks before this one have the number of.
    fn elements(self, part: usize, before: usize) -> Range<usize> {
        let whole = block(
            self.len,
            (self.rank + self.size - before % self.size) % self.size,
            self.size,
        );
        let part = block(whole.len(), part, self.parts);
        whole.start + part.start..whole.start + part.end
    }
}

impl Steps {
    /// In one step a rank sends the block of the rank that is so many before it, and receives the one before that.
    fn push(
        &mut self,
        around: Around,
        (part, begin): (usize, usize),
        before: usize,
        kind: Kind,
        completes: bool,
    ) {
        self.outgoing.push(Step {
            elements: around.elements(part, before),
            kind,
            source: self
                .incoming
                .len()
                .checked_sub(begin + 1)
                .map(|steps| begin + steps),
            completes: false,
        });
        self.incoming.push(Step {
            elements: around.elements(part, before + 1),
            kind,
            source: None,
            completes,
        });
    }

    /// Along the ring from one rank to the one before it.
    pub fn broadcast(len: usize, rank: usize, size: usize, root: usize) -> Self {
        let place = (rank + size - root) % size;
        let step = |exists: bool, source: Option<usize>| {
            let step = Step {
                elements: 0..len,
                kind: Kind::Whole,
                source,
                completes: false,
            };
            exists.then_some(step).into_iter().collect()
        };
        Self {
            outgoing: step(place + 1 < size, (place > 0).then_some(0)),
            incoming: step(place > 0, None),
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
        for (size, parts) in (2..10).flat_map(|size| [(size, 1), (size, 3)]) {
            let around = |rank: usize| Around {
                len: 100,
                rank: rank % size,
                size,
                parts,
            };
            for make in [Around::reduce_scatter, Around::all_gather, Around::all_reduce] {
                for rank in 0..size {
                    let own = make(around(rank));
                    let next = make(around(rank + 1));
                    let compared = |step: &Step| (step.elements.clone(), step.kind);
                    assert!(
                        own.outgoing
                            .iter()
                            .map(compared)
                            .eq(next.incoming.iter().map(compared))
                    );
                    for (index, goes) in own.outgoing.iter().enumerate() {
                        if let Some(source) = goes.source {
                            assert!(source < index && own.incoming[source].elements == goes.elements);
                        }
                    }
                    let from_the_start = own.outgoing.iter().filter(|step| step.source.is_none());
                    assert_eq!(from_the_start.count(), parts);
                }
            }
            for rank in 0..size {
                let steps = around(rank).reduce_scatter();
                let complete = steps.incoming.iter().filter(|step| step.completes);
                let complete: Vec<usize> = complete.flat_map(|step| step.elements.clone()).collect();
                assert!(complete.into_iter().eq(block(100, rank, size)));
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
