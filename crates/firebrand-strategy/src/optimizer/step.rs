use burn::tensor::kind::BridgeTensor;
use firebrand_core::{AnyTensor, ParamInfo, ParamKind, ParamMapper, ParamTable};

use super::fused_adam::FusedAdam;
use super::{Single, Slot};

/// Replaces each parameter by its update.
pub(super) struct Step<'a> {
    pub(super) table: &'a ParamTable,
    pub(super) slots: &'a mut [Option<Slot>],
    pub(super) optimizers: &'a [Single],
    pub(super) gradients: Vec<Option<AnyTensor>>,
    pub(super) has_ties: bool,
    pub(super) updated: Vec<Option<AnyTensor>>,
}

impl Step<'_> {
    /// The index whose slot and gradient a parameter goes by.
    fn canonical(&self, info: &ParamInfo<'_>) -> Option<(usize, usize)> {
        let index = self.table.index_of(info.id)?;
        let entry = self
            .table
            .get(index)
            .filter(|entry| entry.kind == ParamKind::Parameter)?;
        Some((index, entry.tied_to.unwrap_or(index)))
    }
}

impl Slot {
    /// The updated value; what the update needs to remember stays in the slot.
    pub(super) fn step(&mut self, rate: f64, value: BridgeTensor, gradient: BridgeTensor) -> BridgeTensor {
        let state = self.state.take();
        let fused = (self.adam.as_ref())
            .and_then(|rule| FusedAdam::new(rule, self.rank, &value, &gradient, state.as_ref()));
        let (value, state) = match fused {
            Some(fused) => {
                // The update has handles of its own. As the only ones they let it write in place.
                drop((value, gradient, state));
                let (value, state) = fused.step(rate);
                (value, Some(state))
            }
            None => self.update.step_dyn(self.rank, rate, value, gradient, state),
        };
        self.state = state;
        value
    }
}

impl ParamMapper for Step<'_> {
    fn wants(&mut self, info: &ParamInfo<'_>) -> bool {
        let Some((_, first)) = self.canonical(info) else {
            return false;
        };
        let has = |list: &[Option<AnyTensor>]| list.get(first).is_some_and(Option::is_some);
        has(&self.gradients) || has(&self.updated)
    }

    fn map(&mut self, info: &ParamInfo<'_>, value: AnyTensor, requires_grad: bool) -> AnyTensor {
        let Some((_, first)) = self.canonical(info) else {
            return value;
        };
        let device = value.device();
        if let Some(Some(updated)) = self.updated.get(first) {
            return updated.clone().on_autodiff(&device, requires_grad);
        }
        let gradient = self.gradients.get_mut(first).and_then(Option::take);
        let (Some(gradient), Some(Some(slot))) = (gradient, self.slots.get_mut(first)) else {
            return value;
        };
        let rate = self.optimizers[slot.optimizer].group_rate(slot.group_rate);
        let value = slot.step(rate, value.inner().into_bridge(), gradient.into_bridge());
        let value = AnyTensor::from_bridge(value);
        if self.has_ties
            && self
                .table
                .entries()
                .iter()
                .any(|entry| entry.tied_to == Some(first))
        {
            self.updated[first] = Some(value.clone());
        }
        value.on_autodiff(&device, requires_grad)
    }
}
