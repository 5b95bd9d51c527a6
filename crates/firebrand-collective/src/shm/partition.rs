use std::ops::Range;

/// Borders lie at multiples of a cache line, so that no line is written by two ranks.
const LINE: usize = 64;

/// Bytes divided into blocks of about one size, to be worked on one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    total: usize,
    len: usize,
}

impl Blocks {
    /// Blocks of at most `most` bytes, a multiple of a line.
    pub(super) fn new(total: usize, most: usize) -> Self {
        let count = total.div_ceil(most).max(1);
        let len = total.div_ceil(count).next_multiple_of(LINE).max(LINE);
        Self { total, len }
    }

    pub(super) fn count(self) -> usize {
        self.total.div_ceil(self.len)
    }

    pub(super) fn range(self, block: usize) -> Range<usize> {
        let start = (block * self.len).min(self.total);
        start..(start + self.len).min(self.total)
    }
}

/// The part of a range that belongs to one of several ranks.
pub(super) fn part(range: &Range<usize>, rank: usize, ranks: usize) -> Range<usize> {
    let len = range.len().div_ceil(ranks).next_multiple_of(LINE);
    let start = (range.start + rank * len).min(range.end);
    start..(start + len).min(range.end)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_and_parts_cover_everything_once_at_borders_of_lines(
            total in 0usize..100_000, most in 1usize..200, ranks in 1usize..10
        ) {
            let most = most * LINE;
            let blocks = Blocks::new(total, most);
            let mut at = 0;
            for block in 0..blocks.count() {
                let range = blocks.range(block);
                prop_assert!(!range.is_empty() && range.len() <= most);
                for rank in 0..ranks {
                    let part = part(&range, rank, ranks);
                    prop_assert!(part.is_empty() || part.start.is_multiple_of(LINE));
                    prop_assert_eq!(part.start, at);
                    at = part.end;
                }
            }
            prop_assert_eq!(at, total);
        }
    }
}
