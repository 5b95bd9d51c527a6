use firebrand_core::Reduce;
use serde::{Deserialize, Serialize};

/// What values of one name add up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    reduce: Reduce,
    value: f64,
    weight: f64,
}

/// The bits of the sums, so that they are exact in JSON and may be infinite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedSums {
    reduce: Reduce,
    value: u64,
    weight: u64,
}

impl Sums {
    pub(super) fn new(reduce: Reduce) -> Self {
        let value = match reduce {
            Reduce::Mean | Reduce::Sum => 0.0,
            Reduce::Min => f64::INFINITY,
            Reduce::Max => f64::NEG_INFINITY,
        };
        Self {
            reduce,
            value,
            weight: 0.0,
        }
    }

    pub(super) fn add(&mut self, value: f64, weight: f64) {
        match self.reduce {
            // A value that does not count may be anything, also not a number.
            Reduce::Mean if weight == 0.0 => {}
            Reduce::Mean => self.value += value * weight,
            Reduce::Sum => self.value += value,
            // Not-a-number wins, so that it is seen.
            Reduce::Min => {
                self.value = if value.is_nan() {
                    value
                } else {
                    self.value.min(value)
                }
            }
            Reduce::Max => {
                self.value = if value.is_nan() {
                    value
                } else {
                    self.value.max(value)
                }
            }
        }
        self.weight += weight;
    }

    pub(super) fn value(&self) -> f64 {
        if self.reduce == Reduce::Mean {
            self.value / self.weight
        } else {
            self.value
        }
    }

    /// Adds what other sums of the same kind have.
    pub(super) fn merge(&mut self, other: Self) {
        match self.reduce {
            Reduce::Mean | Reduce::Sum => self.value += other.value,
            Reduce::Min | Reduce::Max if other.weight == 0.0 && other.value.is_infinite() => {}
            Reduce::Min | Reduce::Max => {
                self.add(other.value, 0.0);
            }
        }
        self.weight += other.weight;
    }
}

impl From<Sums> for SavedSums {
    fn from(sums: Sums) -> Self {
        Self {
            reduce: sums.reduce,
            value: sums.value.to_bits(),
            weight: sums.weight.to_bits(),
        }
    }
}

impl From<SavedSums> for Sums {
    fn from(saved: SavedSums) -> Self {
        Self {
            reduce: saved.reduce,
            value: f64::from_bits(saved.value),
            weight: f64::from_bits(saved.weight),
        }
    }
}
