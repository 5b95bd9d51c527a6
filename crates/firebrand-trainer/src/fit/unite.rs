//! What all ranks have alike: the values of rank 0.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use firebrand_core::{AnyTensor, ParamKind};
use firebrand_strategy::{check_alike, replicate};

use super::fit_loop::FitLoop;
use super::restore::{assign_weights, tensors_of};
use super::save::{weights_of, weights_where};
use crate::Error;

impl FitLoop<'_> {
    /// Sees to it that all ranks train the same module from the same values: those of rank 0.
    pub(super) fn unite(&mut self) -> Result<(), Error> {
        let Some(group) = self.parts.world.group() else {
            return Ok(());
        };
        check_alike(group.as_ref(), self.engine.table())?;
        let mut values = weights_of(self.module.as_ref());
        replicate(group.as_ref(), &mut values)?;
        self.take_values(values);
        Ok(())
    }

    /// Gives the buffers of every rank the values of rank 0's. Parameters are alike anyway.
    pub(super) fn unite_buffers(&mut self) -> Result<(), Error> {
        let Some(group) = self.parts.world.group() else {
            return Ok(());
        };
        let table = self.engine.table();
        if !table
            .entries()
            .iter()
            .any(|entry| entry.kind == ParamKind::Buffer)
        {
            return Ok(());
        }
        let mut values = weights_where(self.module.as_ref(), |path| self.is_buffer(path));
        replicate(group.as_ref(), &mut values)?;
        self.take_values(values);
        Ok(())
    }

    /// Gives weights that a callback wants used the buffers of rank 0: each rank's callback has kept those of its own.
    pub(super) fn unite_given(
        &self,
        mut weights: BTreeMap<String, AnyTensor>,
    ) -> Result<BTreeMap<String, AnyTensor>, Error> {
        let Some(group) = self.parts.world.group() else {
            return Ok(weights);
        };
        let mut buffers = BTreeMap::new();
        for (path, value) in &weights {
            if self.is_buffer(path) {
                buffers.insert(path.clone(), value.clone().into_data());
            }
        }
        replicate(group.as_ref(), &mut buffers)?;
        weights.extend(tensors_of(buffers, self.engine.device()));
        Ok(weights)
    }

    fn is_buffer(&self, path: &str) -> bool {
        let table = self.engine.table();
        let entry = table.index_of_path(path).and_then(|index| table.get(index));
        entry.is_some_and(|entry| entry.kind == ParamKind::Buffer)
    }

    /// Takes over values of rank 0, which has them already.
    fn take_values(&mut self, values: BTreeMap<String, TensorData>) {
        if self.parts.world.is_global_zero() {
            return;
        }
        let device = self.engine.device().clone();
        let values = tensors_of(values, &device);
        assign_weights(self.module.as_mut(), &values, &device);
    }
}
