use std::sync::Arc;

use firebrand_collective::{Buffer, DType, ProcessGroup};
use firebrand_core::AnyTensor;
use serde::{Deserialize, Serialize};

use super::reducer::Reducer;
use crate::{Error, GradientExchange, GradientSink, GradientSpecs, Reduced, Share};

/// The type in which gradients go over the wire. They are added up in float32 on each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientCompression {
    /// bfloat16: the range of float32, 8 bits of precision.
    Bf16,
    /// float16: 11 bits of precision, and nothing above 65504.
    F16,
}

impl GradientCompression {
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }
}

/// The options of data parallel training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct DdpOptions {
    /// The size of a bucket in bytes; default 25 MiB.
    pub bucket_bytes: usize,
    /// The size of the first bucket in bytes, so that communication starts early; default 1 MiB.
    pub first_bucket_bytes: usize,
    /// A gradient of at least so many bytes is reduced by itself and in its own memory, rather than copied into a bucket; default
    /// 1 MiB.
    pub in_place_bytes: usize,
    /// Whether ranks may use different parameters in a step; default no, and a parameter that only some of them use is an error.
    /// A parameter that is used somewhere counts zero elsewhere; one that is used nowhere has no gradient.
    pub find_unused_parameters: bool,
    /// A smaller type for gradients on the wire; default none.
    pub compression: Option<GradientCompression>,
}

impl Default for DdpOptions {
    fn default() -> Self {
        Self {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            in_place_bytes: 1 << 20,
            find_unused_parameters: false,
            compression: None,
        }
    }
}

/// Sums gradients over the ranks of a group in buckets, while the backward pass goes on.
///
/// Micro-batches add up in the buckets, and only the last of an update communicates. A gradient that is large is a bucket of its own
/// and stays in its own memory.
pub struct DataParallel {
    group: Arc<dyn ProcessGroup>,
    options: DdpOptions,
    reducers: Vec<Arc<Reducer>>,
    /// Orders of buckets from a checkpoint.
    saved: Vec<Option<Vec<String>>>,
}

/// What a checkpoint keeps.
#[derive(Serialize, Deserialize)]
struct SavedLayout {
    world_size: usize,
    /// For each optimizer, the paths of its parameters in the order of the buckets.
    orders: Vec<Option<Vec<String>>>,
}

impl DataParallel {
    /// Exchanges gradients in a group.
    pub fn new(group: Arc<dyn ProcessGroup>, options: DdpOptions) -> Self {
        Self {
            group,
            options,
            reducers: Vec::new(),
            saved: Vec::new(),
        }
    }

    fn reducer(&self, optimizer: usize) -> Option<&Arc<Reducer>> {
        self.reducers.get(optimizer)
    }

    fn unexpected(optimizer: usize) -> Error {
        Error::optimizer(format!(
            "optimizer {optimizer} has not said which gradients it gets"
        ))
    }
}

/// For an optimizer that is not there.
struct Nowhere;

impl GradientSink for Nowhere {
    fn push(&self, _: usize, _: AnyTensor) {}
}

impl GradientExchange for DataParallel {
    fn expect(&mut self, optimizer: usize, specs: GradientSpecs) -> Result<(), Error> {
        let kept = self.reducer(optimizer).and_then(|reducer| reducer.order());
        let reducer = Reducer::new(Arc::clone(&self.group), self.options.clone(), specs)?;
        let saved = self.saved.get(optimizer).cloned().flatten();
        if let Some(order) = kept.or(saved) {
            reducer.set_order(&order)?;
        }
        let reducer = Arc::new(reducer);
        match self.reducers.get_mut(optimizer) {
            Some(place) => *place = reducer,
            None => self.reducers.push(reducer),
        }
        Ok(())
    }

    fn sink(&self, optimizer: usize) -> Arc<dyn GradientSink> {
        match self.reducer(optimizer) {
            Some(reducer) => Arc::clone(reducer) as Arc<dyn GradientSink>,
            None => Arc::new(Nowhere),
        }
    }

    fn num_ranks(&self) -> usize {
        self.group.size()
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn begin_backward(&mut self, optimizer: usize, last: bool) {
        if let Some(reducer) = self.reducer(optimizer) {
            reducer.begin_backward(last);
        }
    }

    fn finish(&mut self, optimizer: usize, share: Share) -> Result<Reduced, Error> {
        self.reducer(optimizer)
            .ok_or_else(|| Self::unexpected(optimizer))?
            .finish(share)
    }

    fn discard(&mut self, optimizer: usize) -> Result<(), Error> {
        self.reducer(optimizer)
            .map_or(Ok(()), |reducer| reducer.discard())
    }

    fn agree(&mut self, value: f64) -> Result<f64, Error> {
        let agreed = self.group.broadcast(Buffer::from_slice(&[value]), 0).wait()?;
        Ok(agreed.as_slice::<f64>()?.first().copied().unwrap_or(value))
    }

    fn state(&self) -> serde_json::Value {
        serde_json::json!(SavedLayout {
            world_size: self.group.size(),
            orders: self.reducers.iter().map(|reducer| reducer.order()).collect(),
        })
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<(), Error> {
        let Ok(saved) = serde_json::from_value::<SavedLayout>(state.clone()) else {
            return Ok(());
        };
        if saved.world_size != self.group.size() {
            return Ok(());
        }
        for (reducer, order) in self.reducers.iter().zip(&saved.orders) {
            if let Some(order) = order {
                reducer.set_order(order)?;
            }
        }
        self.saved = saved.orders;
        Ok(())
    }
}
