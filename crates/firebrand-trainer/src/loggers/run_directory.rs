use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::LoggerError;

const VERSION_PREFIX: &str = "version_";

/// Where a run writes: `<root>/<name>/version_N`.
///
/// Rank 0 chooses it once per run; a resumed run goes on in the directory that it resumes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
    root: PathBuf,
    name: String,
    version: u64,
}

impl RunDirectory {
    /// Makes the next free `<root>/<name>/version_N`, from `version_0`.
    ///
    /// Each call makes another directory, also when several processes call it at once.
    ///
    /// # Errors
    ///
    /// [`LoggerError::RunName`] if `name` is not one plain path component, [`LoggerError::Io`] if the directory cannot
    /// be made.
    pub fn create(root: impl AsRef<Path>, name: &str) -> Result<Self, LoggerError> {
        let root = root.as_ref().to_owned();
        let mut components = Path::new(name).components();
        // `components` drops a trailing separator, hence the comparison.
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name);
        if !plain {
            return Err(LoggerError::RunName {
                name: name.to_owned(),
            });
        }
        let parent = root.join(name);
        fs::create_dir_all(&parent).map_err(|source| LoggerError::io("create", &parent, source))?;
        let mut version = first_free_version(&parent)?;
        loop {
            let path = parent.join(format!("{VERSION_PREFIX}{version}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    return Ok(Self {
                        path,
                        root,
                        name: name.to_owned(),
                        version,
                    });
                }
                Err(source) if source.kind() == io::ErrorKind::AlreadyExists => version += 1,
                Err(source) => return Err(LoggerError::io("create", &path, source)),
            }
        }
    }

    /// The existing run directory at `path`, for a run that goes on in it.
    ///
    /// # Errors
    ///
    /// [`LoggerError::NotARunDirectory`] if `path` does not exist or does not end in `<name>/version_N`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LoggerError> {
        let path = path.as_ref();
        let refuse = |reason| LoggerError::NotARunDirectory {
            path: path.to_owned(),
            reason,
        };
        // Resolved, so that `.` inside a run directory opens it too.
        let path = path
            .canonicalize()
            .map_err(|_| refuse("it does not exist or cannot be read"))?;
        if !path.is_dir() {
            return Err(refuse("it is a file"));
        }
        let version = path
            .file_name()
            .and_then(|name| parse_version(&name.to_string_lossy()));
        let version = version.ok_or_else(|| refuse("its name is not `version_N`"))?;
        let parent = path.parent().ok_or_else(|| refuse("it has no parent"))?;
        let name = parent
            .file_name()
            .ok_or_else(|| refuse("its parent has no name"))?;
        let name = name.to_string_lossy().into_owned();
        let root = parent.parent().unwrap_or(parent).to_owned();
        Ok(Self {
            path,
            root,
            name,
            version,
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that holds all runs.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name that the versions of this run share.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// N of `version_N`.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Where the run's checkpoints lie; it need not exist yet.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }
}

/// One more than the newest version, so that the gap of a deleted run is not filled with a later one.
fn first_free_version(parent: &Path) -> Result<u64, LoggerError> {
    let entries = fs::read_dir(parent).map_err(|source| LoggerError::io("read", parent, source))?;
    let versions = entries
        .flatten()
        .filter_map(|entry| parse_version(&entry.file_name().to_string_lossy()));
    Ok(versions.max().map_or(0, |newest| newest.saturating_add(1)))
}

fn parse_version(name: &str) -> Option<u64> {
    name.strip_prefix(VERSION_PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn versions_count_up_and_leave_gaps_alone() {
        let root = tempfile::tempdir().unwrap();
        let first = RunDirectory::create(root.path(), "digits").unwrap();
        assert_eq!(first.path(), root.path().join("digits").join("version_0"));
        assert_eq!(
            (first.root(), first.name(), first.version()),
            (root.path(), "digits", 0)
        );
        assert_eq!(first.checkpoints(), first.path().join("checkpoints"));

        fs::create_dir(root.path().join("digits").join("version_7")).unwrap();
        fs::create_dir(root.path().join("digits").join("version_old")).unwrap();
        assert_eq!(RunDirectory::create(root.path(), "digits").unwrap().version(), 8);
        assert_eq!(RunDirectory::create(root.path(), "other").unwrap().version(), 0);
    }

    #[test]
    fn runs_that_start_at_once_get_directories_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let versions: BTreeSet<u64> = std::thread::scope(|scope| {
            let create = || RunDirectory::create(root.path(), "digits").unwrap().version();
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(versions, (0..16).collect());
    }

    #[test]
    fn an_opened_directory_equals_the_created_one() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let created = RunDirectory::create(&root, "digits").unwrap();
        assert_eq!(RunDirectory::open(created.path()).unwrap(), created);
        assert_eq!(
            RunDirectory::open(created.path().join("..").join("version_0")).unwrap(),
            created
        );
    }

    #[test]
    fn other_paths_are_refused_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("version_1");
        fs::write(&file, "").unwrap();
        for (path, reason) in [
            (root.path(), "version_N"),
            (&root.path().join("version_9"), "exist"),
            (&file, "a file"),
        ] {
            let message = RunDirectory::open(path).unwrap_err().to_string();
            assert!(message.contains(reason), "{message}");
        }
        for name in ["", "..", ".", "a/b", "/a", "a/"] {
            let refused = RunDirectory::create(root.path(), name);
            assert!(matches!(refused, Err(LoggerError::RunName { .. })), "{name:?}");
        }
    }
}
