use burn::tensor::Tensor;
use firebrand_core::{ErasedModule, Stage, StepInfo};

use super::anomaly::Watch;
use super::{Group, NonFinite};
use crate::clip::{scale_and_clip, survey};
use crate::{Engine, Error, Gradient, Share};

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The parameters were updated.
    Stepped {
        /// The norm over all gradients before clipping.
        gradient_norm: f64,
    },
    /// Nothing was updated, because a value was not finite or every weight was zero.
    Skipped,
}

impl Engine {
    /// Completes the update of one optimizer with the micro-batches since its last one.
    ///
    /// `before` is called when the gradients are complete and clipped, before any parameter changes.
    ///
    /// # Errors
    ///
    /// A value that is not finite, unless such updates are to be skipped; a loss that reached no parameter; what the exchange or
    /// `before` returned. The gradients are gone then, and nothing has been updated.
    pub fn update(
        &mut self,
        module: &mut dyn ErasedModule,
        optimizer: usize,
        before: &mut dyn FnMut(&mut dyn ErasedModule) -> Result<(), Error>,
    ) -> Result<Update, Error> {
        let group = self
            .groups
            .get_mut(optimizer)
            .map(std::mem::take)
            .unwrap_or_default();
        let weight = group.weight;
        let outcome = self.complete(module, optimizer, group, weight, before)?;
        if matches!(outcome, Some(Update::Stepped { .. })) {
            self.optimizers.advance_step(|number| number == optimizer);
        }
        outcome.ok_or(Error::NoGradient)
    }

    /// Reduces the gradients of an optimizer, undoes their scale and applies them; `None` if there are none.
    pub(super) fn complete(
        &mut self,
        module: &mut dyn ErasedModule,
        optimizer: usize,
        group: Group,
        weight: f64,
        before: &mut dyn FnMut(&mut dyn ErasedModule) -> Result<(), Error>,
    ) -> Result<Option<Update>, Error> {
        let problem = group.losses.iter().find_map(|(loss, info)| {
            let value = read(loss);
            (!value.is_finite()).then(|| (value, non_finite_loss(value, info)))
        });
        let said = self.take_said();
        let reduced = self.exchange.finish(
            optimizer,
            Share {
                weight,
                failed: problem.as_ref().map(|(value, _)| *value),
                notes: said,
            },
        )?;
        self.hear(&reduced.notes);
        if reduced.gradients.is_empty() && reduced.weight > 0.0 {
            return Ok(None);
        }
        if let Some((rank, value)) = reduced.failed {
            let info = group.info.as_ref();
            let here = problem.map(|(_, error)| error);
            return self
                .not_finite(here.unwrap_or(Error::NonFiniteElsewhere {
                    rank,
                    value,
                    global_step: info.map_or(0, |info| info.global_step),
                    epoch: info.map_or(0, |info| info.epoch),
                }))
                .map(Some);
        }
        // A rank without a micro-batch in this update has not seen the scale of the others, which is that of now.
        let scale = group.loss_scale.or(self.loss_scale()).unwrap_or(1.0);
        let weight = reduced.weight * scale;
        self.apply(module, group.info, reduced.gradients, weight, before)
            .map(Some)
    }

    fn apply(
        &mut self,
        module: &mut dyn ErasedModule,
        info: Option<StepInfo>,
        mut gradients: Vec<Gradient>,
        weight: f64,
        before: &mut dyn FnMut(&mut dyn ErasedModule) -> Result<(), Error>,
    ) -> Result<Update, Error> {
        if weight <= 0.0 {
            return Ok(Update::Skipped);
        }
        let survey = survey(&gradients);
        if let Some(position) = survey.non_finite {
            let entry = gradients
                .get(position)
                .and_then(|gradient| self.table.get(gradient.parameter));
            let path = entry.map_or_else(String::new, |entry| entry.path.clone());
            let info = info.unwrap_or_else(|| StepInfo::first(Stage::Train, self.device.clone()));
            return self.not_finite(non_finite_gradient(path, &info));
        }
        if let Some(scaler) = &mut self.scaler {
            scaler.update(true)?;
        }
        // Each rank has divided by the number of ranks beforehand.
        let scale = self.exchange.num_ranks() as f64 / weight;
        scale_and_clip(&mut gradients, scale, survey.norm, self.options.clip);
        before(module)?;
        self.optimizers.step(module, &self.table, gradients);
        Ok(Update::Stepped {
            gradient_norm: survey.norm * scale,
        })
    }

    /// Skips an update because of a value that is not finite, which a loss scaler expects now and then, or fails. Every rank
    /// does the same, since the value has reached the sums of all.
    fn not_finite(&mut self, error: Error) -> Result<Update, Error> {
        if let Some(scaler) = &mut self.scaler {
            scaler.update(false)?;
            tracing::debug!("update skipped, loss scale {}: {error}", scaler.scale());
            return Ok(Update::Skipped);
        }
        match self.options.non_finite {
            NonFinite::Skip => {
                tracing::warn!("update skipped: {error}");
                Ok(Update::Skipped)
            }
            NonFinite::Stop => Err(error),
        }
    }

    /// Looks at what one micro-batch gave, unless such values are to be skipped anyway.
    pub(super) fn check_anomaly(
        &mut self,
        loss: &Tensor<1>,
        watch: &Watch,
        info: &StepInfo,
    ) -> Result<(), Error> {
        let (value, parameter) = (read(loss), watch.first_not_finite());
        let error = match parameter.and_then(|parameter| self.table.get(parameter)) {
            _ if !value.is_finite() => non_finite_loss(value, info),
            Some(entry) => non_finite_gradient(entry.path.clone(), info),
            None => return Ok(()),
        };
        if self.options.non_finite == NonFinite::Skip || self.scaler.is_some() {
            tracing::warn!("{error}");
            return Ok(());
        }
        self.discard()?;
        Err(error)
    }
}

/// The value of a loss. This waits for the device.
fn read(loss: &Tensor<1>) -> f64 {
    loss.clone().into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

fn non_finite_loss(value: f64, info: &StepInfo) -> Error {
    Error::NonFiniteLoss {
        value,
        global_step: info.global_step,
        epoch: info.epoch,
        batch_index: info.batch_index,
    }
}

fn non_finite_gradient(path: String, info: &StepInfo) -> Error {
    Error::NonFiniteGradient {
        path,
        global_step: info.global_step,
        epoch: info.epoch,
        batch_index: info.batch_index,
    }
}
