use std::path::PathBuf;

use super::super::append_file::AppendFile;
use super::super::pending_row::PendingRow;
use super::super::replace::discard_partial;
use super::super::{LogRow, Logger, LoggerError, RunDirectory, write_hparams};
use super::table;

/// Writes `metrics.csv`: the columns `step` and `epoch`, then one per metric; and `hparams.toml` beside it.
///
/// A row has all that was logged at its step; what was not logged then is empty. A metric that is logged for the first
/// time in the middle of a run gets a new last column. Numbers are the shortest that read back as the same `f64`; not
/// finite ones are `NaN`, `inf` and `-inf`. Equal values make equal files, byte for byte, also across a resume.
///
/// Rows go to the file when the step moves on, and nothing but the latest row is held in memory.
#[derive(Debug, Default)]
pub struct CsvLogger {
    open: Option<OpenTable>,
}

#[derive(Debug)]
struct OpenTable {
    run: RunDirectory,
    path: PathBuf,
    file: AppendFile,
    columns: Vec<String>,
    pending: Option<PendingRow>,
}

impl CsvLogger {
    /// The name of the file in the run directory.
    pub const FILE_NAME: &str = "metrics.csv";

    /// A logger that writes into the directory of the run.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn open(&mut self) -> Result<&mut OpenTable, LoggerError> {
        self.open.as_mut().ok_or(LoggerError::NotBegun { logger: "csv" })
    }
}

impl Logger for CsvLogger {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn begin(&mut self, run: &RunDirectory, resumed_at: Option<u64>) -> Result<(), LoggerError> {
        let path = run.path().join(Self::FILE_NAME);
        discard_partial(&path)?;
        table::cut(&path, resumed_at.unwrap_or(u64::MAX))?;
        let table = table::load(&path)?;
        let file = AppendFile::open(&path, table.committed)?;
        self.open = Some(OpenTable {
            run: run.clone(),
            path,
            file,
            columns: table.columns,
            pending: table.last,
        });
        Ok(())
    }

    fn log_hparams(&mut self, hparams: &toml::Table) -> Result<(), LoggerError> {
        write_hparams(&self.open()?.run, hparams).map(drop)
    }

    fn log_metrics(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
        self.open()?.log(row)
    }

    fn flush(&mut self) -> Result<(), LoggerError> {
        let table = self.open()?;
        table.write_pending()?;
        table.file.sync()
    }

    fn finish(&mut self) -> Result<(), LoggerError> {
        if self.open.is_some() {
            self.flush()?;
            self.open = None;
        }
        Ok(())
    }
}

impl OpenTable {
    fn log(&mut self, row: &LogRow<'_>) -> Result<(), LoggerError> {
        if row.values.is_empty() {
            return Ok(());
        }
        let moves_on = self
            .pending
            .as_ref()
            .is_none_or(|pending| pending.step != row.step);
        let written = if moves_on { self.write_pending() } else { Ok(()) };
        if moves_on {
            // A row that could not be written is given up, so that memory stays bounded on a full disk.
            self.file.commit();
            self.pending = None;
        }
        let merged = self
            .pending
            .get_or_insert_with(|| PendingRow::new(row.step, row.epoch))
            .merge(row);
        written.and(merged)
    }

    fn write_pending(&mut self) -> Result<(), LoggerError> {
        let Some(row) = self.pending.as_mut().filter(|row| row.dirty) else {
            return Ok(());
        };
        let new: Vec<_> = row
            .values
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !self.columns.contains(name))
            .collect();
        if !new.is_empty() {
            let columns: Vec<String> = self.columns.iter().chain(new).cloned().collect();
            let committed = table::widen(&self.path, self.file.committed(), &columns)?;
            self.file = AppendFile::open(&self.path, committed)?;
            self.columns = columns;
        }
        let line = table::encode_row(&self.columns, row)
            .map_err(|source| LoggerError::io("append to", &self.path, source))?;
        self.file.replace_last(&line)?;
        row.dirty = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
