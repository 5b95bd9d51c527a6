use std::convert::Infallible;

use firebrand_core::{SeedStream, seed_from};
use rand::{Rng, SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

/// The generator for a seed: ChaCha8 whose key is the seed in little-endian bytes, then zeros.
///
/// The key is spelled out here since `seed_from_u64` may change with the version of its crate.
fn generator(seed: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (to, from) in key.iter_mut().zip(seed.to_le_bytes()) {
        *to = from;
    }
    ChaCha8Rng::from_seed(key)
}

/// A number in `0..bound`, each with the same probability; 0 if `bound` is 0.
///
/// Lemire, "Fast Random Integer Generation in an Interval", 2019: the high half of a product of 64 random bits and the
/// bound, with the few low halves rejected that would make some numbers more probable.
fn draw_below(generator: &mut impl Rng, bound: u64) -> u64 {
    let mut product = u128::from(generator.next_u64()) * u128::from(bound);
    if (product as u64) < bound {
        let rejected = bound.wrapping_neg() % bound;
        while (product as u64) < rejected {
            product = u128::from(generator.next_u64()) * u128::from(bound);
        }
    }
    (product >> 64) as u64
}

/// The order of an epoch: a permutation of `0..num_samples` that is a function of seed and epoch.
///
/// Fisher and Yates' shuffle, from the last place down, with draws of our own: the order is the same on every machine and
/// with every version of the crates below. It takes 8 bytes per sample.
pub(crate) fn permutation(num_samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut generator = generator(seed_from(seed, SeedStream::Shuffle, "", &[epoch]));
    let mut order: Vec<usize> = (0..num_samples).collect();
    for place in (1..num_samples).rev() {
        let other = draw_below(&mut generator, place as u64 + 1) as usize;
        order.swap(place, other);
    }
    order
}

/// What the generators of an epoch's samples are drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleSeed {
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
}

/// The random numbers of one sample in one epoch: a function of seed, epoch and sample index, whatever the order, the batch
/// size and the number of workers.
///
/// It is a generator of `rand` 0.10 (`rand::Rng` is implemented), and has the few draws that augmentation needs. It costs
/// nothing until the first draw.
///
/// ```
/// use firebrand_trainer::data::SampleRng;
///
/// let mut rng = SampleRng::new(7, 0, 12);
/// let flip = rng.chance(0.5);
/// let angle = rng.uniform(-10.0, 10.0);
/// assert_eq!(flip, SampleRng::new(7, 0, 12).chance(0.5));
/// assert!((-10.0..10.0).contains(&angle));
/// ```
#[derive(Clone, Debug)]
pub struct SampleRng {
    seed: SampleSeed,
    sample: usize,
    generator: Option<ChaCha8Rng>,
}

impl SampleRng {
    /// The generator of sample `sample` in epoch `epoch` of a run with seed `seed`.
    pub fn new(seed: u64, epoch: u64, sample: usize) -> Self {
        Self::of(SampleSeed { seed, epoch }, sample)
    }

    pub(crate) fn of(seed: SampleSeed, sample: usize) -> Self {
        Self {
            seed,
            sample,
            generator: None,
        }
    }

    /// The index of the sample in the dataset.
    pub fn sample(&self) -> usize {
        self.sample
    }

    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.seed.epoch
    }

    /// A number in `low..high`, uniformly; `low` if the range is empty.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = self.unit();
        if low < high {
            // The product may round up to `high`.
            (low + (high - low) * unit).min(high.next_down())
        } else {
            low
        }
    }

    /// `true` with a probability; never for 0 and less, always for 1 and more.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number in `0..bound`, each with the same probability; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        draw_below(self.generator(), bound as u64) as usize
    }

    /// A number from the normal distribution, by Box and Muller's transform.
    pub fn normal(&mut self, mean: f64, standard_deviation: f64) -> f64 {
        // 1 - [0, 1) is never 0, whose logarithm is not finite.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.unit();
        mean + standard_deviation * radius * angle.cos()
    }

    /// A number in `[0, 1)`: 53 random bits.
    fn unit(&mut self) -> f64 {
        (self.generator().next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn generator(&mut self) -> &mut ChaCha8Rng {
        let (SampleSeed { seed, epoch }, sample) = (self.seed, self.sample as u64);
        self.generator
            .get_or_insert_with(|| generator(seed_from(seed, SeedStream::Sample, "", &[epoch, sample])))
    }
}

impl TryRng for SampleRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.generator().try_next_u32()
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.generator().try_next_u64()
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.generator().try_fill_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_order_of_an_epoch_never_changes() {
        // A literal: checkpoints of another build go on in this order.
        assert_eq!(permutation(10, 42, 3), [9, 3, 6, 2, 4, 7, 5, 0, 8, 1]);
    }

    #[test]
    fn an_order_is_a_permutation_that_differs_by_seed_and_epoch() {
        let orders: HashSet<Vec<usize>> = (0..4)
            .flat_map(|seed| (0..4).map(move |epoch| permutation(100, seed, epoch)))
            .collect();
        assert_eq!(orders.len(), 16);
        for mut order in orders {
            order.sort_unstable();
            assert_eq!(order, (0..100).collect::<Vec<_>>());
        }
        assert_eq!(permutation(0, 1, 1), Vec::<usize>::new());
        assert_eq!(permutation(1, 1, 1), [0]);
    }

    #[test]
    fn every_order_of_three_is_as_frequent_as_the_others() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..6_000 {
            *counts.entry(permutation(3, 0, epoch)).or_insert(0_i32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // Six cells of 1000 expected: chi-square with 5 degrees of freedom is below 20.5 with probability 0.999.
        let chi_square: f64 = counts
            .values()
            .map(|count| f64::from(count - 1_000).powi(2) / 1_000.0)
            .sum();
        assert!(chi_square < 20.5, "{counts:?}");
    }

    #[test]
    fn bounded_draws_are_in_range_also_for_bounds_that_reject_much() {
        let mut generator = generator(1);
        for bound in [1, 2, 3, 10, (1 << 63) + 1, u64::MAX] {
            for _ in 0..100 {
                assert!(draw_below(&mut generator, bound) < bound);
            }
        }
        assert_eq!(draw_below(&mut generator, 0), 0);
    }

    #[test]
    fn draws_have_their_moments() {
        let mut rng = SampleRng::new(1, 0, 0);
        let count = 20_000;
        let draws: Vec<f64> = (0..count).map(|_| rng.normal(2.0, 3.0)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(count);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(count);
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
        assert!((variance.sqrt() - 3.0).abs() < 0.1, "{variance}");
        let heads = (0..count).filter(|_| rng.chance(0.25)).count();
        assert!((4_700..5_300).contains(&heads), "{heads}");
        assert!(!rng.chance(0.0) && rng.chance(1.0));
        assert_eq!(rng.uniform(3.0, 3.0), 3.0);
        assert!((0..1_000).all(|_| (-1.0..1.0).contains(&rng.uniform(-1.0, 1.0))));
        assert!((0..1_000).all(|_| rng.below(7) < 7));
    }

    #[test]
    fn numbers_of_a_sample_depend_on_seed_epoch_and_sample_alone() {
        let first = |seed, epoch, sample| SampleRng::new(seed, epoch, sample).next_u64();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let all = HashSet::from([first(1, 2, 3), first(2, 2, 3), first(1, 3, 3), first(1, 2, 4)]);
        assert_eq!(all.len(), 4);
    }
}
