use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;

use super::model::{Batch, Size};

/// So few that they are made in no time, so many that no loop could keep them in a cache.
const NUM_BATCHES: usize = 32;

/// Looks on as batches are taken: it is called before the batch of each step is handed out.
type Observer = Box<dyn FnMut(usize) + Send>;

/// Where a loop gets its batches: made beforehand, so that loading data is no part of any loop's time.
#[derive(Clone)]
pub(super) struct Source {
    size: Size,
    num_steps: usize,
    observer: Arc<Mutex<Observer>>,
}

impl Source {
    /// `num_steps` batches; `observe` is called with the index of each step, before its batch is handed out. A loop that reads
    /// one batch ahead is observed one step early, always by the same.
    pub(super) fn new(size: Size, num_steps: usize, observe: impl FnMut(usize) + Send + 'static) -> Self {
        Self {
            size,
            num_steps,
            observer: Arc::new(Mutex::new(Box::new(observe))),
        }
    }

    pub(super) fn num_steps(&self) -> usize {
        self.num_steps
    }

    /// Makes the batches on a device and starts to hand them out.
    pub(super) fn open(&self, device: &Device) -> Feed {
        Feed {
            batches: self.size.batches(NUM_BATCHES, device),
            source: self.clone(),
            step: 0,
        }
    }
}

/// Hands out batches of a few, again and again.
pub(super) struct Feed {
    batches: Vec<Batch>,
    source: Source,
    step: usize,
}

impl Feed {
    /// The number of batches that were handed out.
    pub(super) fn step(&self) -> usize {
        self.step
    }
}

impl Iterator for Feed {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        if self.step >= self.source.num_steps {
            return None;
        }
        (self
            .source
            .observer
            .lock()
            .unwrap_or_else(PoisonError::into_inner))(self.step);
        let batch = self.batches[self.step % self.batches.len()].clone();
        self.step += 1;
        Some(batch)
    }
}
