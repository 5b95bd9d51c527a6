use std::collections::BTreeMap;

use burn::optim::{StateSink, StateSource};
use burn::tensor::{Device, TensorData};
use burn_pack::Scalar;
use serde::{Deserialize, Serialize};

use super::Optimizers;
use super::schedule::Position;

/// What a checkpoint keeps of the optimizers, besides tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Scalars {
    /// Schedules by the name of their optimizer.
    schedules: BTreeMap<String, Position>,
    /// The parameters that have a state, with the scalars of it.
    parameters: BTreeMap<String, BTreeMap<String, Number>>,
}

/// A scalar of an optimizer's state, exact in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Number {
    Int(i64),
    Uint(u64),
    FloatBits(u64),
    Bool(bool),
}

impl From<Scalar> for Number {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Int(value) => Self::Int(value),
            Scalar::UInt(value) => Self::Uint(value),
            Scalar::Float(value) => Self::FloatBits(value.to_bits()),
            Scalar::Bool(value) => Self::Bool(value),
        }
    }
}

impl From<Number> for Scalar {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(value) => Self::Int(value),
            Number::Uint(value) => Self::UInt(value),
            Number::FloatBits(bits) => Self::Float(f64::from_bits(bits)),
            Number::Bool(value) => Self::Bool(value),
        }
    }
}

impl Optimizers {
    /// The state: tensors named `path.leaf`, and the rest as JSON.
    pub(crate) fn state(&self) -> (BTreeMap<String, TensorData>, serde_json::Value) {
        let mut tensors = BTreeMap::new();
        let mut scalars = Scalars::default();
        for optimizer in &self.optimizers {
            if let Some(schedule) = &optimizer.schedule {
                scalars
                    .schedules
                    .insert(optimizer.name.clone(), schedule.position().clone());
            }
        }
        for slot in self.slots.iter().flatten() {
            let Some(state) = &slot.state else { continue };
            let mut sink = StateSink::default();
            slot.update.state_flatten(&slot.path, state, &mut sink);
            tensors.extend(sink.tensors);
            let numbers = sink
                .scalars
                .into_iter()
                .map(|(name, scalar)| (name, scalar.into()))
                .collect();
            scalars.parameters.insert(slot.path.clone(), numbers);
        }
        (tensors, serde_json::json!(scalars))
    }

    /// Takes a state over, wholly or not at all.
    ///
    /// States of parameters that this rank does not train are left alone, so that a checkpoint of one mesh loads on another.
    pub(crate) fn load_state(
        &mut self,
        mut tensors: BTreeMap<String, TensorData>,
        scalars: &serde_json::Value,
        device: &Device,
    ) -> Result<(), firebrand_core::Error> {
        let fail = |reason: String| firebrand_core::Error::State {
            what: "the optimizer".to_owned(),
            reason,
        };
        let scalars: Scalars =
            serde_json::from_value(scalars.clone()).map_err(|error| fail(error.to_string()))?;
        for name in scalars.schedules.keys() {
            if !self
                .optimizers
                .iter()
                .any(|optimizer| optimizer.name == *name && optimizer.schedule.is_some())
            {
                return Err(fail(format!(
                    "it holds a schedule for '{name}', and the module configures none by that name"
                )));
            }
        }
        let mut states = Vec::new();
        for slot in self.slots.iter().flatten() {
            let Some(numbers) = scalars.parameters.get(&slot.path) else {
                states.push(None);
                continue;
            };
            let mut source = StateSource::new(
                numbers
                    .iter()
                    .map(|(name, number)| (name.clone(), Scalar::from(*number)))
                    .collect(),
            );
            let prefix = format!("{}.", slot.path);
            let names: Vec<String> = tensors
                .range(prefix.clone()..)
                .take_while(|(name, _)| name.starts_with(&prefix))
                .map(|(name, _)| name.clone())
                .collect();
            for name in names {
                if let Some(data) = tensors.remove(&name) {
                    source.insert_tensor(name, data);
                }
            }
            let state = slot.update.state_unflatten(slot.rank, &slot.path, &mut source, device).ok_or_else(|| {
                fail(format!(
                    "the state of '{}' is incomplete or of another optimizer; resume with the optimizer that the \
                     checkpoint was made with",
                    slot.path
                ))
            })?;
            states.push(Some(state));
        }
        for (slot, state) in self.slots.iter_mut().flatten().zip(states) {
            slot.state = state;
        }
        for optimizer in &mut self.optimizers {
            if let (Some(schedule), Some(position)) =
                (&mut optimizer.schedule, scalars.schedules.get(&optimizer.name))
            {
                schedule.restore(position.clone());
            }
            optimizer.refresh_rate();
        }
        Ok(())
    }
}
