use burn::tensor::Tensor;
use firebrand_core::{BoxError, ErasedModule, LogEntry, ManualEngine, StepContext, StepInfo};

use super::twin::used;
use super::{Group, check_loss, check_ranks};
use crate::{Engine, Error, Update};

/// One manual training step: what [`firebrand_core::ManualOptimization`] drives.
///
/// Gradients that no step has used stay with the engine, so that they may be accumulated over several training steps.
pub struct Manual<'a> {
    engine: &'a mut Engine,
    info: StepInfo,
    losses: Vec<(Tensor<1>, StepInfo)>,
    logs: Vec<LogEntry>,
    updated: Vec<bool>,
    outcome: Option<Update>,
}

impl Engine {
    /// The engine as a manual step sees it, for one training step.
    pub fn manual<'a>(&'a mut self, step: &StepContext) -> Manual<'a> {
        let optimizers = self.optimizers.len();
        Manual {
            engine: self,
            info: step.info().clone(),
            losses: Vec::new(),
            logs: Vec::new(),
            updated: vec![false; optimizers],
            outcome: None,
        }
    }
}

impl Manual<'_> {
    /// Which optimizers made an update.
    pub fn updated(&self) -> &[bool] {
        &self.updated
    }

    /// What became of the training step: the first update that was made, or else one that was skipped; `None` if no optimizer
    /// stepped.
    pub fn outcome(&self) -> Option<Update> {
        self.outcome
    }

    /// Takes what `on_before_optimizer_step` logged.
    pub fn take_logs(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.logs)
    }
}

impl ManualEngine for Manual<'_> {
    fn begin_forward(&mut self, module: &dyn ErasedModule) -> Result<Box<dyn ErasedModule>, BoxError> {
        Ok(used(self.engine, module, None, None))
    }

    fn backward(&mut self, loss: Tensor<1>) -> Result<(), BoxError> {
        let plain = check_loss(&loss)?;
        for optimizer in 0..self.engine.optimizers.len() {
            self.engine.exchange.begin_backward(optimizer, false);
        }
        let current = self.engine.loss_scale().unwrap_or(1.0);
        let scale = *self.engine.manual_scale.get_or_insert(current);
        self.engine.backward(loss, scale);
        check_ranks(&self.info)?;
        self.losses.push((plain, self.info.clone()));
        Ok(())
    }

    fn step(&mut self, module: &mut dyn ErasedModule, optimizer: &str) -> Result<(), BoxError> {
        let number = self.engine.optimizers.index_of(optimizer).ok_or_else(|| {
            let names: Vec<&str> = self.engine.optimizers.names().collect();
            Error::optimizer(format!(
                "there is no optimizer '{optimizer}'; the module configures {}",
                names.join(", ")
            ))
        })?;
        for other in (0..self.engine.optimizers.len()).filter(|other| *other != number) {
            self.engine.exchange.discard(other)?;
        }
        let losses = std::mem::take(&mut self.losses);
        let group = Group {
            losses,
            info: Some(self.info.clone()),
            loss_scale: self.engine.manual_scale.take().or(self.engine.loss_scale()),
            ..Group::default()
        };
        let mut step = StepContext::new(StepInfo {
            optimizer_index: number,
            ..self.info.clone()
        });
        let mut before = |module: &mut dyn ErasedModule| {
            let outcome = module.on_before_optimizer_step(&mut step);
            outcome.map_err(|source| Error::step("on_before_optimizer_step", &step, source))
        };
        let outcome = self.engine.complete(module, number, group, 1.0, &mut before)?;
        let Some(outcome) = outcome else {
            return Err(Error::optimizer(format!(
                "step(\"{optimizer}\") found no gradient for its parameters; call `backward` with a loss that depends on \
                 them first"
            ))
            .into());
        };
        self.logs.extend(step.take_logs());
        if matches!(outcome, Update::Stepped { .. }) {
            self.engine.optimizers.advance_step(|other| other == number);
            self.updated[number] = true;
        }
        if !matches!(self.outcome, Some(Update::Stepped { .. })) {
            self.outcome = Some(outcome);
        }
        Ok(())
    }
}
