use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{CheckpointError, error::IoContext};

/// The size and the checksum of one file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileEntry {
    /// The length in bytes.
    pub size: u64,
    /// SHA-256 of the content, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// Creates a file that must not exist, lets `body` fill it, and returns once it is on the device.
pub(super) fn create_file(
    path: &Path,
    body: impl FnOnce(&mut dyn Write) -> Result<(), BodyError>,
) -> Result<FileEntry, CheckpointError> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .context("create", path)?;
    let mut writer = BufWriter::with_capacity(
        1 << 20,
        Hashed {
            file,
            digest: Sha256::new(),
            size: 0,
        },
    );
    match body(&mut writer) {
        Ok(()) => {}
        Err(BodyError::Io(error)) => return Err(error).context("write", path),
        Err(BodyError::Content(error)) => return Err(*error),
    }
    let hashed = writer
        .into_inner()
        .map_err(io::IntoInnerError::into_error)
        .context("write", path)?;
    hashed.file.sync_all().context("sync", path)?;
    Ok(FileEntry {
        size: hashed.size,
        sha256: hex(&hashed.digest.finalize()),
    })
}

/// What can go wrong while a file is filled.
pub(super) enum BodyError {
    Io(io::Error),
    Content(Box<CheckpointError>),
}

impl From<io::Error> for BodyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<CheckpointError> for BodyError {
    fn from(error: CheckpointError) -> Self {
        Self::Content(Box::new(error))
    }
}

/// A file whose bytes are counted and hashed on their way.
struct Hashed {
    file: File,
    digest: Sha256,
    size: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Replaces a file as a whole: readers see the old content or the new one, also after a crash.
pub(super) fn replace_file(
    path: &Path,
    temporary_prefix: &str,
    create: impl FnOnce(&Path) -> Result<FileEntry, CheckpointError>,
) -> Result<(), CheckpointError> {
    let parent = parent_of(path);
    // A directory around the file, since `create` must find a free name.
    let temporary = temporary_dir(parent, temporary_prefix)?;
    let file = temporary.path().join("content");
    create(&file).map_err(|error| error.relocated(&file, path))?;
    fs::rename(&file, path).context("replace", path)?;
    sync_dir(parent)
}

/// A directory that is removed again when it is dropped, with the permissions that the user's mask allows.
pub(super) fn temporary_dir(parent: &Path, prefix: &str) -> Result<tempfile::TempDir, CheckpointError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    // Without this only the owner could ever read the checkpoint that the directory becomes.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder
        .tempdir_in(parent)
        .context("create a temporary directory in", parent)
}

/// Makes the entries of a directory durable: files in it that were created, renamed or removed.
pub(super) fn sync_dir(path: &Path) -> Result<(), CheckpointError> {
    // Only Unix can open a directory as a file.
    #[cfg(unix)]
    match File::open(path).and_then(|dir| dir.sync_all()) {
        // Some network and FUSE file systems cannot sync a directory; there is nothing more to do on them.
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            return Err(error).context("sync", path);
        }
        _ => {}
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// The directory that holds a path: `.` for a bare name.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Opens a file that has a length: opening a pipe or a device could wait forever.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), CheckpointError> {
    let metadata = fs::metadata(path).context("read", path)?;
    if !metadata.is_file() {
        return Err(CheckpointError::damaged(path, "it is not a regular file"));
    }
    let file = File::open(path).context("read", path)?;
    let size = file.metadata().context("read", path)?.len();
    Ok((file, size))
}

/// The size and the checksum of a file that exists.
pub(super) fn hash_file(path: &Path) -> Result<FileEntry, CheckpointError> {
    let (mut file, _) = open_regular(path)?;
    let mut digest = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).context("read", path)? {
            0 => {
                return Ok(FileEntry {
                    size,
                    sha256: hex(&digest.finalize()),
                });
            }
            read => {
                digest.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// Reads a regular file of at most `limit` bytes.
pub(super) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let (file, size) = open_regular(path)?;
    let too_long = || CheckpointError::damaged(path, format!("it is longer than {limit} bytes"));
    if size > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size as usize)
        .map_err(|_| CheckpointError::OutOfMemory {
            path: path.to_owned(),
            num_bytes: size,
        })?;
    // The file may grow in between: the limit holds for what is read, too.
    let read = file
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .context("read", path)?;
    if read as u64 > limit {
        Err(too_long())
    } else {
        Ok(bytes)
    }
}

/// SHA-256 of bytes in memory, as hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of "abc", from FIPS 180-4's examples.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn what_is_hashed_on_the_way_equals_what_is_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        let entry = create_file(&path, |file| Ok(file.write_all(b"abc")?)).unwrap();
        assert_eq!((entry.size, entry.sha256.as_str()), (3, ABC));
        assert_eq!(hash_file(&path).unwrap(), entry);
        assert_eq!(sha256(b"abc"), ABC);
        assert!(
            create_file(&path, |_| Ok(())).is_err(),
            "an existing file was overwritten"
        );
    }

    #[test]
    fn reading_stops_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), b"12345");
        assert!(
            read_file(&path, 4)
                .unwrap_err()
                .to_string()
                .contains("longer than 4 bytes")
        );
    }

    #[test]
    fn a_failed_replacement_keeps_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        replace_file(&path, ".tmp-", |file| {
            create_file(file, |file| Ok(file.write_all(b"old")?))
        })
        .unwrap();
        let failing = |file: &mut dyn Write| {
            file.write_all(b"new")?;
            Err(io::Error::from(io::ErrorKind::StorageFull).into())
        };
        let error = replace_file(&path, ".tmp-", |file| create_file(file, failing))
            .unwrap_err()
            .to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "a temporary file was left"
        );
    }
}
