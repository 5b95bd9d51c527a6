use super::{LoggerError, RunDirectory};

/// The values that were logged at one step.
#[derive(Clone, Copy, Debug)]
pub struct LogRow<'a> {
    /// `global_step`, the x axis of every logger: the number of optimizer updates so far.
    pub step: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// Names and values; a name that occurs twice has its last value.
    pub values: &'a [(String, f64)],
}

/// A destination for the values of a run.
///
/// Rank 0 calls [`begin`](Self::begin) once, then the `log_` methods in the order of the steps, [`flush`](Self::flush)
/// before each checkpoint and [`finish`](Self::finish) at the end. A call that fails does not end the run: the logger is
/// called again with what follows, and should go on as well as it can.
pub trait Logger: Send {
    /// A short name for messages, such as `csv`.
    fn name(&self) -> &'static str;

    /// Opens the logger's files in the directory of the run.
    ///
    /// With `Some(step)`, the run goes on from a checkpoint of that step: what was logged after it is cut away first.
    /// The values of `step` itself stay, and the run may log more at it. With `None`, what is there stays.
    ///
    /// # Errors
    ///
    /// If the files cannot be read or written, or are not the logger's.
    fn begin(&mut self, run: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError>;

    /// Writes the resolved configuration of the run.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn log_hparams(&mut self, hparams: &toml::Table) -> Result<(), LoggerError>;

    /// Writes values. Several rows of one step, as from training and a validation after it, are one row.
    ///
    /// # Errors
    ///
    /// If they cannot be written, or a name is reserved.
    fn log_metrics(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError>;

    /// Writes the distribution of `values`, such as the weights of a layer. Ignored unless a logger can.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn log_histogram(&mut self, step: u64, name: &str, values: &[f64]) -> Result<(), LoggerError> {
        let _ = (step, name, values);
        Ok(())
    }

    /// Brings all that was logged to the disk. A checkpoint is only complete with the rows up to its step, so this comes
    /// before it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn flush(&mut self) -> Result<(), LoggerError>;

    /// Flushes and closes the files; `begin` may follow.
    ///
    /// # Errors
    ///
    /// If what was left cannot be written.
    fn finish(&mut self) -> Result<(), LoggerError>;
}

/// The shortest text that reads back as the same number, in Rust and in Python: `0.1`, `1.0`, `1e-5`, `NaN`, `-inf`.
pub(super) fn format_value(value: f64) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e-5, "1e-5"),
            (-1.5e300, "-1.5e300"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::NEG_INFINITY, "-inf"),
            (-f64::NAN, "NaN"),
        ] {
            assert_eq!(format_value(value), text);
            let read: f64 = text.parse().unwrap();
            assert!(read == value || read.is_nan() && value.is_nan(), "{text}");
        }
    }
}
