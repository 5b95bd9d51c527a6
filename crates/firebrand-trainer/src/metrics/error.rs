use burn::tensor::TensorReadError;

/// Why a metric refused a batch.
#[derive(thiserror::Error, Debug)]
#[non_exhaustive]
pub enum MetricError {
    /// Two inputs do not belong together, or one does not fit the metric.
    #[error("{metric}: the {input} have the shape {found:?}, not {expected}")]
    Shape {
        /// The metric.
        metric: &'static str,
        /// The input that does not fit.
        input: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that was expected, and why.
        expected: String,
    },
    /// A class index lies outside the classes.
    #[error(
        "{metric}: row {row} of the {input} holds the class {class}, and the {num_classes} classes are counted from 0; \
         correct the labels or the number of classes, or set `ignore_index` where such rows are to be left out"
    )]
    Class {
        /// The metric.
        metric: &'static str,
        /// The input that holds the class.
        input: &'static str,
        /// The row of the batch, from 0.
        row: usize,
        /// The class that was found.
        class: i64,
        /// The number of classes.
        num_classes: usize,
    },
    /// A number cannot be counted: not-a-number, or outside the range of the metric.
    #[error("{metric}: element {index} of the {input} is {value}; {fix}")]
    Value {
        /// The metric.
        metric: &'static str,
        /// The input that holds the number.
        input: &'static str,
        /// Where it is, in row-major order, from 0.
        index: usize,
        /// The number.
        value: f64,
        /// What to do.
        fix: &'static str,
    },
    /// The metric was built with an option that makes no sense.
    #[error("{metric}: `{option}` is {value}; {fix}")]
    Setting {
        /// The metric.
        metric: &'static str,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        fix: String,
    },
    /// The device could not hand over the numbers.
    #[error("{metric}: the {input} cannot be read from the device")]
    Read {
        /// The metric.
        metric: &'static str,
        /// The input.
        input: &'static str,
        /// What the device said.
        #[source]
        source: TensorReadError,
    },
}
