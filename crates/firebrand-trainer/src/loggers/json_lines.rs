use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use super::append_file::{AppendFile, whole_lines};
use super::pending_row::{EPOCH, PendingRow, STEP};
use super::replace::{discard_partial, replace_file};
use super::{LogRow, Logger, LoggerError, RunDirectory, format_value, write_hparams};

/// Writes `metrics.jsonl`: one object per step, `{"step":50,"epoch":0,"train_loss":0.25}`; and `hparams.toml` beside it.
///
/// An object has all that was logged at its step, in the order of logging. JSON has no numbers that are not finite, so
/// these are the strings `"NaN"`, `"inf"` and `"-inf"`. Equal values make equal files, also across a resume.
#[derive(Debug, Default)]
pub struct JsonLinesLogger {
    open: Option<OpenLines>,
}

#[derive(Debug)]
struct OpenLines {
    run: RunDirectory,
    file: AppendFile,
    pending: Option<PendingRow>,
}

impl JsonLinesLogger {
    /// The name of the file in the run directory.
    pub const FILE_NAME: &str = "metrics.jsonl";

    /// A logger that writes into the directory of the run.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn open(&mut self) -> Result<&mut OpenLines, LoggerError> {
        self.open
            .as_mut()
            .ok_or(LoggerError::NotBegun { logger: "json-lines" })
    }
}

impl Logger for JsonLinesLogger {
    fn name(&self) -> &'static str {
        "json-lines"
    }

    fn begin(&mut self, run: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError> {
        let path = run.path().join(Self::FILE_NAME);
        discard_partial(&path)?;
        let (committed, pending) = cut(&path, resumed_at.unwrap_or(u64::MAX))?;
        let file = AppendFile::open(&path, committed)?;
        self.open = Some(OpenLines {
            run: run.clone(),
            file,
            pending,
        });
        Ok(())
    }

    fn log_hparams(&mut self, hparams: &toml::Table) -> Result<(), LoggerError> {
        write_hparams(&self.open()?.run, hparams).map(drop)
    }

    fn log_metrics(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
        let lines = self.open()?;
        if row.values.is_empty() {
            return Ok(());
        }
        let moves_on = lines
            .pending
            .as_ref()
            .is_none_or(|pending| pending.step != row.step);
        let written = if moves_on { lines.write_pending() } else { Ok(()) };
        if moves_on {
            lines.file.commit();
            lines.pending = None;
        }
        let merged = lines
            .pending
            .get_or_insert_with(|| PendingRow::new(row.step, row.epoch))
            .merge(row);
        written.and(merged)
    }

    fn flush(&mut self) -> Result<(), LoggerError> {
        let lines = self.open()?;
        lines.write_pending()?;
        lines.file.sync()
    }

    fn finish(&mut self) -> Result<(), LoggerError> {
        if self.open.is_some() {
            self.flush()?;
            self.open = None;
        }
        Ok(())
    }
}

impl OpenLines {
    fn write_pending(&mut self) -> Result<(), LoggerError> {
        let Some(row) = self.pending.as_mut().filter(|row| row.dirty) else {
            return Ok(());
        };
        let mut line = serde_json::to_vec(row).map_err(|source| LoggerError::Encode {
            what: "metrics",
            source: source.into(),
        })?;
        line.push(b'\n');
        self.file.replace_last(&line)?;
        row.dirty = false;
        Ok(())
    }
}

/// Takes away the rows after the step `limit` and a line that was not finished; returns where the last row that stays
/// begins, and that row.
fn cut(path: &Path, limit: u64) -> Result<(u64, Option<PendingRow>), LoggerError> {
    let read_error = |source| LoggerError::io("read", path, source);
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok((0, None)),
        Err(source) => return Err(read_error(source)),
    };
    let length = file.metadata().map_err(read_error)?.len();
    let whole = whole_lines(&mut file).map_err(read_error)?;

    let (mut kept, mut last_start, mut last) = (0, 0, None);
    let mut unreadable = None;
    for_each_line(path, whole, |number, line| {
        let row = serde_json::from_slice::<PendingRow>(line);
        match (row, &unreadable) {
            (Err(error), None) => unreadable = Some((number, error.to_string())),
            (Err(_), Some(_)) => {}
            (Ok(row), _) if row.step > limit => {}
            (Ok(row), None) => {
                last_start = kept;
                kept += line.len() as u64;
                last = Some(row);
            }
            (Ok(_), Some((line, reason))) => {
                let (line, reason) = (*line, reason.clone());
                return Err(LoggerError::Damaged {
                    path: path.to_owned(),
                    line,
                    reason,
                });
            }
        }
        Ok(())
    })?;
    if kept < length {
        replace_file(path, |output| {
            let copied = for_each_line(path, whole, |_, line| {
                match serde_json::from_slice::<PendingRow>(line) {
                    Ok(row) if row.step <= limit => output
                        .write_all(line)
                        .map_err(|source| LoggerError::io("write", path, source)),
                    _ => Ok(()),
                }
            });
            copied.map_err(io::Error::other)
        })?;
    }
    Ok((last_start, last))
}

fn for_each_line(
    path: &Path,
    whole: u64,
    mut visit: impl FnMut(u64, &[u8]) -> Result<(), LoggerError>,
) -> Result<(), LoggerError> {
    let file = File::open(path).map_err(|source| LoggerError::io("read", path, source))?;
    let mut reader = BufReader::new(file.take(whole));
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        if read.map_err(|source| LoggerError::io("read", path, source))? == 0 {
            break;
        }
        visit(number, &line)?;
    }
    Ok(())
}

impl Serialize for PendingRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2 + self.values.len()))?;
        map.serialize_entry(STEP, &self.step)?;
        map.serialize_entry(EPOCH, &self.epoch)?;
        for (name, value) in &self.values {
            if value.is_finite() {
                map.serialize_entry(name, value)?;
            } else {
                map.serialize_entry(name, &format_value(*value))?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for PendingRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Keeps the order of the names, which a map type would lose.
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = PendingRow;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object with `{STEP}`, `{EPOCH}` and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PendingRow, A::Error> {
                let (mut step, mut epoch, mut values) = (None, None, Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        STEP => step = Some(map.next_value()?),
                        EPOCH => epoch = Some(map.next_value()?),
                        _ => {
                            let value = match map.next_value()? {
                                Number::Finite(value) => value,
                                Number::Text(text) => text.parse().map_err(A::Error::custom)?,
                            };
                            values.push((name, value));
                        }
                    }
                }
                let step = step.ok_or_else(|| A::Error::missing_field(STEP))?;
                let epoch = epoch.ok_or_else(|| A::Error::missing_field(EPOCH))?;
                Ok(PendingRow {
                    step,
                    epoch,
                    values,
                    dirty: false,
                })
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Text(String),
}
