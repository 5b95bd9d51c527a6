use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Element;

/// Where an element is added up: 16-bit floats in float32, everything else in its own type.
pub(super) trait Reduced: Element {
    type Wide: Pod;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn product(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(sum: Self::Wide, count: usize) -> Self::Wide;

    /// Whether converting many at once, with the two functions below, is faster than one by one.
    const CONVERT_MANY: bool = false;
    fn widen_all(elements: &[Self], wide: &mut [Self::Wide]) {
        for (wide, element) in wide.iter_mut().zip(elements) {
            *wide = element.widen();
        }
    }
    fn narrow_all(wide: &[Self::Wide], elements: &mut [Self]) {
        for (element, wide) in elements.iter_mut().zip(wide) {
            *element = Self::narrow(*wide);
        }
    }
}

macro_rules! floats {
    ($($element:ty, $wide:ty, $widen:expr, $narrow:expr $(, $many:ident)?;)+) => {
        $(impl Reduced for $element {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide { $widen(self) }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self { $narrow(wide) }
            #[inline(always)]
            fn sum(a: $wide, b: $wide) -> $wide { a + b }
            #[inline(always)]
            fn min(a: $wide, b: $wide) -> $wide { if b < a || b.is_nan() { b } else { a } }
            #[inline(always)]
            fn max(a: $wide, b: $wide) -> $wide { if b > a || b.is_nan() { b } else { a } }
            #[inline(always)]
            fn product(a: $wide, b: $wide) -> $wide { a * b }
            #[inline(always)]
            fn divide(sum: $wide, count: usize) -> $wide { sum / count as $wide }
            $($many!();)?
        })+
    };
}

/// As `bf16::to_f32`, but for the quiet bit of a not-a-number, which `narrow_bf16` sets.
#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// As `bf16::from_f32`, to nearest, ties to even, in a form that compiles to vector instructions.
#[inline(always)]
fn narrow_bf16(wide: f32) -> bf16 {
    let bits = wide.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if wide.is_nan() { bits | 0x40_0000 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

/// For types that the processor converts by the vector, as x86-64 does `f16`.
macro_rules! convert_many {
    () => {
        const CONVERT_MANY: bool = true;
        fn widen_all(elements: &[Self], wide: &mut [f32]) {
            elements.convert_to_f32_slice(wide);
        }
        fn narrow_all(wide: &[f32], elements: &mut [Self]) {
            elements.convert_from_f32_slice(wide);
        }
    };
}

floats! {
    f64, f64, |value| value, |wide| wide;
    f32, f32, |value| value, |wide| wide;
    f16, f32, f16::to_f32, f16::from_f32, convert_many;
    bf16, f32, widen_bf16, narrow_bf16;
}

macro_rules! integers {
    ($($element:ty),+) => {
        $(impl Reduced for $element {
            type Wide = $element;
            #[inline(always)]
            fn widen(self) -> Self { self }
            #[inline(always)]
            fn narrow(wide: Self) -> Self { wide }
            #[inline(always)]
            fn sum(a: Self, b: Self) -> Self { a.wrapping_add(b) }
            #[inline(always)]
            fn min(a: Self, b: Self) -> Self { Ord::min(a, b) }
            #[inline(always)]
            fn max(a: Self, b: Self) -> Self { Ord::max(a, b) }
            #[inline(always)]
            fn product(a: Self, b: Self) -> Self { a.wrapping_mul(b) }
            // `ReduceOp::check` refuses the mean of integers before anything is reduced.
            #[inline(always)]
            fn divide(sum: Self, _count: usize) -> Self { sum }
        })+
    };
}

integers!(i64, i32, i8, u64, u32, u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_converted_as_by_its_library() {
        for high in 0..=u16::MAX {
            let value = bf16::from_bits(high);
            assert_eq!(
                narrow_bf16(widen_bf16(value)).to_bits(),
                bf16::from_f32(value.to_f32()).to_bits()
            );
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let wide = f32::from_bits(u32::from(high) << 16 | low);
                assert_eq!(narrow_bf16(wide).to_bits(), bf16::from_f32(wide).to_bits());
            }
        }
    }
}
