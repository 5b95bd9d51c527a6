use std::sync::{Arc, Mutex, PoisonError};

use firebrand_core::AnyTensor;

use crate::GradientSink;
use crate::clip::is_finite;

/// Keeps the gradients of one backward pass beside the sink that they go to, to look at them afterwards.
#[derive(Default)]
pub(super) struct Watch(Mutex<Vec<(usize, AnyTensor)>>);

impl Watch {
    /// A sink that passes everything on.
    pub(super) fn sink(self: &Arc<Self>, inner: Arc<dyn GradientSink>) -> Arc<dyn GradientSink> {
        Arc::new(Watched {
            inner,
            watch: Arc::clone(self),
        })
    }

    /// The parameter whose gradient is the first, in the order of the backward pass, that is not finite.
    pub(super) fn first_not_finite(&self) -> Option<usize> {
        let seen = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        seen.into_iter()
            .find(|(_, gradient)| !is_finite(gradient))
            .map(|(parameter, _)| parameter)
    }
}

struct Watched {
    inner: Arc<dyn GradientSink>,
    watch: Arc<Watch>,
}

impl GradientSink for Watched {
    fn push(&self, parameter: usize, gradient: AnyTensor) {
        let mut seen = self.watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((parameter, gradient.clone()));
        self.inner.push(parameter, gradient);
    }
}
