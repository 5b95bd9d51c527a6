use burn::tensor::{Int, Tensor};
use firebrand_core::Error;

use super::MetricError;
use super::counts::{Counts, ratio};
use super::input::{self, Classified};

/// How the scores of the classes become one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Average {
    /// The mean over the classes that occur among the targets or the predictions.
    #[default]
    Macro,
    /// One score from the counts of all classes together; the accuracy, where each sample has one class.
    Micro,
    /// The mean over the classes, weighted by how often each is the target.
    Weighted,
    /// The score of one class: that of class 1 is what binary classification calls *the* precision.
    Class(usize),
}

/// The ratio that a score takes of the counts of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Score {
    Precision,
    Recall,
    FBeta(f64),
}

/// What was counted of one class.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    /// True positives.
    hits: f64,
    /// True and false positives.
    predicted: f64,
    /// True positives and false negatives.
    actual: f64,
}

impl Score {
    fn of(self, class: Class) -> f64 {
        match self {
            Self::Precision => ratio(class.hits, class.predicted, 0.0),
            Self::Recall => ratio(class.hits, class.actual, 0.0),
            // (1 + β²)·tp + β²·fn + fp = β²·(tp + fn) + (tp + fp)
            Self::FBeta(beta) => ratio(
                (1.0 + beta * beta) * class.hits,
                beta * beta * class.actual + class.predicted,
                0.0,
            ),
        }
    }
}

/// The counts of each class, and what is to be made of them: all of precision, recall and F-beta but their names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClassCounts {
    pub(super) average: Average,
    pub(super) ignore_index: Option<i64>,
    pub(super) per_class: bool,
    score: Score,
    num_classes: usize,
    /// For each class: hits, predicted, actual.
    counts: Counts,
}

impl ClassCounts {
    pub(super) fn new(score: Score, num_classes: usize) -> Self {
        let (average, counts) = (Average::default(), Counts::default());
        Self {
            average,
            ignore_index: None,
            per_class: false,
            score,
            num_classes,
            counts,
        }
    }

    /// The number of counts of a batch, if the options make sense.
    fn check(&self, metric: &'static str) -> Result<usize, MetricError> {
        let num_counts = input::num_counts(metric, self.num_classes, self.num_classes.checked_mul(3))?;
        let wrong = |option: &'static str, value: String, fix: String| {
            Err(MetricError::Setting {
                metric,
                option,
                value,
                fix,
            })
        };
        match (self.score, self.average) {
            (Score::FBeta(beta), _) if !beta.is_finite() || beta < 0.0 => wrong(
                "beta",
                beta.to_string(),
                "it is a finite number, 0 or more".to_owned(),
            ),
            (_, Average::Class(class)) if class >= self.num_classes => wrong(
                "average",
                format!("Average::Class({class})"),
                format!("the {} classes are counted from 0", self.num_classes),
            ),
            _ => Ok(num_counts),
        }
    }

    pub(super) fn update(
        mut self,
        metric: &'static str,
        logits: &Tensor<2>,
        targets: &Tensor<1, Int>,
    ) -> Result<Self, MetricError> {
        let num_counts = self.check(metric)?;
        let batch = Classified::read(metric, logits, targets, Some(self.num_classes), self.ignore_index)?;
        let pairs = batch
            .rows()
            .map(|(_, scores, target)| (input::arg_max(scores), target));
        self.count(num_counts, pairs);
        Ok(self)
    }

    pub(super) fn update_classes(
        mut self,
        metric: &'static str,
        predicted: &Tensor<1, Int>,
        targets: &Tensor<1, Int>,
    ) -> Result<Self, MetricError> {
        let num_counts = self.check(metric)?;
        let pairs = input::class_pairs(metric, predicted, targets, self.num_classes, self.ignore_index)?;
        self.count(num_counts, pairs);
        Ok(self)
    }

    fn count(&mut self, num_counts: usize, pairs: impl Iterator<Item = (usize, usize)>) {
        let mut counts = vec![0; num_counts];
        for (predicted, target) in pairs {
            counts[3 * target] += u64::from(predicted == target);
            counts[3 * predicted + 1] += 1;
            counts[3 * target + 2] += 1;
        }
        self.counts.add(counts);
    }

    pub(super) fn merge(&mut self, other: Self) {
        let settings = |counts: &Self| (counts.num_classes, counts.average, counts.score);
        let same = settings(self) == settings(&other);
        self.counts.merge(other.counts, same);
    }

    fn classes(&self) -> impl Iterator<Item = Class> {
        let counts = self.counts.get().unwrap_or_default();
        counts.chunks_exact(3).map(|class| Class {
            hits: class[0] as f64,
            predicted: class[1] as f64,
            actual: class[2] as f64,
        })
    }

    /// The score of each class, from 0; empty when nothing was counted.
    pub(super) fn scores(&self) -> Vec<f64> {
        self.classes().map(|class| self.score.of(class)).collect()
    }

    pub(super) fn compute(&self) -> f64 {
        let all = self.classes().fold(Class::default(), |all, class| Class {
            hits: all.hits + class.hits,
            predicted: all.predicted + class.predicted,
            actual: all.actual + class.actual,
        });
        if all.actual == 0.0 {
            return f64::NAN;
        }
        match self.average {
            Average::Micro => self.score.of(all),
            Average::Macro => self.weighted(|class| f64::from(class.predicted + class.actual > 0.0)),
            Average::Weighted => self.weighted(|class| class.actual),
            Average::Class(class) => self
                .classes()
                .nth(class)
                .map_or(f64::NAN, |class| self.score.of(class)),
        }
    }

    fn weighted(&self, weight: impl Fn(Class) -> f64) -> f64 {
        let (sum, weights) = self.classes().fold((0.0, 0.0), |(sum, weights), class| {
            (
                sum + weight(class) * self.score.of(class),
                weights + weight(class),
            )
        });
        ratio(sum, weights, f64::NAN)
    }

    pub(super) fn components(&self) -> Vec<(String, f64)> {
        if !self.per_class {
            return Vec::new();
        }
        self.scores()
            .into_iter()
            .enumerate()
            .map(|(class, score)| (class.to_string(), score))
            .collect()
    }

    pub(super) fn state(&self) -> Vec<f64> {
        self.counts.state()
    }

    pub(super) fn load_state(&mut self, metric: &'static str, state: &[f64]) -> Result<(), Error> {
        self.counts = Counts::from_state(metric, state, self.num_classes.checked_mul(3), |counts| {
            let classes = counts.chunks_exact(3);
            let possible = classes.clone().all(|class| class[0] <= class[1].min(class[2]));
            // Each row is predicted once and right once.
            let [predicted, actual] =
                [1, 2].map(|kind| classes.clone().map(|class| class[kind]).sum::<u64>());
            let consistent = possible && predicted == actual;
            consistent
                .then_some(())
                .ok_or_else(|| "its counts contradict each other".to_owned())
        })?;
        Ok(())
    }
}
