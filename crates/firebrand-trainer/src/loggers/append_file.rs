use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::LoggerError;

/// A file of records of which the last can still be replaced.
///
/// Every write goes to the operating system at once, so that a killed process loses nothing that was written. A write
/// that fails half-way is taken back, so that records which follow it stay readable.
#[derive(Debug)]
pub(super) struct AppendFile {
    path: PathBuf,
    file: File,
    /// Where the last, replaceable record begins.
    committed: u64,
    /// The length of that record; 0 if there is none.
    last: u64,
}

impl AppendFile {
    /// Opens `path`, or makes it; all from the byte `committed` on is one replaceable record.
    pub(super) fn open(path: &Path, committed: u64) -> Result<Self, LoggerError> {
        let open = || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let (file, length) = open().map_err(|source| LoggerError::io("open", path, source))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            committed,
            last: length.saturating_sub(committed),
        })
    }

    /// Makes a new file; `Ok(None)` if the name is taken.
    pub(super) fn create_new(path: &Path) -> Result<Option<Self>, LoggerError> {
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
        {
            Ok(file) => Ok(Some(Self {
                path: path.to_owned(),
                file,
                committed: 0,
                last: 0,
            })),
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(source) => Err(LoggerError::io("create", path, source)),
        }
    }

    /// Writes the last record, in place of the one that stands there.
    pub(super) fn replace_last(&mut self, record: &[u8]) -> Result<(), LoggerError> {
        let length = record.len() as u64;
        let mut write = || {
            self.file.seek(SeekFrom::Start(self.committed))?;
            self.file.write_all(record)?;
            if length < self.last {
                self.file.set_len(self.committed + length)?;
            }
            Ok(())
        };
        match write() {
            Ok(()) => {
                self.last = length;
                Ok(())
            }
            Err(source) => {
                // Where even this fails, the next write starts at the same byte.
                let _ = self.file.set_len(self.committed);
                self.last = 0;
                Err(LoggerError::io("append to", &self.path, source))
            }
        }
    }

    /// Makes the last record final; the next one follows it.
    pub(super) fn commit(&mut self) {
        self.committed += self.last;
        self.last = 0;
    }

    /// Writes a final record.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), LoggerError> {
        self.replace_last(record)?;
        self.commit();
        Ok(())
    }

    /// The length of what is final, in bytes.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// Waits until all that was written is on the disk.
    pub(super) fn sync(&self) -> Result<(), LoggerError> {
        self.file
            .sync_data()
            .map_err(|source| LoggerError::io("write", &self.path, source))
    }
}

/// The length of the part of a file of lines that ends with a newline: what follows it is a line that a killed process
/// did not finish.
pub(super) fn whole_lines(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or_default()];
        file.seek(SeekFrom::Start(start))?;
        io::Read::read_exact(file, &mut block)?;
        if let Some(newline) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + newline as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_record_is_replaced_until_it_is_committed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut file = AppendFile::open(&path, 0).unwrap();
        file.replace_last(b"a longer one\n").unwrap();
        file.replace_last(b"one\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        file.commit();
        file.append(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(file.committed(), 8);

        let mut file = AppendFile::open(&path, 4).unwrap();
        file.replace_last(b"2\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n2\n");
        assert!(AppendFile::create_new(&path).unwrap().is_none());
    }

    #[test]
    fn whole_lines_end_at_the_last_newline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let long = format!("{}\n{}", "x".repeat(100_000), "y".repeat(200_000));
        for (text, expected) in [
            ("", 0),
            ("torn", 0),
            ("a\n", 2),
            ("a\nb\ntorn", 4),
            (&long, 100_001),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(whole_lines(&mut File::open(&path).unwrap()).unwrap(), expected);
        }
    }
}
