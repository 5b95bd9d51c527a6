use std::time::{SystemTime, UNIX_EPOCH};

use tfrecord::Summary;
use tfrecord::protobuf::summary::{Value, value};

use super::super::pending_row::{EPOCH, is_reserved};
use super::super::{LogRow, Logger, LoggerError, RunDirectory};
use super::event_file::{EventFile, cut_all};
use super::histogram::histogram;
use super::hparams::session_start;

/// Writes event files for TensorBoard: `tensorboard --logdir <root>` shows the runs side by side.
///
/// Every metric is a scalar, and so is `epoch`, as in Lightning; histograms have TensorFlow's buckets; hyper-parameters
/// go to the hparams plugin, nested ones under names with dots. Scalars are 32-bit floats there: exact values are in the
/// [`CsvLogger`](super::super::CsvLogger)'s file. Values carry the wall time at which they were logged.
///
/// Each begin of a run makes a file of its own. On a resume the events after the checkpoint's step are cut from the older
/// files, and a TensorBoard that has read them already is told to forget them.
#[derive(Debug, Default)]
pub struct TensorBoardLogger {
    open: Option<OpenEvents>,
}

#[derive(Debug)]
struct OpenEvents {
    run_name: String,
    file: EventFile,
    /// The step and epoch of the last `epoch` scalar.
    last_epoch: Option<(u64, u64)>,
}

impl TensorBoardLogger {
    /// A logger that writes into the directory of the run.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn open(&mut self) -> Result<&mut OpenEvents, LoggerError> {
        self.open.as_mut().ok_or(LoggerError::NotBegun {
            logger: "tensorboard",
        })
    }
}

impl Logger for TensorBoardLogger {
    fn name(&self) -> &'static str {
        "tensorboard"
    }

    fn begin(&mut self, run: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError> {
        cut_all(run.path(), resumed_at.unwrap_or(u64::MAX))?;
        let now = unix_time();
        let mut file = EventFile::create(run.path(), now)?;
        if let Some(step) = resumed_at {
            file.restart(now, step.saturating_add(1))?;
        }
        let run_name = format!("{}/version_{}", run.name(), run.version());
        self.open = Some(OpenEvents {
            run_name,
            file,
            last_epoch: None,
        });
        Ok(())
    }

    fn log_hparams(&mut self, hparams: &toml::Table) -> Result<(), LoggerError> {
        let events = self.open()?;
        let now = unix_time();
        events
            .file
            .summary(now, 0, session_start(hparams, &events.run_name, now))
    }

    fn log_metrics(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
        let events = self.open()?;
        let mut outcome = Ok(());
        let mut scalars = Vec::with_capacity(row.values.len() + 1);
        for (index, (name, value)) in row.values.iter().enumerate() {
            let replaced = row.values[index + 1..].iter().any(|(later, _)| later == name);
            if replaced {
                continue;
            }
            if is_reserved(name) {
                outcome = Err(LoggerError::ReservedMetric { name: name.clone() });
            } else {
                scalars.push(scalar(name, *value));
            }
        }
        if scalars.is_empty() {
            return outcome;
        }
        if events.last_epoch != Some((row.step, row.epoch)) {
            scalars.push(scalar(EPOCH, row.epoch as f64));
        }
        events
            .file
            .summary(unix_time(), row.step, Summary { value: scalars })?;
        events.last_epoch = Some((row.step, row.epoch));
        outcome
    }

    fn log_histogram(&mut self, step: u64, name: &str, values: &[f64]) -> Result<(), LoggerError> {
        let events = self.open()?;
        let Some(histogram) = histogram(values) else {
            return Ok(());
        };
        let value = value_of(name, value::Value::Histo(histogram));
        events
            .file
            .summary(unix_time(), step, Summary { value: vec![value] })
    }

    fn flush(&mut self) -> Result<(), LoggerError> {
        self.open()?.file.sync()
    }

    fn finish(&mut self) -> Result<(), LoggerError> {
        match self.open.take() {
            Some(events) => events.file.sync(),
            None => Ok(()),
        }
    }
}

fn scalar(name: &str, value: f64) -> Value {
    value_of(name, value::Value::SimpleValue(value as f32))
}

fn value_of(name: &str, value: value::Value) -> Value {
    Value {
        tag: name.to_owned(),
        value: Some(value),
        ..Value::default()
    }
}

fn unix_time() -> f64 {
    // A clock before 1970 is no reason to stop a run.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests;
