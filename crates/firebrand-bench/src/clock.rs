//! The time per step of a trainer, from outside: read where it asks for batches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};
use firebrand::Batch;
use firebrand::data::DataLoader;

const NUM_WINDOWS: usize = 3;

/// A few steps that meet new memory, and then windows of steps whose times count.
pub(crate) struct Clock {
    warmup: usize,
    window: usize,
    marks: Arc<Mutex<Vec<Instant>>>,
}

impl Clock {
    pub(crate) fn new(warmup: usize, window: usize) -> Result<Self> {
        ensure!(window > 0, "a window has at least one step");
        Ok(Self {
            warmup,
            window,
            marks: Arc::default(),
        })
    }

    /// One more step begins when the last window ends, and the trainer reads one ahead.
    pub(crate) fn num_steps(&self) -> usize {
        self.warmup + self.window * NUM_WINDOWS + 2
    }

    /// Gives batches that were made beforehand, again and again, and reads the clock where the trainer asks for the one that opens a
    /// window. Backends that compute later than they are asked to would make that time too early: those here do not.
    pub(crate) fn loader<B: Batch + Sync>(&self, made: Vec<B>) -> DataLoader<B> {
        let (warmup, window, num_steps) = (self.warmup, self.window, self.num_steps());
        let is_mark = move |step: usize| {
            step >= warmup && (step - warmup).is_multiple_of(window) && step < num_steps - 1
        };
        let marks = Arc::clone(&self.marks);
        DataLoader::from_stream(move |_| {
            let (made, marks) = (made.clone(), Arc::clone(&marks));
            Ok((0..num_steps).map(move |step| {
                if is_mark(step) {
                    marks
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Instant::now());
                }
                Ok(made[step % made.len()].clone())
            }))
        })
        .epoch_batches(num_steps as u64)
    }

    /// Milliseconds per step of each window, after the fit.
    pub(crate) fn windows(&self) -> Result<Vec<f64>> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let windows: Vec<f64> = marks
            .windows(2)
            .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3 / self.window as f64)
            .collect();
        ensure!(
            windows.len() == NUM_WINDOWS,
            "the run ended after {} windows",
            windows.len()
        );
        Ok(windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_needs_a_step() {
        assert!(Clock::new(5, 0).is_err());
        let clock = Clock::new(5, 20).unwrap();
        assert_eq!(clock.num_steps(), 67);
        assert!(clock.windows().is_err(), "nothing was trained");
    }
}
