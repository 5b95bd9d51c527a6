use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use csv::{ByteRecord, Reader, ReaderBuilder, StringRecord, WriterBuilder};

use super::super::append_file::whole_lines;
use super::super::pending_row::{EPOCH, PendingRow, STEP};
use super::super::replace::replace_file;
use super::super::{LoggerError, format_value};

/// The columns before the metrics.
const NUM_FIXED: usize = 2;

/// What a logger needs to know of a file to go on writing it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Table {
    /// The names of the metric columns.
    pub(super) columns: Vec<String>,
    /// The last row, which may still grow.
    pub(super) last: Option<PendingRow>,
    /// Where the last row begins, or the end of the header; in bytes.
    pub(super) committed: u64,
}

/// One line of the file.
pub(super) fn encode_row(columns: &[String], row: &PendingRow) -> io::Result<Vec<u8>> {
    let value = |column: &String| {
        let logged = row.values.iter().find(|(name, _)| name == column);
        logged.map_or_else(String::new, |&(_, value)| format_value(value))
    };
    let mut line = Vec::new();
    let mut writer = WriterBuilder::new().from_writer(&mut line);
    let fixed = [row.step.to_string(), row.epoch.to_string()];
    writer.write_record(fixed.into_iter().chain(columns.iter().map(value)))?;
    writer.flush()?;
    drop(writer);
    Ok(line)
}

/// Rewrites the first `committed` bytes of the file with these columns, old rows staying empty in new columns, and
/// returns the new length. What follows those bytes is left out.
pub(super) fn widen(path: &Path, committed: u64, columns: &[String]) -> Result<u64, LoggerError> {
    let old = File::open(path).map_err(|source| LoggerError::io("read", path, source))?;
    let mut reader = reader(old.take(committed));
    let mut new_length = 0;
    replace_file(path, |output| {
        let mut output = Counting {
            inner: output,
            count: 0,
        };
        let mut writer = WriterBuilder::new().from_writer(&mut output);
        writer.write_record(
            [STEP, EPOCH]
                .into_iter()
                .chain(columns.iter().map(String::as_str)),
        )?;
        let mut record = ByteRecord::new();
        let mut is_header = true;
        while reader.read_byte_record(&mut record)? {
            if std::mem::take(&mut is_header) {
                continue;
            }
            let missing = (NUM_FIXED + columns.len()).saturating_sub(record.len());
            writer.write_record(record.iter().chain(std::iter::repeat_n(&b""[..], missing)))?;
        }
        writer.flush()?;
        drop(writer);
        new_length = output.count;
        Ok(())
    })?;
    Ok(new_length)
}

/// Takes away the rows after the step `limit`, the columns that only they filled, and a line that was not finished.
///
/// The file is afterwards what it was when the last row that stays had just been written.
pub(super) fn cut(path: &Path, limit: u64) -> Result<(), LoggerError> {
    let Some((mut file, whole)) = open_whole(path)? else {
        return Ok(());
    };
    let length = file
        .metadata()
        .map_err(|source| LoggerError::io("read", path, source))?
        .len();
    let survey = survey(path, &mut file, whole, limit)?;
    if survey.complete && whole == length {
        return Ok(());
    }
    drop(file);
    let file = File::open(path).map_err(|source| LoggerError::io("read", path, source))?;
    let mut reader = reader(file.take(whole));
    replace_file(path, |output| {
        let mut writer = WriterBuilder::new().from_writer(output);
        let mut record = ByteRecord::new();
        let mut is_header = true;
        while reader.read_byte_record(&mut record)? {
            let header = std::mem::take(&mut is_header);
            let keep = if header {
                survey.any_kept
            } else {
                kept(&record, survey.filled.len(), limit)
            };
            if keep {
                let columns = record.iter().zip(&survey.filled);
                writer.write_record(columns.filter(|(_, filled)| **filled).map(|(field, _)| field))?;
            }
        }
        writer.flush()?;
        Ok(())
    })
}

/// Reads what is needed to go on writing a file that [`cut`] has been over.
pub(super) fn load(path: &Path) -> Result<Table, LoggerError> {
    let Some((file, whole)) = open_whole(path)? else {
        return Ok(Table::default());
    };
    let mut reader = reader(file.take(whole));
    let mut record = StringRecord::new();
    let mut table = Table {
        committed: whole,
        ..Table::default()
    };
    let mut last = None;
    let mut is_header = true;
    loop {
        let line = reader.position().line();
        match reader.read_record(&mut record) {
            Ok(true) if std::mem::take(&mut is_header) => {
                table.columns = record.iter().skip(NUM_FIXED).map(str::to_owned).collect();
            }
            Ok(true) => last = Some((line, record.clone())),
            Ok(false) => break,
            Err(error) => return Err(damaged(path, line, error.to_string())),
        }
    }
    if let Some((line, record)) = last {
        let row = parse_row(&table.columns, &record);
        table.last = Some(row.ok_or_else(|| damaged(path, line, "a value is no number".to_owned()))?);
        table.committed = record.position().map_or(whole, csv::Position::byte);
    }
    Ok(table)
}

/// What a first pass over a file finds out.
struct Survey {
    /// For each column, whether a row that stays has a value in it.
    filled: Vec<bool>,
    any_kept: bool,
    /// Whether all rows and columns stay.
    complete: bool,
}

fn survey(path: &Path, file: &mut File, whole: u64, limit: u64) -> Result<Survey, LoggerError> {
    let mut reader = reader(file.take(whole));
    let mut record = ByteRecord::new();
    let read = |reader: &mut Reader<_>, record: &mut ByteRecord| {
        let line = reader.position().line();
        let more = reader.read_byte_record(record);
        more.map(|more| more.then_some(line))
            .map_err(|error| damaged(path, line, error.to_string()))
    };
    let mut survey = Survey {
        filled: Vec::new(),
        any_kept: false,
        complete: true,
    };
    if read(&mut reader, &mut record)?.is_none() {
        return Ok(survey);
    }
    if record.get(0) != Some(STEP.as_bytes()) || record.get(1) != Some(EPOCH.as_bytes()) {
        return Err(damaged(
            path,
            1,
            format!("the first two columns are not `{STEP}` and `{EPOCH}`"),
        ));
    }
    survey.filled = (0..record.len()).map(|column| column < NUM_FIXED).collect();
    let mut unreadable = None;
    while let Some(line) = read(&mut reader, &mut record)? {
        if parse_step(&record, survey.filled.len()).is_none() {
            // A crash can leave rubbish at the end of a file, but not before a row that is fine.
            unreadable.get_or_insert(line);
            survey.complete = false;
        } else if kept(&record, survey.filled.len(), limit) {
            if let Some(line) = unreadable {
                return Err(damaged(path, line, "it is no row, and rows follow it".to_owned()));
            }
            survey.any_kept = true;
            for (filled, field) in survey.filled.iter_mut().zip(record.iter()) {
                *filled |= !field.is_empty();
            }
        } else {
            survey.complete = false;
        }
    }
    survey.complete &= survey.filled.iter().all(|&filled| filled);
    Ok(survey)
}

fn parse_step(record: &ByteRecord, num_columns: usize) -> Option<u64> {
    let number = |index| std::str::from_utf8(record.get(index)?).ok()?.parse::<u64>().ok();
    number(1)?;
    number(0).filter(|_| record.len() == num_columns)
}

fn kept(record: &ByteRecord, num_columns: usize, limit: u64) -> bool {
    parse_step(record, num_columns).is_some_and(|step| step <= limit)
}

fn parse_row(columns: &[String], record: &StringRecord) -> Option<PendingRow> {
    let mut row = PendingRow::new(record.get(0)?.parse().ok()?, record.get(1)?.parse().ok()?);
    for (name, field) in columns.iter().zip(record.iter().skip(NUM_FIXED)) {
        if !field.is_empty() {
            row.values.push((name.clone(), field.parse().ok()?));
        }
    }
    Some(row)
}

/// The file and the length of its whole lines; `None` if there is no file.
fn open_whole(path: &Path) -> Result<Option<(File, u64)>, LoggerError> {
    let open = || -> io::Result<_> {
        let mut file = File::open(path)?;
        let whole = whole_lines(&mut file)?;
        io::Seek::rewind(&mut file)?;
        Ok((file, whole))
    };
    match open() {
        Ok(opened) => Ok(Some(opened)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LoggerError::io("read", path, source)),
    }
}

fn reader<R: Read>(input: R) -> Reader<BufReader<R>> {
    ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(BufReader::new(input))
}

fn damaged(path: &Path, line: u64, reason: String) -> LoggerError {
    LoggerError::Damaged {
        path: path.to_owned(),
        line,
        reason,
    }
}

struct Counting<W> {
    inner: W,
    count: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.count += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
