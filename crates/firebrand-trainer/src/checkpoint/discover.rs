use std::{convert::Infallible, fmt, fs, io, path::PathBuf, str::FromStr, time::SystemTime};

use super::{
    Checkpoint, CheckpointDir, CheckpointError, Pointer, dir::REPLACED, error::IoContext, manifest::Manifest,
    names, read::locate,
};

/// Which checkpoint to start from. As text: `auto`, `last`, `best`, or else a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resume {
    /// The newest valid checkpoint of the run, or a fresh start if there is none.
    Auto,
    /// The one that `checkpoints/last` points to.
    Last,
    /// The one that `checkpoints/best` points to.
    Best,
    /// The one in this directory or behind this pointer file, or the newest valid one of this run's directory.
    Path(PathBuf),
}

impl From<&str> for Resume {
    fn from(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "last" => Self::Last,
            "best" => Self::Best,
            path => Self::Path(path.into()),
        }
    }
}

impl From<&std::path::Path> for Resume {
    fn from(path: &std::path::Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl From<PathBuf> for Resume {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl FromStr for Resume {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.into())
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Last => f.write_str("last"),
            Self::Best => f.write_str("best"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// A directory that may be a checkpoint: it was found, not verified.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The name of the checkpoint.
    pub name: String,
    /// The directory. A hidden one, if the process died while it replaced this checkpoint.
    pub path: PathBuf,
    /// `global_step` by its manifest, or by `step=` in its name if the manifest cannot be read.
    pub global_step: Option<u64>,
    /// When it was finished.
    pub modified: SystemTime,
}

impl CheckpointDir {
    /// The checkpoints, whole or damaged, newest first: by `global_step`, then by time, then by name.
    ///
    /// Unfinished directories of dead writers are not listed. A directory that does not exist holds none.
    pub fn list(&self) -> Result<Vec<Candidate>, CheckpointError> {
        let entries = match fs::read_dir(self.root()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context("read", self.root())?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.context("read", self.root())?;
            let Ok(file_name) = entry.file_name().into_string() else {
                continue;
            };
            if !entry.file_type().context("read", entry.path())?.is_dir() {
                continue;
            }
            let name = file_name.strip_prefix(REPLACED).unwrap_or(&file_name);
            let hidden = name.len() < file_name.len();
            if name.starts_with('.') || (hidden && self.path_of(name).symlink_metadata().is_ok()) {
                continue;
            }
            found.push(candidate(name.to_owned(), entry.path()));
        }
        found.sort_by(|a, b| {
            let key = |c: &Candidate| (c.global_step, c.modified);
            key(b).cmp(&key(a)).then_with(|| b.name.cmp(&a.name))
        });
        Ok(found)
    }

    /// The newest checkpoint that is valid. A warning says why a newer one was passed over.
    ///
    /// # Errors
    /// If the directory itself cannot be read; damaged checkpoints are no error here.
    pub fn newest_valid(&self) -> Result<Option<Checkpoint>, CheckpointError> {
        let candidates = self.list()?;
        for candidate in &candidates {
            match Checkpoint::open(&candidate.path) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(error) => {
                    tracing::warn!(checkpoint = %candidate.path.display(), %error, "skipped a newer checkpoint");
                }
            }
        }
        if !candidates.is_empty() {
            tracing::warn!(
                directory = %self.root().display(),
                skipped = candidates.len(),
                "no checkpoint here can be used"
            );
        }
        Ok(None)
    }

    /// The checkpoint to start from, opened and verified; `None` only for [`Resume::Auto`] without a valid one.
    ///
    /// # Errors
    /// If what was asked for by name is not there or is damaged.
    pub fn resolve(&self, resume: &Resume) -> Result<Option<Checkpoint>, CheckpointError> {
        let pointed = |pointer: Pointer| {
            let path = self.root().join(pointer.file_name());
            if path.symlink_metadata().is_err() {
                return Err(CheckpointError::NoPointer { path });
            }
            Checkpoint::open(locate(&path)?)
        };
        match resume {
            Resume::Auto => self.newest_valid(),
            Resume::Last => pointed(Pointer::Last).map(Some),
            Resume::Best => pointed(Pointer::Best).map(Some),
            Resume::Path(path) => {
                let path = locate(path)?;
                // A run or its directory of checkpoints stands for the newest one in it.
                if path.is_dir() && !path.join(names::MANIFEST).exists() {
                    for root in [path.join("checkpoints"), path.clone()] {
                        if let Some(newest) = CheckpointDir::new(root).newest_valid()? {
                            return Ok(Some(newest));
                        }
                    }
                }
                Checkpoint::open(path).map(Some)
            }
        }
    }
}

fn candidate(name: String, path: PathBuf) -> Candidate {
    let modified = [path.join(names::MANIFEST), path.clone()]
        .iter()
        .find_map(|path| {
            fs::symlink_metadata(path)
                .and_then(|metadata| metadata.modified())
                .ok()
        })
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let global_step = match Manifest::read(&path) {
        Ok(manifest) => manifest.global_step.or_else(|| step_of(&name)),
        Err(_) => step_of(&name),
    };
    Candidate {
        name,
        path,
        global_step,
        modified,
    }
}

/// The number behind `step=` in the name of a checkpoint.
fn step_of(name: &str) -> Option<u64> {
    let (_, rest) = name.rsplit_once("step=")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Snapshot;
    use serde_json::json;

    fn filled(steps: &[u64]) -> (tempfile::TempDir, CheckpointDir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path());
        for step in steps {
            let state = json!({ "global_step": step });
            dir.write(
                &format!("epoch=000-step={step:06}"),
                &Snapshot {
                    state,
                    ..Default::default()
                },
            )
            .unwrap();
        }
        (temp, dir)
    }

    fn step(checkpoint: Option<Checkpoint>) -> Option<u64> {
        checkpoint.and_then(|checkpoint| checkpoint.manifest().global_step)
    }

    #[test]
    fn auto_takes_the_highest_step_not_the_latest_time() {
        let (_temp, dir) = filled(&[5, 30, 10]);
        assert_eq!(step(dir.resolve(&Resume::Auto).unwrap()), Some(30));
        assert_eq!(
            dir.list()
                .unwrap()
                .iter()
                .map(|c| c.global_step)
                .collect::<Vec<_>>(),
            [30, 10, 5].map(Some)
        );
    }

    #[test]
    fn auto_falls_back_over_damaged_ones_and_then_starts_afresh() {
        let (temp, dir) = filled(&[1, 2, 3]);
        let damage = |name: &str, file: &str| fs::write(temp.path().join(name).join(file), "x").unwrap();
        damage("epoch=000-step=000003", "model.safetensors");
        assert_eq!(step(dir.resolve(&Resume::Auto).unwrap()), Some(2));
        damage("epoch=000-step=000002", "manifest.json");
        assert_eq!(step(dir.resolve(&Resume::Auto).unwrap()), Some(1));
        fs::remove_file(temp.path().join("epoch=000-step=000001").join("manifest.json")).unwrap();
        assert_eq!(step(dir.resolve(&Resume::Auto).unwrap()), None);
        assert_eq!(dir.list().unwrap().len(), 3);
        let absent = CheckpointDir::new(temp.path().join("absent"));
        assert!(absent.resolve(&Resume::Auto).unwrap().is_none());
    }

    #[test]
    fn what_is_asked_for_by_name_is_that_or_an_error() {
        let (temp, dir) = filled(&[1, 2]);
        assert!(
            dir.resolve(&Resume::Last)
                .unwrap_err()
                .to_string()
                .contains("no checkpoint was marked so")
        );
        dir.point(Pointer::Last, "epoch=000-step=000002").unwrap();
        dir.point(Pointer::Best, "epoch=000-step=000001").unwrap();
        assert_eq!(step(dir.resolve(&Resume::Last).unwrap()), Some(2));
        assert_eq!(step(dir.resolve(&Resume::Best).unwrap()), Some(1));
        let by_pointer = dir.resolve(&Resume::Path(temp.path().join("best"))).unwrap();
        assert_eq!(by_pointer.as_ref().unwrap().siblings().root(), dir.root());
        assert_eq!(step(by_pointer), Some(1));
        fs::write(dir.path_of("epoch=000-step=000002").join("state.json"), "{}").unwrap();
        assert!(
            dir.resolve(&Resume::Last)
                .unwrap_err()
                .to_string()
                .contains("state.json")
        );
        let absent = Resume::Path(temp.path().join("absent"));
        assert!(
            dir.resolve(&absent)
                .unwrap_err()
                .to_string()
                .contains("nothing at this path")
        );
    }

    #[test]
    fn the_path_of_a_run_stands_for_its_newest_checkpoint() {
        let temp = tempfile::tempdir().unwrap();
        let dir = CheckpointDir::new(temp.path().join("checkpoints"));
        dir.write("epoch=000-step=000001", &Snapshot::default()).unwrap();
        for path in [temp.path(), dir.root()] {
            let found = dir.resolve(&Resume::Path(path.to_owned())).unwrap().unwrap();
            assert_eq!(found.path(), dir.path_of("epoch=000-step=000001"));
        }
        dir.remove("epoch=000-step=000001", crate::checkpoint::Protection::None)
            .unwrap();
        let error = dir
            .resolve(&Resume::Path(temp.path().to_owned()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("has no manifest.json"), "{error}");
    }

    #[test]
    fn a_checkpoint_whose_replacement_was_cut_off_is_found() {
        let (temp, dir) = filled(&[1, 2]);
        dir.point(Pointer::Last, "epoch=000-step=000002").unwrap();
        let home = dir.path_of("epoch=000-step=000002");
        fs::rename(&home, temp.path().join(".replaced-epoch=000-step=000002")).unwrap();
        fs::create_dir(temp.path().join(".tmp-unfinished")).unwrap();
        for resume in [Resume::Auto, Resume::Last, Resume::Path(home.clone())] {
            assert_eq!(step(dir.resolve(&resume).unwrap()), Some(2), "{resume}");
        }
        // The next write gives it its name again.
        dir.write("epoch=000-step=000003", &Snapshot::default()).unwrap();
        assert!(home.is_dir());
    }

    #[test]
    fn text_and_resume_agree() {
        for text in ["auto", "last", "best", "runs/x"] {
            assert_eq!(text.parse::<Resume>().unwrap().to_string(), text);
        }
        assert_eq!(step_of("epoch=003-step=001200-val_loss=0.1"), Some(1200));
        assert_eq!(step_of("best-model"), None);
        assert_eq!(step_of("step=99999999999999999999"), None);
    }
}
