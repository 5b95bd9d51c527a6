use std::collections::BTreeMap;

use burn::tensor::TensorData;
use serde_json::Value;

/// Everything of one checkpoint, on the host.
///
/// ```
/// use burn::tensor::TensorData;
/// use firebrand_trainer::checkpoint::Snapshot;
///
/// let mut snapshot = Snapshot::default();
/// snapshot.weights.insert("net.weight".into(), TensorData::from([[1.0f32, 2.0], [3.0, 4.0]]));
/// snapshot.state = serde_json::json!({ "epoch": 3, "global_step": 1200 });
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Parameters and buffers by path; `model.safetensors`.
    pub weights: BTreeMap<String, TensorData>,
    /// The optimizer's tensors by name; `optimizer.safetensors`.
    pub optimizer: BTreeMap<String, TensorData>,
    /// Further tensors by the name of their file: `ema` is stored as `ema.safetensors`.
    pub extra: BTreeMap<String, BTreeMap<String, TensorData>>,
    /// Loop counters, schedulers, callbacks, metric accumulators; `state.json`.
    ///
    /// Its content is the caller's. Finite `f64` values come back bit for bit; for others see
    /// [`f64_to_json`](super::f64_to_json). Top-level integers `epoch` and `global_step` are shown by
    /// [`Checkpoint::summary`](super::Checkpoint::summary) and order the checkpoints of a directory.
    pub state: Value,
}
