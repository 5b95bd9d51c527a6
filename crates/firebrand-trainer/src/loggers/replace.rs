use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use super::LoggerError;

/// Writes `path` anew, so that a reader or a crash sees the old content or the whole new one.
///
/// The new content goes to a hidden file beside it, reaches the disk, and takes the name. One process writes a run's
/// directory, so the hidden file has a fixed name: what a killed process left is overwritten.
pub(super) fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), LoggerError> {
    let partial = partial_path(path);
    let outcome = write_and_rename(path, &partial, write);
    if outcome.is_err() {
        // The error of the write is the one that matters.
        let _ = fs::remove_file(&partial);
    }
    outcome.map_err(|source| LoggerError::io("write", path, source))
}

/// Removes what a process that was killed in [`replace_file`] left.
pub(super) fn discard_partial(path: &Path) -> Result<(), LoggerError> {
    let partial = partial_path(path);
    match fs::remove_file(&partial) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(LoggerError::io("remove", &partial, source))
        }
        _ => Ok(()),
    }
}

fn write_and_rename(
    path: &Path,
    partial: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut writer = BufWriter::new(File::create(partial)?);
    write(&mut writer)?;
    writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    fs::rename(partial, path)?;
    sync_directory_of(path)
}

/// Makes a name that was created or changed in the directory of `path` survive a power failure.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    if cfg!(unix)
        && let Some(parent) = path.parent()
    {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn partial_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old").unwrap();

        let failed = replace_file(&path, |writer| {
            writer.write_all(b"half of the ne")?;
            writer.flush()?;
            Err(io::ErrorKind::StorageFull.into())
        });

        let message = failed.unwrap_err().to_string();
        assert!(
            message.contains("file") && message.contains("free space"),
            "{message}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_left_is_no_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(directory.path().join(".file.partial"), "a long remainder").unwrap();

        replace_file(&path, |writer| writer.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");

        fs::write(directory.path().join(".file.partial"), "again").unwrap();
        discard_partial(&path).unwrap();
        discard_partial(&path).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
