use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firebrand_core::AnyTensor;

use crate::{Error, Gradient, GradientExchange, GradientSink, Reduced, Share};

/// One device: gradients are added up where they are.
#[derive(Default)]
pub struct SingleDevice {
    /// One for each optimizer, made when it is first asked for.
    accumulators: Mutex<Vec<Arc<Accumulator>>>,
}

impl SingleDevice {
    /// Without gradients.
    pub fn new() -> Self {
        Self::default()
    }

    fn accumulator(&self, optimizer: usize) -> Arc<Accumulator> {
        let mut accumulators = self.accumulators.lock().unwrap_or_else(PoisonError::into_inner);
        while accumulators.len() <= optimizer {
            accumulators.push(Arc::default());
        }
        Arc::clone(&accumulators[optimizer])
    }
}

/// Adds gradients into each other, so that one is freed as soon as it has been added.
#[derive(Default)]
struct Accumulator(Mutex<BTreeMap<usize, AnyTensor>>);

impl Accumulator {
    fn sums(&self) -> MutexGuard<'_, BTreeMap<usize, AnyTensor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GradientSink for Accumulator {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        let mut sums = self.sums();
        let sum = match sums.remove(&parameter) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        sums.insert(parameter, sum);
    }
}

impl GradientExchange for SingleDevice {
    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
        self.accumulator(optimizer)
    }

    fn begin_backward(&mut self, _optimizer: usize, _last: bool) {}

    fn finish(&mut self, optimizer: usize, share: Share) -> Result<Reduced, Error> {
        let sums = std::mem::take(&mut *self.accumulator(optimizer).sums());
        let gradients = sums
            .into_iter()
            .map(|(parameter, value)| Gradient { parameter, value })
            .collect();
        Ok(Reduced {
            gradients,
            weight: share.weight,
            failed: share.failed.map(|loss| (0, loss)),
            notes: share.notes,
        })
    }

    fn discard(&mut self, optimizer: usize) -> Result<(), Error> {
        self.accumulator(optimizer).sums().clear();
        Ok(())
    }
}
