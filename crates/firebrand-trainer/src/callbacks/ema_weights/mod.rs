//! An exponential moving average of the weights, used in place of them for evaluation.

mod average;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_core::{Error, Result};
use firebrand_strategy::Update;
use serde::{Deserialize, Serialize};

use super::state::read_state;
use super::{Callback, CallbackError, Commands, View};
use average::Average;

/// Keeps an exponential moving average of the trained parameters, and evaluates with it.
///
/// After an update: `average ← decay · average + (1 − decay) · parameter`, as in PyTorch's `AveragedModel` with
/// `get_ema_multi_avg_fn`; the first time the average is the parameter itself. Buffers such as running statistics are copied,
/// not averaged. Parameters of 16 bits are averaged in float32. The averages stand in a file of their own in each checkpoint, and
/// a resumed run goes on with them, bit for bit.
///
/// The validations of a fit use them ([`use_in_validation`](Self::use_in_validation)), and the module that `fit` returns has
/// them ([`use_at_end`](Self::use_at_end)). The weights in a checkpoint are those that are trained: its averages are what
/// `load_from_checkpoint` reads from `callback-emaweights.safetensors` in it, if every parameter is trained.
///
/// ```
/// use firebrand_trainer::callbacks::EmaWeights;
///
/// let ema = EmaWeights::new(0.999).update_every_n_steps(10).starting_at_step(1000);
/// ```
#[must_use]
#[derive(Debug)]
pub struct EmaWeights {
    decay: f64,
    every_n_steps: u64,
    starting_at_step: u64,
    in_validation: bool,
    at_end: bool,
    restored: bool,
    average: Average,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// How often the averages were updated.
    num_updates: u64,
}

impl EmaWeights {
    /// Averages after every update with a decay, which is at least 0 and less than 1: of the order of `1 / (1 − decay)` updates
    /// weigh in.
    pub fn new(decay: f64) -> Self {
        Self {
            decay,
            every_n_steps: 1,
            starting_at_step: 0,
            in_validation: true,
            at_end: true,
            restored: false,
            average: Average::default(),
            state: State::default(),
        }
    }

    /// Average only after every n-th optimizer update; default 1.
    pub fn update_every_n_steps(mut self, steps: u64) -> Self {
        self.every_n_steps = steps;
        self
    }

    /// Average only from this `global_step` on; default 0. Before that validations use the weights themselves.
    pub fn starting_at_step(mut self, global_step: u64) -> Self {
        self.starting_at_step = global_step;
        self
    }

    /// Whether the validations of a fit use the averages; default yes.
    pub fn use_in_validation(mut self, on: bool) -> Self {
        self.in_validation = on;
        self
    }

    /// Whether the module that `fit` returns has the averages as its weights; default yes.
    pub fn use_at_end(mut self, on: bool) -> Self {
        self.at_end = on;
        self
    }

    fn check(&self) -> Result<(), CallbackError> {
        if !(0.0..1.0).contains(&self.decay) {
            let value = self.decay.to_string();
            return Err(CallbackError::Option {
                option: "decay",
                value,
                expected: "at least 0 and less than 1",
            });
        }
        if self.every_n_steps == 0 {
            let (value, expected) = ("0".to_owned(), "a number of updates of at least 1");
            return Err(CallbackError::Option {
                option: "update_every_n_steps",
                value,
                expected,
            });
        }
        Ok(())
    }

    fn use_weights(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<(), Error> {
        let weights = self.average.weights(view)?;
        if !weights.is_empty() {
            commands.use_weights(weights);
        }
        Ok(())
    }
}

impl Callback for EmaWeights {
    fn name(&self) -> String {
        "EmaWeights".to_owned()
    }

    fn on_fit_start(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        self.check()?;
        if !std::mem::take(&mut self.restored) {
            self.average = Average::default();
            self.state = State::default();
        }
        self.average.place(view)?;
        Ok(())
    }

    fn on_train_batch_end(&mut self, view: &View<'_>, _: &mut Commands) -> Result<()> {
        let stepped = matches!(view.update, Some(Update::Stepped { .. }));
        if stepped
            && view.global_step >= self.starting_at_step
            && view.global_step.is_multiple_of(self.every_n_steps)
        {
            self.average.update(view, self.decay);
            self.state.num_updates += 1;
        }
        Ok(())
    }

    fn on_evaluation_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if self.in_validation {
            self.use_weights(view, commands)?;
        }
        Ok(())
    }

    fn on_fit_end(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if self.at_end {
            self.use_weights(view, commands)?;
        }
        Ok(())
    }

    fn state(&self) -> Option<serde_json::Value> {
        serde_json::to_value(&self.state).ok()
    }

    fn tensors(&self) -> BTreeMap<String, TensorData> {
        self.average.data()
    }

    fn load_state(&mut self, state: &serde_json::Value, tensors: BTreeMap<String, TensorData>) -> Result<()> {
        let state: State = read_state("EmaWeights", state)?;
        if (state.num_updates > 0) == tensors.is_empty() {
            let reason = format!("{} tensors after {} updates", tensors.len(), state.num_updates);
            return Err(Error::State {
                what: "EmaWeights".to_owned(),
                reason,
            }
            .into());
        }
        self.state = state;
        self.average = Average::from_data(tensors);
        self.restored = true;
        Ok(())
    }
}
