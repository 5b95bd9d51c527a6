use std::collections::{BTreeMap, BTreeSet};

use burn::optim::{DynState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Shape, TensorData};
use burn_pack::Scalar;
use firebrand_core::{AnyTensor, ParamEntry, ParamTable};
use serde::{Deserialize, Serialize};

use super::schedule::Position;
use super::{Optimizers, Slot};

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
            tensors.extend(
                sink.tensors
                    .into_iter()
                    .map(|(name, data)| (name, firebrand_core::on_host(data))),
            );
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
    /// The state may be of another mesh: what this rank does not hold is left out. It must be of the same module, though:
    /// a parameter or schedule that is not known is an error, since its state would be lost without a word.
    pub(crate) fn load_state(
        &mut self,
        tensors: BTreeMap<String, TensorData>,
        scalars: &serde_json::Value,
        table: &ParamTable,
        device: &Device,
        dtype: FloatDType,
    ) -> Result<(), firebrand_core::Error> {
        let scalars: Scalars =
            serde_json::from_value(scalars.clone()).map_err(|error| refused(error.to_string()))?;
        self.check_names(&scalars)?;
        let numbers = scalars.parameters.values().flatten();
        let mut source = StateSource::new(
            numbers
                .map(|(name, number)| (name.clone(), Scalar::from(*number)))
                .collect(),
        );
        let mut unread: BTreeSet<String> = tensors.keys().cloned().collect();
        let mut shapes = BTreeMap::new();
        for (index, slot) in self.slots.iter().enumerate() {
            if let (Some(slot), Some(entry)) = (slot, table.get(index))
                && scalars.parameters.contains_key(&slot.path)
            {
                shapes.extend(slot.fresh_leaves(entry, device, dtype));
            }
        }
        for (name, mut data) in tensors {
            if let Some((shape, dtype)) = shapes.get(&name) {
                if data.shape() != shape {
                    return Err(refused(format!(
                        "'{name}' has the shape {:?}, and the module needs {:?}",
                        data.shape().to_vec(),
                        shape.to_vec()
                    )));
                }
                if data.dtype() != *dtype && data.dtype().is_float() {
                    data = data.convert_dtype(*dtype);
                }
            }
            source.insert_tensor(name, data);
        }
        let mut states = Vec::new();
        for slot in self.slots.iter().flatten() {
            if !scalars.parameters.contains_key(&slot.path) {
                states.push(None);
                continue;
            }
            let state = slot.update.state_unflatten(slot.rank, &slot.path, &mut source, device).ok_or_else(|| {
                refused(format!(
                    "that of '{}' is incomplete or of another optimizer; resume with the optimizer that the checkpoint was \
                     made with",
                    slot.path
                ))
            })?;
            slot.check_restored(&state, &shapes, &mut unread)?;
            states.push(Some(state));
        }
        if let Some(name) = unread.first() {
            return Err(refused(format!(
                "it holds '{name}', which the optimizer does not know; resume with the optimizer that the checkpoint was made \
                 with"
            )));
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

    /// Checks that the state is of these parameters and schedules.
    fn check_names(&self, scalars: &Scalars) -> Result<(), firebrand_core::Error> {
        let scheduled = |name: &str| {
            self.optimizers
                .iter()
                .any(|optimizer| optimizer.name == name && optimizer.schedule.is_some())
        };
        if let Some(name) = scalars.schedules.keys().find(|name| !scheduled(name)) {
            return Err(refused(format!(
                "it holds a schedule for '{name}', and the module configures none by that name"
            )));
        }
        let mut configured = self
            .optimizers
            .iter()
            .filter(|optimizer| optimizer.schedule.is_some());
        if let Some(optimizer) = configured.find(|optimizer| !scalars.schedules.contains_key(&optimizer.name))
        {
            return Err(refused(format!(
                "it holds no schedule for '{}', which would start anew; resume with the schedule that the checkpoint was made \
                 with",
                optimizer.name
            )));
        }
        let known = |path: &str| self.slots.iter().flatten().any(|slot| slot.path == path);
        match scalars.parameters.keys().find(|path| !known(path)) {
            Some(path) => Err(refused(format!(
                "it holds one for '{path}', which no optimizer of the module trains"
            ))),
            None => Ok(()),
        }
    }
}

fn refused(reason: String) -> firebrand_core::Error {
    firebrand_core::Error::State {
        what: "the optimizer".to_owned(),
        reason,
    }
}

/// Shape and dtype of the leaves of a state, by name.
type Leaves = BTreeMap<String, (Shape, DType)>;

impl Slot {
    /// What the leaves of a state of this parameter look like: those of a step on zeros.
    fn fresh_leaves(&self, entry: &ParamEntry, device: &Device, dtype: FloatDType) -> Leaves {
        let zeros = || {
            let data = TensorData::zeros::<f32, _>(entry.shape.clone()).convert_dtype(dtype.into());
            AnyTensor::from_data(data, device).map(AnyTensor::into_bridge)
        };
        let (Some(value), Some(gradient)) = (zeros(), zeros()) else {
            return Leaves::new();
        };
        let (_, state) = self.update.step_dyn(self.rank, 0.0, value, gradient, None);
        state.map(|state| self.leaves(&state)).unwrap_or_default()
    }

    fn leaves(&self, state: &DynState) -> Leaves {
        let mut sink = StateSink::default();
        self.update.state_flatten(&self.path, state, &mut sink);
        let look = |(name, data): (String, TensorData)| (name, (data.shape().clone(), data.dtype()));
        sink.tensors.into_iter().map(look).collect()
    }

    /// Checks that a state came back as it was saved, and strikes its tensors off those that are unread.
    fn check_restored(
        &self,
        state: &DynState,
        fresh: &Leaves,
        unread: &mut BTreeSet<String>,
    ) -> Result<(), firebrand_core::Error> {
        for (name, (_, dtype)) in self.leaves(state) {
            if let Some((_, expected)) = fresh.get(&name).filter(|(_, expected)| *expected != dtype) {
                return Err(refused(format!(
                    "'{name}' came back as {dtype:?} instead of {expected:?}; the optimizer must restore its state in the dtype \
                     of the weights (Burn's `RecordState` derive only does so in the default dtype of the device)"
                )));
            }
            unread.remove(&name);
        }
        Ok(())
    }
}
