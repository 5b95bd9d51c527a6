use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_core::{AnyTensor, ErasedModule, ParamInfo, ParamVisitor};
use firebrand_strategy::{Engine, EngineState};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::checkpoint::{Checkpoint, CheckpointError, Snapshot, f64_from_json, f64_to_json};
use crate::logging::{Accumulators, SavedAccumulators};

use super::counters::Counters;
use super::events::Events;
use super::restore::{assign_weights, check_weights, foreign, tensors_of};

/// What `state.json` holds.
#[derive(Serialize, Deserialize)]
struct SavedState {
    /// Of the counters, and at the top for whoever lists checkpoints.
    epoch: u64,
    global_step: u64,
    counters: Counters,
    seed: u64,
    precision: String,
    /// Data-parallel ranks and pipeline stages.
    mesh: [usize; 2],
    /// The samples of a micro-batch on all ranks together, if the loader says it.
    #[serde(default)]
    global_batch: Option<u64>,
    /// Whether the loader's own batch size gives another one.
    #[serde(default)]
    batch_overridden: bool,
    /// Micro-batches per update at this point, and what the options said.
    accumulate_grad_batches: u64,
    configured_accumulation: u64,
    /// Whether it was taken only to go on from, so that it can go when the run does.
    on_exit: bool,
    engine: Value,
    epoch_values: SavedAccumulators,
    metrics: BTreeMap<String, Value>,
    callbacks: BTreeMap<String, Value>,
    module: Option<Value>,
}

/// The parts of a running fit that a checkpoint is taken of.
pub(super) struct Saved<'a> {
    pub module: &'a mut Box<dyn ErasedModule>,
    pub engine: &'a mut Engine,
    pub counters: &'a mut Counters,
    pub epoch_values: &'a mut Accumulators,
    pub metrics: &'a mut BTreeMap<String, f64>,
    pub accumulate: &'a mut u64,
    pub configured_accumulation: u64,
    pub events: &'a mut Events,
    pub exit_checkpoint: &'a mut Option<String>,
    pub seed: u64,
    pub precision: &'a str,
    pub world_size: usize,
    /// Whether batches have another size than the loader's, to keep the global batch.
    pub batch_overridden: bool,
    pub is_global_zero: bool,
    /// The samples of an update's micro-batch on all ranks together, if the loader says it.
    pub global_batch: Option<u64>,
}

impl Saved<'_> {
    /// Copies everything to the host.
    ///
    /// `epoch_values` are those of all ranks.
    pub(super) fn snapshot(&mut self, on_exit: bool, epoch_values: SavedAccumulators) -> Snapshot {
        let EngineState { tensors, scalars } = self.engine.state();
        let mut extra = BTreeMap::new();
        let mut callbacks = BTreeMap::new();
        for callback in self.events.iter() {
            callbacks.insert(callback.name(), callback.state().unwrap_or(Value::Null));
            let tensors = callback.tensors();
            if !tensors.is_empty() {
                extra.insert(file_stem(&callback.name()), tensors);
            }
        }
        let state = SavedState {
            epoch: self.counters.epoch,
            global_step: self.counters.global_step,
            counters: self.counters.clone(),
            seed: self.seed,
            precision: self.precision.to_owned(),
            mesh: [self.world_size, 1],
            global_batch: self.global_batch,
            batch_overridden: self.batch_overridden,
            accumulate_grad_batches: *self.accumulate,
            configured_accumulation: self.configured_accumulation,
            on_exit,
            engine: scalars,
            epoch_values,
            metrics: self
                .metrics
                .iter()
                .map(|(name, value)| (name.clone(), f64_to_json(*value)))
                .collect(),
            callbacks,
            module: self.module.on_save_checkpoint(),
        };
        Snapshot {
            weights: weights_of(self.module.as_ref()),
            optimizer: tensors,
            extra,
            state: serde_json::json!(state),
        }
    }

    /// Goes to where a checkpoint was taken. The module's values change last, when nothing can fail any more.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let path = checkpoint.path();
        let mut snapshot = checkpoint.snapshot()?;
        let state: SavedState =
            serde_json::from_value(snapshot.state).map_err(|error| foreign(path, error))?;
        if state.seed != self.seed {
            tracing::warn!(
                "the checkpoint was made with seed {}, and the run goes on with seed {}: data order and dropout differ from \
                 what they would have been",
                state.seed,
                self.seed
            );
        }
        check_weights(self.engine.table(), &snapshot.weights, path)?;
        let mut metrics = BTreeMap::new();
        for (name, value) in &state.metrics {
            let value = f64_from_json(value)
                .ok_or_else(|| foreign(path, format!("the metric '{name}' is no number")))?;
            metrics.insert(name.clone(), value);
        }
        self.engine
            .load_state(EngineState {
                tensors: snapshot.optimizer,
                scalars: state.engine,
            })
            .map_err(|error| foreign(path, error))?;
        for callback in self.events.iter_mut() {
            let name = callback.name();
            let Some(saved) = state.callbacks.get(&name) else {
                tracing::warn!("the checkpoint has no state for the callback {name}, which starts afresh");
                continue;
            };
            let tensors = snapshot.extra.remove(&file_stem(&name)).unwrap_or_default();
            callback.load_state(saved, tensors).map_err(|error| {
                foreign(
                    path,
                    format!("its state of the callback {name} cannot be used: {error}"),
                )
            })?;
        }
        if let Some(saved) = &state.module {
            self.module
                .on_load_checkpoint(saved)
                .map_err(|error| foreign(path, format!("on_load_checkpoint refused it: {error}")))?;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        *self.exit_checkpoint = name.filter(|_| state.on_exit);
        *self.counters = state.counters;
        // They are of all ranks together, and go on on the first.
        *self.epoch_values = if self.is_global_zero {
            Accumulators::restore(state.epoch_values)
        } else {
            Accumulators::default()
        };
        *self.metrics = metrics;
        if state.configured_accumulation == self.configured_accumulation {
            // A scheduler may have changed it; other options than then win over that.
            *self.accumulate = state.accumulate_grad_batches.max(1);
        }
        let device = self.engine.device().clone();
        let weights = tensors_of(snapshot.weights, &device);
        assign_weights(self.module.as_mut(), &weights, &device);
        Ok(())
    }
}

/// The global batch that a run had.
pub(super) struct GlobalBatch {
    /// Samples of a micro-batch on all ranks together.
    pub samples: u64,
    pub world_size: usize,
    /// Whether it was kept from another number of ranks.
    pub overridden: bool,
}

/// The global batch of the run that a checkpoint was taken of, if it is known.
pub(super) fn global_batch_of(checkpoint: &Checkpoint) -> Result<Option<GlobalBatch>, Error> {
    let state = checkpoint.state()?;
    let samples = state.get("global_batch").and_then(Value::as_u64);
    let ranks = state
        .get("mesh")
        .and_then(|mesh| mesh.get(0))
        .and_then(Value::as_u64);
    let overridden = state.get("batch_overridden").and_then(Value::as_bool);
    Ok(samples.zip(ranks).map(|(samples, ranks)| GlobalBatch {
        samples,
        overridden: overridden.unwrap_or_default(),
        world_size: usize::try_from(ranks).unwrap_or_default(),
    }))
}

/// The name of a callback's tensor file: letters, digits, `-` and `_`.
fn file_stem(name: &str) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' {
            letter.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    format!("callback-{}", name.chars().map(plain).collect::<String>())
}

/// Every parameter and buffer by path, on the host. Running statistics come from the validation twin, which has the update
/// that the module still holds back.
pub(crate) fn weights_of(module: &dyn ErasedModule) -> BTreeMap<String, TensorData> {
    weights_where(module, |_| true)
}

/// Those of them whose paths are wanted; only these are copied.
pub(super) fn weights_where(
    module: &dyn ErasedModule,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<String, TensorData> {
    let mut weights = Weights {
        wanted,
        found: BTreeMap::new(),
    };
    module.evaluation_twin().visit_params(&mut weights);
    weights.found
}

struct Weights<F> {
    wanted: F,
    found: BTreeMap<String, TensorData>,
}

impl<F: Fn(&str) -> bool> ParamVisitor for Weights<F> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        (self.wanted)(info.path)
    }

    fn visit(&mut self, info: &ParamInfo<'_>, value: AnyTensor, _: bool) {
        self.found.insert(info.path.to_owned(), value.into_data());
    }
}

/// Why a checkpoint could not be written, for the one line that the user sees.
pub(super) fn report_failure(error: &CheckpointError) {
    tracing::error!(
        "{}; training goes on, and earlier checkpoints are whole",
        firebrand_core::ErrorChain(error)
    );
}
