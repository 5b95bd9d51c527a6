//! Inputs of metrics, read from the device once and checked before anything is counted.

use burn::tensor::{Int, Tensor};

use super::MetricError;
use super::counts::MAX_COUNTS;

pub(super) const NOT_A_NUMBER: &str = "the model's output is broken: look for a division by zero, the logarithm of \
     zero, or a learning rate that is too high";

/// Reads floats of any dtype as `f64`.
pub(super) fn floats<const D: usize>(
    metric: &'static str,
    input: &'static str,
    tensor: &Tensor<D>,
) -> Result<Vec<f64>, MetricError> {
    let inner = tensor.clone().inner();
    inner
        .try_into_vec_as::<f64>()
        .map_err(|source| MetricError::Read {
            metric,
            input,
            source,
        })
}

/// Reads class indices; `None` stands for a row to leave out.
pub(super) fn classes(
    metric: &'static str,
    input: &'static str,
    tensor: &Tensor<1, Int>,
    num_classes: usize,
    ignore_index: Option<i64>,
) -> Result<Vec<Option<usize>>, MetricError> {
    let inner = tensor.clone().inner();
    let read: Vec<i64> = inner.try_into_vec_as().map_err(|source| MetricError::Read {
        metric,
        input,
        source,
    })?;
    let checked = read.into_iter().enumerate().map(|(row, class)| {
        if Some(class) == ignore_index {
            return Ok(None);
        }
        match usize::try_from(class) {
            Ok(index) if index < num_classes => Ok(Some(index)),
            _ => Err(MetricError::Class {
                metric,
                input,
                row,
                class,
                num_classes,
            }),
        }
    });
    checked.collect()
}

/// Reads predicted and right classes, without the rows to leave out.
pub(super) fn class_pairs(
    metric: &'static str,
    predicted: &Tensor<1, Int>,
    targets: &Tensor<1, Int>,
    num_classes: usize,
    ignore_index: Option<i64>,
) -> Result<impl Iterator<Item = (usize, usize)>, MetricError> {
    same_shape(
        metric,
        ("predictions", predicted.dims()),
        ("targets", targets.dims()),
    )?;
    let targets = classes(metric, "targets", targets, num_classes, ignore_index)?;
    let predicted = classes(metric, "predictions", predicted, num_classes, None)?;
    Ok(predicted
        .into_iter()
        .zip(targets)
        .filter_map(|(predicted, target)| Some((predicted?, target?))))
}

/// Two tensors of one shape.
pub(super) fn same_shape<const D: usize>(
    metric: &'static str,
    (first, first_dims): (&'static str, [usize; D]),
    (second, second_dims): (&'static str, [usize; D]),
) -> Result<(), MetricError> {
    if first_dims == second_dims {
        return Ok(());
    }
    Err(MetricError::Shape {
        metric,
        input: second,
        found: second_dims.to_vec(),
        expected: format!("{first_dims:?} as the {first}; an operation would broadcast them without a word"),
    })
}

/// The number of counts that a metric of `num_classes` classes has, if it is sane.
pub(super) fn num_counts(
    metric: &'static str,
    num_classes: usize,
    counts: Option<usize>,
) -> Result<usize, MetricError> {
    match counts {
        Some(counts) if (1..=MAX_COUNTS).contains(&counts) => Ok(counts),
        _ => Err(MetricError::Setting {
            metric,
            option: "num_classes",
            value: num_classes.to_string(),
            fix: format!("give the number of classes of the model; up to {MAX_COUNTS} counts are kept"),
        }),
    }
}

/// Logits `[samples, classes]` must have a column for each class and a row for each target.
pub(super) fn logits_fit(
    metric: &'static str,
    logits: [usize; 2],
    targets: [usize; 1],
    num_classes: Option<usize>,
) -> Result<(), MetricError> {
    let shape = |input: &'static str, found: &[usize], expected: String| {
        Err(MetricError::Shape {
            metric,
            input,
            found: found.to_vec(),
            expected,
        })
    };
    match num_classes {
        Some(classes) if logits[1] != classes => {
            return shape(
                "logits",
                &logits,
                format!("[samples, {classes}], one column for each class"),
            );
        }
        _ if logits[1] == 0 => return shape("logits", &logits, "[samples, classes] with a class".to_owned()),
        _ => {}
    }
    if logits[0] != targets[0] {
        let expected = format!("[{}], one class for each row of the logits {logits:?}", logits[0]);
        return shape("targets", &targets, expected);
    }
    Ok(())
}

/// The scores of a batch and the classes that are right, on the host.
pub(super) struct Classified {
    scores: Vec<f64>,
    columns: usize,
    targets: Vec<Option<usize>>,
}

impl Classified {
    /// Reads `[samples, classes]` logits and `[samples]` targets. Rows to leave out may hold anything.
    pub(super) fn read(
        metric: &'static str,
        logits: &Tensor<2>,
        targets: &Tensor<1, Int>,
        num_classes: Option<usize>,
        ignore_index: Option<i64>,
    ) -> Result<Self, MetricError> {
        logits_fit(metric, logits.dims(), targets.dims(), num_classes)?;
        Self::read_columns(
            metric,
            ("logits", logits),
            targets,
            logits.dims()[1],
            ignore_index,
        )
    }

    /// Reads scores whose columns need not be the classes; their shape has been looked at.
    pub(super) fn read_columns(
        metric: &'static str,
        (input, scores): (&'static str, &Tensor<2>),
        targets: &Tensor<1, Int>,
        num_classes: usize,
        ignore_index: Option<i64>,
    ) -> Result<Self, MetricError> {
        let columns = scores.dims()[1];
        let targets = classes(metric, "targets", targets, num_classes, ignore_index)?;
        let batch = Self {
            scores: floats(metric, input, scores)?,
            columns,
            targets,
        };
        for (row, scores, _) in batch.rows() {
            if let Some(column) = scores.iter().position(|score| score.is_nan()) {
                return Err(MetricError::Value {
                    metric,
                    input,
                    index: row * columns + column,
                    value: f64::NAN,
                    fix: NOT_A_NUMBER,
                });
            }
        }
        Ok(batch)
    }

    /// The rows that count: their place in the batch, the scores, and the right class.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, &[f64], usize)> {
        let rows = self.scores.chunks_exact(self.columns).zip(&self.targets);
        rows.enumerate()
            .filter_map(|(row, (scores, target))| Some((row, scores, (*target)?)))
    }
}

/// The class with the highest score; the first of equals, as in an arg-max.
pub(super) fn arg_max(scores: &[f64]) -> usize {
    let mut best = 0;
    for (class, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = class;
        }
    }
    best
}
