use std::fmt;

use half::{bf16, f16};

/// The type of the elements of a [`Buffer`](crate::Buffer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE 754 16-bit float.
    F16,
    /// 16-bit float with the exponent of a 32-bit one.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 8-bit integer, also used for plain bytes.
    U8,
}

impl DType {
    /// Every type.
    pub const ALL: [Self; 10] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I64,
        Self::I32,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U8,
    ];

    /// The size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }

    /// The type with a number, as [`code`](Self::code) gives it.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// A number for the type, the same on every rank.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name: `f32`, `bf16`, `u8`, …
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U8 => "u8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A Rust type that can be an element.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The type's name here.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($element:ty => $dtype:ident),+) => {
        $(impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        })+
    };
}

elements!(
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, i8 => I8, u64 => U64, u32 => U32, u8 => U8
);
