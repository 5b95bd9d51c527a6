use firebrand_core::Error;

/// The largest count that a number of a state holds exactly.
const MAX_EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;

/// The most counts that a metric keeps, 1 GiB of them.
pub(super) const MAX_COUNTS: usize = 1 << 27;

/// Exact counts that belong to the settings of a metric.
///
/// Nothing is allocated before something was counted, so that a metric is cheap to build. Counts under different settings
/// have no sum, and merging cannot fail: what comes of it has no counts, hence no value, for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Counts {
    /// How often each thing was seen; no entries when nothing was.
    Known(Vec<u64>),
    /// Counts under different settings were merged.
    Mixed,
}

impl Default for Counts {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

impl Counts {
    /// The counts, unless they are mixed or nothing was counted.
    pub(super) fn get(&self) -> Option<&[u64]> {
        match self {
            Self::Known(counts) if !counts.is_empty() => Some(counts),
            _ => None,
        }
    }

    /// Adds `counts`.
    pub(super) fn add(&mut self, counts: Vec<u64>) {
        self.merge(Self::Known(counts), true);
    }

    /// Adds what `other` has counted.
    pub(super) fn merge(&mut self, other: Self, same_settings: bool) {
        match (&mut *self, other) {
            (Self::Known(own), Self::Known(other)) if same_settings => {
                if own.is_empty() {
                    *own = other;
                } else {
                    own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
                }
            }
            _ => *self = Self::Mixed,
        }
    }

    /// The counts as numbers; mixed counts are one not-a-number.
    pub(super) fn state(&self) -> Vec<f64> {
        match self {
            Self::Known(counts) => counts.iter().map(|count| *count as f64).collect(),
            Self::Mixed => vec![f64::NAN],
        }
    }

    /// The counts that a state holds, `len` of them or none, for `check` to look at.
    pub(super) fn from_state(
        metric: &'static str,
        state: &[f64],
        len: Option<usize>,
        check: impl FnOnce(&[u64]) -> Result<(), String>,
    ) -> Result<Self, Error> {
        let refuse = |reason: String| Error::State {
            what: format!("the metric {metric}"),
            reason,
        };
        if state.is_empty() {
            return Ok(Self::default());
        }
        if let [number] = state
            && number.is_nan()
        {
            return Ok(Self::Mixed);
        }
        if len != Some(state.len()) {
            let expected = len.map_or("another number of".to_owned(), |len| len.to_string());
            return Err(refuse(format!(
                "it has {} counts, and this metric has {expected}; build the metric with the options that it had",
                state.len()
            )));
        }
        let read = state.iter().map(|number| {
            let whole = number.fract() == 0.0 && (0.0..=MAX_EXACT).contains(number);
            if whole {
                Ok(*number as u64)
            } else {
                Err(refuse(format!("{number} is not a count")))
            }
        });
        let counts = read.collect::<Result<Vec<u64>, Error>>()?;
        check(&counts).map_err(refuse)?;
        Ok(Self::Known(counts))
    }
}

/// A ratio of counts, or `otherwise` for nothing out of nothing.
pub(super) fn ratio(part: f64, whole: f64, otherwise: f64) -> f64 {
    if whole == 0.0 { otherwise } else { part / whole }
}
