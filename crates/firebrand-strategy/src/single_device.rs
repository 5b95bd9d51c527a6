use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use firebrand_core::AnyTensor;

use crate::{Error, Gradient, GradientExchange, GradientSink};

/// One device: gradients are added up where they are.
#[derive(Default)]
pub struct SingleDevice {
    accumulator: Arc<Accumulator>,
}

impl SingleDevice {
    /// Without gradients.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Adds gradients into each other, so that one is freed as soon as it has been added.
#[derive(Default)]
struct Accumulator(Mutex<BTreeMap<usize, AnyTensor>>);

impl GradientSink for Accumulator {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = match sums.remove(&parameter) {
            Some(sum) => sum.add(gradient),
            None => gradient,
        };
        sums.insert(parameter, sum);
    }
}

impl GradientExchange for SingleDevice {
    fn sink(&self) -> Arc<dyn GradientSink> {
        Arc::clone(&self.accumulator) as Arc<dyn GradientSink>
    }

    fn begin_backward(&mut self, _last: bool) {}

    fn finish(&mut self, weight: f64) -> Result<(Vec<Gradient>, f64), Error> {
        let sums = std::mem::take(&mut *self.accumulator.0.lock().unwrap_or_else(PoisonError::into_inner));
        let gradients = sums
            .into_iter()
            .map(|(parameter, value)| Gradient { parameter, value })
            .collect();
        Ok((gradients, weight))
    }
}
