use firebrand_core::Error;

use super::area::{area, groups};
use crate::metrics::counts::Counts;

/// What was counted of every sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tally {
    /// All of it: for each sample the right class, then its scores.
    Exact(Vec<f64>),
    /// For each class and bin, from the lowest: the negatives and the positives.
    Binned(Counts),
    /// Samples under different settings, which have no common area.
    Mixed,
}

/// The shape of a tally.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Layout {
    /// The classes that the targets have.
    pub(super) num_classes: usize,
    /// Whether a sample has the score of class 1 alone, instead of one for each class.
    pub(super) binary: bool,
    /// The number of bins; `None` keeps every score.
    pub(super) bins: Option<usize>,
}

impl Layout {
    pub(super) fn empty(self) -> Tally {
        match self.bins {
            None => Tally::Exact(Vec::new()),
            Some(_) => Tally::Binned(Counts::default()),
        }
    }

    /// The scores of a sample.
    pub(super) fn num_scores(self) -> usize {
        if self.binary { 1 } else { self.num_classes }
    }

    /// Whether a sample of the class `target` is a positive of the score `column`.
    pub(super) fn positive(self, target: usize, column: usize) -> bool {
        target == if self.binary { 1 } else { column }
    }

    /// Where in the counts a sample lies; scores are from 0 to 1.
    pub(super) fn cell(self, bins: usize, column: usize, score: f64, positive: bool) -> usize {
        let bin = ((score * bins as f64) as usize).min(bins.saturating_sub(1));
        2 * (column * bins + bin) + usize::from(positive)
    }

    /// The number of counts, if there are bins.
    pub(super) fn num_cells(self) -> Option<usize> {
        self.bins?.checked_mul(self.num_scores())?.checked_mul(2)
    }

    /// The areas of the scores, one against the rest; not-a-number for those that have none.
    pub(super) fn areas(self, tally: &Tally) -> Vec<f64> {
        match tally {
            Tally::Exact(rows) => {
                let samples = |column: usize| {
                    let rows = rows.chunks_exact(1 + self.num_scores());
                    rows.map(|row| (row[1 + column], self.positive(row[0] as usize, column)))
                        .collect()
                };
                (0..self.num_scores())
                    .map(|column| area(groups(samples(column))))
                    .collect()
            }
            Tally::Binned(counts) => {
                let of_column = |cells: &[u64]| area(cells.chunks_exact(2).map(|bin| (bin[0], bin[1])));
                let len = 2 * self.bins.unwrap_or(1);
                counts
                    .get()
                    .unwrap_or_default()
                    .chunks_exact(len.max(2))
                    .map(of_column)
                    .collect()
            }
            Tally::Mixed => Vec::new(),
        }
    }

    /// The tally that a state holds.
    pub(super) fn read(self, metric: &'static str, state: &[f64]) -> Result<Tally, Error> {
        if let [number] = state
            && number.is_nan()
        {
            return Ok(Tally::Mixed);
        }
        if self.bins.is_some() {
            return Ok(Tally::Binned(Counts::from_state(
                metric,
                state,
                self.num_cells(),
                |_| Ok(()),
            )?));
        }
        let refuse = |reason: String| {
            Err(Error::State {
                what: format!("the metric {metric}"),
                reason,
            })
        };
        let width = 1 + self.num_scores();
        if !state.len().is_multiple_of(width) {
            return refuse(format!(
                "its {} numbers are not rows of a class and {} scores",
                state.len(),
                width - 1
            ));
        }
        for row in state.chunks_exact(width) {
            let is_class = row[0].fract() == 0.0 && (0.0..self.num_classes as f64).contains(&row[0]);
            if !is_class || row.iter().any(|number| number.is_nan()) {
                return refuse(format!(
                    "{row:?} is not a class of {} and its scores",
                    self.num_classes
                ));
            }
        }
        Ok(Tally::Exact(state.to_vec()))
    }
}

impl Tally {
    pub(super) fn merge(&mut self, other: Self, same_settings: bool) {
        match (&mut *self, other) {
            (Self::Exact(own), Self::Exact(other)) if same_settings => own.extend(other),
            (Self::Binned(own), Self::Binned(other)) if same_settings => own.merge(other, true),
            _ => *self = Self::Mixed,
        }
    }

    pub(super) fn state(&self) -> Vec<f64> {
        match self {
            Self::Exact(rows) => rows.clone(),
            Self::Binned(counts) => counts.state(),
            Self::Mixed => vec![f64::NAN],
        }
    }
}
