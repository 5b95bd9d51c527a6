use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::Loop;
use super::feed::Source;
use super::model::Size;
use crate::statistics::{median, range};

/// What one turn of a loop consists of, in steps.
#[derive(Clone, Copy, Debug)]
struct Turn {
    warmup: usize,
    window: usize,
    num_windows: usize,
}

impl Turn {
    fn of(size: Size) -> Self {
        match size {
            Size::Small => Self {
                warmup: 200,
                window: 100,
                num_windows: 5,
            },
            // Its first steps meet new memory. Whole logging periods would take too long, and would not show.
            Size::Large => Self {
                warmup: 4,
                window: 4,
                num_windows: 3,
            },
        }
    }

    /// Another step starts when the last window ends, and one more follows for loops that read one ahead.
    fn num_steps(self) -> usize {
        self.warmup + self.window * self.num_windows + 2
    }

    /// Whether a window begins or ends at a step.
    fn is_mark(self, step: usize) -> bool {
        let last = self.warmup + self.window * self.num_windows;
        step >= self.warmup && step <= last && (step - self.warmup).is_multiple_of(self.window)
    }

    /// Microseconds per step of each window.
    fn run(self, which: Loop, size: Size) -> Result<Vec<f64>> {
        let marks = Arc::new(Mutex::new(Vec::with_capacity(self.num_windows + 1)));
        let seen = Arc::clone(&marks);
        let source = Source::new(size, self.num_steps(), move |step| {
            if self.is_mark(step) {
                seen.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Instant::now());
            }
        });
        drop(which.train(size, source)?);
        let marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(
            marks.len() == self.num_windows + 1,
            "{which:?} ended after {} windows",
            marks.len()
        );
        let windows = marks
            .windows(2)
            .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e6);
        Ok(windows.map(|micros| micros / self.window as f64).collect())
    }
}

/// Times per step of every loop.
pub(super) struct Timings(Vec<(Loop, Vec<f64>)>);

impl Timings {
    /// Lets the loops take turns, so that a load on the machine meets them all alike. Each is first as often as the others.
    pub(super) fn measure(size: Size, rounds: u32) -> Result<Self> {
        let mut windows = Loop::ALL.map(|which| (which, Vec::new())).to_vec();
        for _ in 0..rounds {
            for (which, found) in &mut windows {
                found.extend(Turn::of(size).run(*which, size)?);
            }
            windows.rotate_left(1);
        }
        Ok(Self(windows))
    }

    fn windows(&self, which: Loop) -> &[f64] {
        self.0
            .iter()
            .find(|(known, _)| *known == which)
            .map_or(&[], |(_, windows)| windows)
    }

    /// The median window, in microseconds per step.
    pub(super) fn median(&self, which: Loop) -> f64 {
        median(self.windows(which))
    }

    /// The fastest and the slowest window.
    pub(super) fn range(&self, which: Loop) -> (f64, f64) {
        range(self.windows(which))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_marks_the_borders_of_its_windows() {
        let turn = Turn {
            warmup: 2,
            window: 3,
            num_windows: 2,
        };
        let marks: Vec<usize> = (0..turn.num_steps()).filter(|step| turn.is_mark(*step)).collect();
        assert_eq!(marks, [2, 5, 8]);
    }
}
