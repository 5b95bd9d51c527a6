use burn::tensor::FloatDType;
use firebrand_core::PathPattern;
use serde::{Deserialize, Serialize};

/// In which dtype weights are kept and steps compute.
///
/// | | weights | steps | loss scaler |
/// |---|---|---|---|
/// | `F32`, `F64` | float32, float64 | the same | no |
/// | `Bf16Mixed` | float32 | bfloat16 | no |
/// | `F16Mixed` | float32 | float16 | yes |
/// | `Bf16True` | bfloat16 | bfloat16 | no |
/// | `F16True` | float16 | float16 | only on request, and an error without |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Precision {
    /// Float32 throughout.
    #[default]
    #[serde(rename = "32-true")]
    F32,
    /// Float64 throughout.
    #[serde(rename = "64-true")]
    F64,
    /// Float32 weights, steps in bfloat16: the range of float32 with 8 bits of precision.
    #[serde(rename = "bf16-mixed")]
    Bf16Mixed,
    /// Float32 weights, steps in float16 with a loss scaler: 11 bits of precision, and nothing above 65504.
    #[serde(rename = "16-mixed")]
    F16Mixed,
    /// Bfloat16 throughout. Updates that are less than a 256th of a weight are lost.
    #[serde(rename = "bf16-true")]
    Bf16True,
    /// Float16 throughout.
    #[serde(rename = "16-true")]
    F16True,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::F64,
        Self::Bf16Mixed,
        Self::F16Mixed,
        Self::Bf16True,
        Self::F16True,
    ];

    /// The dtype in which weights are kept.
    pub fn master(self) -> FloatDType {
        match self {
            Self::F32 | Self::Bf16Mixed | Self::F16Mixed => FloatDType::F32,
            Self::F64 => FloatDType::F64,
            Self::Bf16True => FloatDType::BF16,
            Self::F16True => FloatDType::F16,
        }
    }

    /// The dtype in which steps compute.
    pub fn compute(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::F64 => FloatDType::F64,
            Self::Bf16Mixed | Self::Bf16True => FloatDType::BF16,
            Self::F16Mixed | Self::F16True => FloatDType::F16,
        }
    }

    /// The dtype of tensors that name none, such as the constants that layers and losses make for themselves: that of the losses.
    pub fn constants(self) -> FloatDType {
        match self.is_mixed() {
            true => self.master(),
            false => self.compute(),
        }
    }

    /// Whether steps compute in another dtype than weights are kept in.
    pub fn is_mixed(self) -> bool {
        matches!(self, Self::Bf16Mixed | Self::F16Mixed)
    }

    /// Lightning's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "32-true",
            Self::F64 => "64-true",
            Self::Bf16Mixed => "bf16-mixed",
            Self::F16Mixed => "16-mixed",
            Self::Bf16True => "bf16-true",
            Self::F16True => "16-true",
        }
    }
}

/// A precision, and which parameters are left out of it.
#[derive(Clone, Debug, Default)]
pub struct PrecisionPolicy {
    /// The precision of everything else.
    pub precision: Precision,
    /// The parameters that steps use in the dtype in which they are kept.
    pub keep_full: Vec<PathPattern>,
}

impl PrecisionPolicy {
    /// The dtype in which parameters are kept.
    pub fn master(&self) -> FloatDType {
        self.precision.master()
    }

    /// The dtype of batches, and of parameters that are not left out.
    pub fn compute(&self) -> FloatDType {
        self.precision.compute()
    }

    /// The dtype in which a step uses the parameter with a path.
    pub fn compute_of(&self, path: &str) -> FloatDType {
        match self.keep_full.iter().any(|pattern| pattern.matches(path)) {
            true => self.precision.master(),
            false => self.precision.compute(),
        }
    }
}

impl From<Precision> for PrecisionPolicy {
    fn from(precision: Precision) -> Self {
        Self {
            precision,
            keep_full: Vec::new(),
        }
    }
}
