//! The area under the ROC curve: exact from every score, or within bounded memory from bins.

mod area;
mod tally;

use burn::tensor::{Int, Tensor};
use firebrand_core::{Error, Metric};

use self::tally::{Layout, Tally};
use super::MetricError;
use super::counts::MAX_COUNTS;
use super::input::{self, Classified, NOT_A_NUMBER};

const NAME: &str = "Auroc";

/// The area under the ROC curve: how probable it is that a positive sample scores higher than a negative one, where a tie
/// counts one half (the trapezoidal rule; the Mann–Whitney statistic with mid-ranks).
///
/// With several classes it is the mean over the classes of one against the rest. A class without a positive or without a
/// negative sample has no area and is left out; the value is not-a-number when all are.
///
/// It is exact, from every score: 8 bytes for each logit and target, sorted when the value is due. [`bins`](Self::bins)
/// bounds the memory instead.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrand_core::Metric;
/// use firebrand_trainer::metrics::Auroc;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[-2.0], [0.5], [0.5], [3.0]], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 0, 1, 1], &device);
/// assert_eq!(Auroc::binary().update(&logits, &targets)?.compute(), 3.5 / 4.0);
/// # Ok::<(), firebrand_trainer::metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Auroc {
    layout: Layout,
    ignore_index: Option<i64>,
    per_class: bool,
    tally: Tally,
}

/// What the columns of a batch hold.
#[derive(Clone, Copy, PartialEq)]
enum Scores {
    Logits,
    AsTheyAre,
}

impl Auroc {
    /// For targets that are 0 or 1.
    pub fn binary() -> Self {
        Self::of(Layout {
            num_classes: 2,
            binary: true,
            bins: None,
        })
    }

    /// For `num_classes` classes, each against the rest.
    pub fn multiclass(num_classes: usize) -> Self {
        Self::of(Layout {
            num_classes,
            binary: false,
            bins: None,
        })
    }

    fn of(layout: Layout) -> Self {
        Self {
            layout,
            ignore_index: None,
            per_class: false,
            tally: layout.empty(),
        }
    }

    /// Counts probabilities in `bins` bins of equal width instead of keeping them: 16 bytes for each bin and class.
    ///
    /// Probabilities in one bin count as equal, which moves the value by at most half of the share of the pairs of a positive
    /// and a negative sample that lie in one bin. Take 1000 or more if the model is sure of itself: its probabilities crowd in
    /// the outermost bins. Drops what was counted before. Default: exact.
    #[must_use]
    pub fn bins(mut self, bins: usize) -> Self {
        self.layout.bins = Some(bins);
        self.tally = self.layout.empty();
        self
    }

    /// Leaves out rows with this target, such as padding. Default: none.
    #[must_use]
    pub fn ignore_index(mut self, class: i64) -> Self {
        self.ignore_index = Some(class);
        self
    }

    /// Logs the area of each class as well, as `name/class`. Default: only the value.
    #[must_use]
    pub fn per_class(mut self) -> Self {
        self.per_class = true;
        self
    }

    /// Counts the rows of logits and `[samples]` targets. Samples are compared by their probabilities, the softmax of a row.
    ///
    /// The logits are `[samples, num_classes]`; for binary targets `[samples, 2]`, or `[samples, 1]` where the sigmoid gives
    /// the probability of class 1.
    ///
    /// # Errors
    ///
    /// [`MetricError::Shape`] or [`MetricError::Class`] if the batch does not fit, [`MetricError::Value`] if the softmax of a
    /// row is not a number, [`MetricError::Setting`] if an option makes no sense.
    pub fn update(self, logits: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
        self.count(logits, targets, Scores::Logits)
    }

    /// Counts the rows of scores that are compared as they are, such as probabilities, in the shapes that
    /// [`update`](Self::update) takes; of binary scores the last column. Keep to one of the two: without bins, logits
    /// and probabilities are on different scales.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update); with [`bins`](Self::bins) also [`MetricError::Value`] if a score is not from 0 to 1.
    pub fn update_scores(self, scores: &Tensor<2>, targets: &Tensor<1, Int>) -> Result<Self, MetricError> {
        self.count(scores, targets, Scores::AsTheyAre)
    }

    /// The area of each class against the rest, not-a-number for a class that has none; one for binary targets.
    pub fn areas(&self) -> Vec<f64> {
        self.layout.areas(&self.tally)
    }

    fn count(
        mut self,
        scores: &Tensor<2>,
        targets: &Tensor<1, Int>,
        kind: Scores,
    ) -> Result<Self, MetricError> {
        let layout = self.layout;
        let num_cells = self.check()?;
        let columns = scores.dims()[1];
        let input = if kind == Scores::Logits {
            "logits"
        } else {
            "scores"
        };
        let (binary, num_scores) = (layout.binary, layout.num_scores());
        let expected = if binary { columns.clamp(1, 2) } else { num_scores };
        input::logits_fit(NAME, scores.dims(), targets.dims(), Some(expected))?;
        let batch = Classified::read_columns(
            NAME,
            (input, scores),
            targets,
            layout.num_classes,
            self.ignore_index,
        )?;

        let mut exact = Vec::new();
        let mut counts = vec![0; num_cells];
        let mut ranked = Vec::with_capacity(num_scores);
        for (row, scores, target) in batch.rows() {
            ranked.clear();
            match (kind, binary, scores) {
                (Scores::Logits, true, [no, yes]) => ranked.push(yes - no),
                (_, true, _) => ranked.extend(scores.last()),
                (Scores::Logits, false, _) => ranked.extend(area::log_softmax(scores)),
                (Scores::AsTheyAre, false, _) => ranked.extend(scores),
            }
            let value = |value: f64, fix: &'static str| {
                Err(MetricError::Value {
                    metric: NAME,
                    input,
                    index: row * columns,
                    value,
                    fix,
                })
            };
            if ranked.iter().any(|score| score.is_nan()) {
                return value(f64::NAN, NOT_A_NUMBER);
            }
            let Some(bins) = layout.bins else {
                exact.push(target as f64);
                exact.extend(&ranked);
                continue;
            };
            for (column, score) in ranked.iter().enumerate() {
                let probability = match kind {
                    Scores::AsTheyAre => *score,
                    Scores::Logits if binary => area::sigmoid(*score),
                    Scores::Logits => score.exp(),
                };
                if !(0.0..=1.0).contains(&probability) {
                    return value(
                        probability,
                        "bins need probabilities from 0 to 1: give logits to `update`",
                    );
                }
                counts[layout.cell(bins, column, probability, layout.positive(target, column))] += 1;
            }
        }
        match &mut self.tally {
            Tally::Exact(rows) => rows.extend(exact),
            Tally::Binned(own) => own.add(counts),
            Tally::Mixed => {}
        }
        Ok(self)
    }

    /// The number of counts that a batch needs.
    fn check(&self) -> Result<usize, MetricError> {
        if self.layout.num_classes < 2 {
            return Err(MetricError::Setting {
                metric: NAME,
                option: "num_classes",
                value: self.layout.num_classes.to_string(),
                fix: "one class has no rest to be told from: take 2 or more, or `Auroc::binary`".to_owned(),
            });
        }
        let Some(bins) = self.layout.bins else {
            return Ok(0);
        };
        match self.layout.num_cells() {
            Some(cells) if bins >= 2 && cells <= MAX_COUNTS => Ok(cells),
            _ => Err(MetricError::Setting {
                metric: NAME,
                option: "bins",
                value: bins.to_string(),
                fix: format!("take from 2 bins to {} for all classes together", MAX_COUNTS / 2),
            }),
        }
    }
}

impl Metric for Auroc {
    fn merge(&mut self, other: Self) {
        self.tally.merge(other.tally, self.layout == other.layout);
    }

    fn compute(&self) -> f64 {
        let areas = self.areas();
        let defined = areas.iter().filter(|area| !area.is_nan());
        let (sum, count) = defined.fold((0.0, 0.0), |(sum, count), area| (sum + area, count + 1.0));
        sum / count
    }

    fn components(&self) -> Vec<(String, f64)> {
        let shown = self.per_class && !self.layout.binary;
        let areas = if shown { self.areas() } else { Vec::new() };
        areas
            .into_iter()
            .enumerate()
            .map(|(class, area)| (class.to_string(), area))
            .collect()
    }

    fn state(&self) -> Vec<f64> {
        self.tally.state()
    }

    fn load_state(&mut self, state: &[f64]) -> Result<(), Error> {
        self.tally = self.layout.read(NAME, state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
