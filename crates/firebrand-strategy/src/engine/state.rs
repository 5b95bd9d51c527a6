use std::collections::BTreeMap;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};

use crate::{Engine, Error, LossScaler, LossScalerState};

/// What a checkpoint keeps of the engine.
#[derive(Clone, Debug, Default)]
pub struct EngineState {
    /// The states of the optimizers: tensors named `path.leaf`.
    pub tensors: BTreeMap<String, TensorData>,
    /// The rest: schedules, scalars, the loss reference, the loss scaler, frozen paths.
    pub scalars: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct SavedScalars {
    optimizers: serde_json::Value,
    loss_reference_bits: Option<u64>,
    #[serde(default)]
    loss_scaler: Option<LossScalerState>,
    frozen: Vec<String>,
    #[serde(default)]
    exchange: serde_json::Value,
}

impl Engine {
    /// What a checkpoint keeps.
    pub fn state(&self) -> EngineState {
        let (tensors, optimizers) = self.optimizers.state();
        let frozen = self
            .table
            .parameters()
            .filter(|(index, _)| !self.is_trained(*index));
        let scalars = SavedScalars {
            optimizers,
            loss_reference_bits: self.loss_reference.map(f64::to_bits),
            loss_scaler: self.scaler.as_ref().map(LossScaler::state),
            frozen: frozen.map(|(_, entry)| entry.path.clone()).collect(),
            exchange: self.exchange.state(),
        };
        EngineState {
            tensors,
            scalars: serde_json::json!(scalars),
        }
    }

    /// Takes a state over, wholly or not at all. Gradients of unfinished groups are forgotten.
    ///
    /// # Errors
    ///
    /// If the state is of other parameters, optimizers or schedules, or damaged.
    pub fn load_state(&mut self, state: EngineState) -> Result<(), Error> {
        let saved: SavedScalars =
            serde_json::from_value(state.scalars).map_err(|error| firebrand_core::Error::State {
                what: "the optimizer".to_owned(),
                reason: error.to_string(),
            })?;
        let inner = self.device.clone().without_autodiff();
        let mut scaler = self.scaler.clone();
        if let (Some(scaler), Some(state)) = (&mut scaler, saved.loss_scaler) {
            scaler.load_state(state)?;
        }
        self.optimizers.load_state(
            state.tensors,
            &saved.optimizers,
            &self.table,
            &inner,
            self.precision.master(),
        )?;
        self.discard()?;
        self.scaler = scaler;
        self.loss_reference = saved.loss_reference_bits.map(f64::from_bits);
        for (index, entry) in self.table.entries().iter().enumerate() {
            if let Some(flag) = self.trained.get_mut(index).filter(|_| {
                let canonical = entry.tied_to.unwrap_or(index);
                self.optimizers.optimizer_of(canonical).is_some()
            }) {
                *flag = !saved.frozen.contains(&entry.path);
            }
        }
        self.expect_gradients()?;
        self.exchange.load_state(&saved.exchange)
    }
}
