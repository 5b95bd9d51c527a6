use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use tfrecord::io::sync::{try_read_len, try_read_record_data, try_write_record};
use tfrecord::protobuf::event::What;
use tfrecord::protobuf::{Event, SessionLog, session_log::SessionStatus};
use tfrecord::{Error as RecordError, Record, Summary};

use super::super::LoggerError;
use super::super::append_file::AppendFile;
use super::super::replace::{discard_partial, replace_file};

const PREFIX: &str = "events.out.tfevents.";
/// A record's length, two checksums, and then its data.
const RECORD_OVERHEAD: u64 = 16;

/// A new event file: `events.out.tfevents.<unix time>.<host>`.
#[derive(Debug)]
pub(super) struct EventFile(AppendFile);

impl EventFile {
    /// Makes a file of a name that is free; `now` is in seconds since 1970.
    pub(super) fn create(directory: &Path, now: f64) -> Result<Self, LoggerError> {
        let host = host_name();
        let mut time = now as u64;
        let file = loop {
            let path = directory.join(format!("{PREFIX}{time:010}.{host}"));
            match AppendFile::create_new(&path)? {
                Some(file) => break file,
                None => time += 1,
            }
        };
        let mut file = Self(file);
        file.append(now, 0, What::FileVersion("brain.Event:2".to_owned()))?;
        Ok(file)
    }

    /// Tells a TensorBoard that is running to forget what it has read from `step` on.
    pub(super) fn restart(&mut self, now: f64, step: u64) -> Result<(), LoggerError> {
        let status = SessionStatus::Start as i32;
        self.append(
            now,
            step,
            What::SessionLog(SessionLog {
                status,
                ..SessionLog::default()
            }),
        )
    }

    pub(super) fn summary(&mut self, now: f64, step: u64, summary: Summary) -> Result<(), LoggerError> {
        self.append(now, step, What::Summary(summary))
    }

    pub(super) fn sync(&self) -> Result<(), LoggerError> {
        self.0.sync()
    }

    fn append(&mut self, wall_time: f64, step: u64, what: What) -> Result<(), LoggerError> {
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        let event = Event {
            wall_time,
            step,
            what: Some(what),
            source_metadata: None,
        };
        let mut record = Vec::new();
        Event::to_bytes(event)
            .and_then(|bytes| try_write_record(&mut record, bytes))
            .map_err(|source| LoggerError::Encode {
                what: "event",
                source: source.into(),
            })?;
        self.0.append(&record)
    }
}

/// Takes away the events after the step `limit`, and a record that was not finished, from all event files.
pub(super) fn cut_all(directory: &Path, limit: u64) -> Result<(), LoggerError> {
    let entries = fs::read_dir(directory).map_err(|source| LoggerError::io("read", directory, source))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
        {
            discard_partial(&path)?;
            cut(&path, limit)?;
        }
    }
    Ok(())
}

fn cut(path: &Path, limit: u64) -> Result<(), LoggerError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read_error = |source| LoggerError::io("read", path, source);
    let length = fs::metadata(path).map_err(read_error)?.len();
    let mut kept = 0;
    let whole = for_each_event(path, length, |event, record| {
        if event.step <= limit {
            kept += record.len() as u64 + RECORD_OVERHEAD;
        }
        Ok(())
    })
    .map_err(read_error)?;
    if whole < length {
        let lost = length - whole;
        tracing::warn!(
            "'{}' has {lost} unreadable byte(s) at its end, which are cut away",
            path.display()
        );
    }
    if kept == length {
        return Ok(());
    }
    replace_file(path, |output| {
        for_each_event(path, whole, |event, record| {
            if event.step > limit {
                return Ok(());
            }
            let written = try_write_record(output, record);
            written.map_err(|error| match error {
                RecordError::IoError(source) => source,
                other => io::Error::other(other),
            })
        })
        .map(drop)
    })
}

/// Visits the events of the first `length` bytes until one cannot be read, and returns where that is.
fn for_each_event(
    path: &Path,
    length: u64,
    mut visit: impl FnMut(&Event, Vec<u8>) -> io::Result<()>,
) -> io::Result<u64> {
    let mut reader = BufReader::new(File::open(path)?.take(length));
    let mut offset = 0;
    loop {
        let left = length - offset;
        let record = match try_read_len(&mut reader, true) {
            // A length is checked before it is believed: it decides how much memory is taken.
            Ok(Some(size)) if (size as u64).saturating_add(RECORD_OVERHEAD) <= left => {
                try_read_record_data(&mut reader, size, true)
            }
            Ok(_) => return Ok(offset),
            Err(error) => Err(error),
        };
        let event = record.and_then(|record| Ok((Event::from_bytes(record.clone())?, record)));
        match event {
            Ok((event, record)) => {
                offset += record.len() as u64 + RECORD_OVERHEAD;
                visit(&event, record)?;
            }
            Err(RecordError::IoError(source)) if source.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(source);
            }
            Err(_) => return Ok(offset),
        }
    }
}

/// The name of this machine, for telling the files of several apart; it only has to be a plain file name.
fn host_name() -> String {
    let known = fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok());
    let name: String = known
        .unwrap_or_default()
        .trim()
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || "-._".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name
    }
}
