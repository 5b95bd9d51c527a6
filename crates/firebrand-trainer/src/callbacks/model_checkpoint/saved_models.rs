use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::kept::{Entry, Kept};

/// What a [`ModelCheckpoint`](super::ModelCheckpoint) has written: a handle that stays with you when the callback goes to the
/// trainer.
///
/// ```
/// use firebrand_trainer::callbacks::ModelCheckpoint;
///
/// let checkpoint = ModelCheckpoint::monitor("val_loss");
/// let saved = checkpoint.saved_models();
/// // Trainer::builder().callback(checkpoint) …, and after the fit:
/// assert_eq!(saved.best_model_path(), None); // Nothing was trained here.
/// ```
#[derive(Clone, Debug, Default)]
pub struct SavedModels(Arc<Mutex<Saved>>);

#[derive(Debug, Default)]
struct Saved {
    best: Option<(PathBuf, f64)>,
    last: Option<PathBuf>,
    kept: Vec<(PathBuf, Option<f64>)>,
}

impl SavedModels {
    fn with<T>(&self, read: impl FnOnce(&mut Saved) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The checkpoint with the best value of the monitored metric; `None` without a monitor, and while every value is
    /// not-a-number.
    pub fn best_model_path(&self) -> Option<PathBuf> {
        self.with(|saved| saved.best.as_ref().map(|(path, _)| path.clone()))
    }

    /// The value of the monitored metric that belongs to [`best_model_path`](Self::best_model_path).
    pub fn best_score(&self) -> Option<f64> {
        self.with(|saved| saved.best.as_ref().map(|(_, value)| *value))
    }

    /// The checkpoint that `last` points to, if [`save_last`](super::ModelCheckpoint::save_last) is on.
    pub fn last_model_path(&self) -> Option<PathBuf> {
        self.with(|saved| saved.last.clone())
    }

    /// The checkpoints that are kept, with their values: from the best to the worst, or without a monitor from the newest to
    /// the oldest.
    pub fn best_k_models(&self) -> Vec<(PathBuf, Option<f64>)> {
        self.with(|saved| saved.kept.clone())
    }

    pub(super) fn publish(&self, directory: &Path, kept: &Kept) {
        let written = |entry: &&Entry| entry.written;
        let path = |entry: &Entry| directory.join(&entry.name);
        let list: Vec<_> = kept
            .top
            .iter()
            .filter(written)
            .map(|entry| (path(entry), entry.value))
            .collect();
        let best = list
            .iter()
            .find_map(|(path, value)| value.filter(|v| !v.is_nan()).map(|v| (path.clone(), v)));
        let last = kept.last.as_ref().filter(written).map(path);
        self.with(|saved| {
            *saved = Saved {
                best,
                last,
                kept: list,
            }
        });
    }
}
