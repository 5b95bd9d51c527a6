mod element;

use std::fmt;

use bytemuck::Zeroable;
use half::{bf16, f16};

use element::Reduced;

use crate::{DType, Element, Error, Result};

/// How elements of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks; not for integers.
    Mean,
    /// The smallest; not-a-number if one is.
    Min,
    /// The largest; not-a-number if one is.
    Max,
    /// The product. Integers wrap.
    Product,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The operation with a number, as [`code`](Self::code) gives it.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// A number for the operation, the same on every rank.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name: `sum`, `mean`, `min`, `max`, `product`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }

    /// Refuses an operation that has no meaning for a type.
    ///
    /// # Errors
    ///
    /// For the mean of integers.
    pub fn check(self, dtype: DType) -> Result<()> {
        let float = matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
        if self == Self::Mean && !float {
            return Err(Error::argument(format!(
                "the mean of {dtype} is no {dtype}; reduce with the sum, and divide"
            )));
        }
        Ok(())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Calls a function for the Rust type of a `DType`.
macro_rules! for_dtype {
    ($dtype:expr, $function:ident ( $($argument:expr),* )) => {
        match $dtype {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F32 => $function::<f32>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            DType::I64 => $function::<i64>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::I8 => $function::<i8>($($argument),*),
            DType::U64 => $function::<u64>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
        }
    };
}

/// What several ranks have for the same elements, reduced in their order: `((first ∘ second) ∘ third) …`.
///
/// `target` holds the elements of the rank with number `own`, and takes the result; `others` are those of all other ranks, in
/// the order of the ranks. All have the same length, aligned for their type. 16-bit floats are added up in float32 over all ranks
/// and rounded once.
///
/// # Errors
///
/// If the lengths differ or the operation has no meaning for the type.
pub fn reduce_into(
    target: &mut [u8],
    own: usize,
    others: &[&[u8]],
    dtype: DType,
    op: ReduceOp,
) -> Result<()> {
    op.check(dtype)?;
    if others.iter().any(|other| other.len() != target.len()) || own > others.len() {
        return Err(Error::argument("the ranks' parts have different lengths"));
    }
    for_dtype!(dtype, reduce_elements(target, own, others, op))
}

/// Divides elements by a number of ranks, as the mean does. Integers stay as they are.
///
/// # Errors
///
/// If the bytes are no elements of the type.
pub fn scale(target: &mut [u8], dtype: DType, count: usize) -> Result<()> {
    for_dtype!(dtype, divide_elements(target, count))
}

fn divide_elements<E: Reduced>(target: &mut [u8], count: usize) -> Result<()> {
    for element in cast_mut::<E>(target)? {
        *element = E::narrow(E::divide(element.widen(), count));
    }
    Ok(())
}

fn reduce_elements<E: Reduced>(target: &mut [u8], own: usize, others: &[&[u8]], op: ReduceOp) -> Result<()> {
    let target = cast_mut::<E>(target)?;
    let others: Vec<&[E]> = others.iter().map(|other| cast(other)).collect::<Result<_>>()?;
    let ranks = others.len() + 1;
    match op {
        ReduceOp::Sum => fold(target, own, &others, E::sum, |sum| sum),
        ReduceOp::Mean => fold(target, own, &others, E::sum, |sum| E::divide(sum, ranks)),
        ReduceOp::Min => fold(target, own, &others, E::min, |sum| sum),
        ReduceOp::Max => fold(target, own, &others, E::max, |sum| sum),
        ReduceOp::Product => fold(target, own, &others, E::product, |sum| sum),
    }
    Ok(())
}

/// Elements that are reduced before going on to the next: their sums stay in the first-level cache.
const BLOCK: usize = 1024;

fn fold<E: Reduced>(
    target: &mut [E],
    own: usize,
    others: &[&[E]],
    combine: impl Fn(E::Wide, E::Wide) -> E::Wide + Copy,
    finish: impl Fn(E::Wide) -> E::Wide + Copy,
) {
    match others {
        [] => target
            .iter_mut()
            .for_each(|element| *element = E::narrow(finish(element.widen()))),
        // The most common case in one pass.
        [other] if !E::CONVERT_MANY => {
            for (element, other) in target.iter_mut().zip(*other) {
                let (first, second) = if own == 0 {
                    (element.widen(), other.widen())
                } else {
                    (other.widen(), element.widen())
                };
                *element = E::narrow(finish(combine(first, second)));
            }
        }
        _ => {
            let mut sums = [E::Wide::zeroed(); BLOCK];
            let mut more = [E::Wide::zeroed(); BLOCK];
            for start in (0..target.len()).step_by(BLOCK) {
                let range = start..(start + BLOCK).min(target.len());
                let sums = &mut sums[..range.len()];
                let first: &[E] = if own == 0 { target } else { others[0] };
                E::widen_all(&first[range.clone()], sums);
                for rank in 1..=others.len() {
                    let part: &[E] = match rank.cmp(&own) {
                        std::cmp::Ordering::Less => others[rank],
                        std::cmp::Ordering::Equal => target,
                        std::cmp::Ordering::Greater => others[rank - 1],
                    };
                    let part = &part[range.clone()];
                    if E::CONVERT_MANY {
                        let more = &mut more[..part.len()];
                        E::widen_all(part, more);
                        for (sum, element) in sums.iter_mut().zip(more) {
                            *sum = combine(*sum, *element);
                        }
                    } else {
                        for (sum, element) in sums.iter_mut().zip(part) {
                            *sum = combine(*sum, element.widen());
                        }
                    }
                }
                sums.iter_mut().for_each(|sum| *sum = finish(*sum));
                E::narrow_all(sums, &mut target[range]);
            }
        }
    }
}

fn cast<E: Element>(bytes: &[u8]) -> Result<&[E]> {
    bytemuck::try_cast_slice(bytes)
        .map_err(|reason| Error::argument(format!("the bytes are no {}: {reason}", E::DTYPE)))
}

fn cast_mut<E: Element>(bytes: &mut [u8]) -> Result<&mut [E]> {
    bytemuck::try_cast_slice_mut(bytes)
        .map_err(|reason| Error::argument(format!("the bytes are no {}: {reason}", E::DTYPE)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Buffer;

    /// The ranks' elements reduced on the rank `own`.
    fn reduced<E: Element>(ranks: &[Vec<E>], own: usize, op: ReduceOp) -> Vec<E> {
        let mut target = Buffer::from_slice(&ranks[own]);
        let others: Vec<Buffer> = (0..ranks.len())
            .filter(|rank| *rank != own)
            .map(|rank| Buffer::from_slice(&ranks[rank]))
            .collect();
        let others: Vec<&[u8]> = others.iter().map(Buffer::bytes).collect();
        reduce_into(target.bytes_mut(), own, &others, E::DTYPE, op).unwrap();
        target.as_slice::<E>().unwrap().to_vec()
    }

    proptest! {
        #[test]
        fn every_rank_reduces_to_the_same_bits_in_the_order_of_the_ranks(
            ranks in (1usize..6, 0usize..2500).prop_flat_map(|(ranks, len)| {
                prop::collection::vec(prop::collection::vec(-1e6f32..1e6, len), ranks)
            })
        ) {
            let expected: Vec<f32> = (0..ranks[0].len())
                .map(|i| ranks[1..].iter().fold(ranks[0][i], |sum, rank| sum + rank[i]))
                .collect();
            for own in 0..ranks.len() {
                prop_assert_eq!(&reduced(&ranks, own, ReduceOp::Sum), &expected);
            }
        }

        #[test]
        fn sixteen_bit_floats_are_rounded_once(values in prop::collection::vec(-100f32..100.0, 2..9)) {
            let ranks: Vec<Vec<bf16>> = values.iter().map(|value| vec![bf16::from_f32(*value)]).collect();
            let sum = ranks.iter().skip(1).fold(ranks[0][0].to_f32(), |sum, rank| sum + rank[0].to_f32());
            let found = reduced(&ranks, ranks.len() / 2, ReduceOp::Mean);
            prop_assert_eq!(found[0], bf16::from_f32(sum / ranks.len() as f32));
        }
    }

    #[test]
    fn operations() {
        let ranks = [vec![1i32, -5], vec![3, i32::MAX], vec![-2, 7]];
        for own in 0..3 {
            assert_eq!(reduced(&ranks, own, ReduceOp::Min), [-2, -5]);
            assert_eq!(reduced(&ranks, own, ReduceOp::Max), [3, i32::MAX]);
            assert_eq!(reduced(&ranks, own, ReduceOp::Product)[0], -6);
            assert_eq!(
                reduced(&ranks, own, ReduceOp::Sum)[1],
                (-5i32).wrapping_add(i32::MAX).wrapping_add(7)
            );
        }
        for own in 0..2 {
            let found = reduced(&[vec![f32::NAN], vec![1.0]], own, ReduceOp::Max);
            assert!(found[0].is_nan());
        }
    }

    #[test]
    fn f16_is_rounded_once_whatever_the_number_of_ranks() {
        for ranks in 1..5usize {
            let ranks: Vec<Vec<f16>> = (0..ranks)
                .map(|rank| {
                    (0..3001)
                        .map(|i| f16::from_f32((i * 7 + rank * 13) as f32 / 9.0))
                        .collect()
                })
                .collect();
            let sum = |i: usize| {
                ranks[1..]
                    .iter()
                    .fold(ranks[0][i].to_f32(), |sum, rank| sum + rank[i].to_f32())
            };
            let expected: Vec<f16> = (0..3001).map(|i| f16::from_f32(sum(i))).collect();
            for own in 0..ranks.len() {
                assert_eq!(reduced(&ranks, own, ReduceOp::Sum), expected);
            }
        }
    }

    #[test]
    fn the_mean_of_integers_and_different_lengths_are_refused() {
        assert!(reduce_into(&mut [0; 4], 0, &[&[0; 4]], DType::U8, ReduceOp::Mean).is_err());
        assert!(reduce_into(&mut [0; 4], 0, &[&[0; 3]], DType::U8, ReduceOp::Sum).is_err());
    }
}
