//! What is logged, over all ranks: sums and metric states are merged on rank 0, in the order of the ranks, and every rank gets
//! the values.

use super::step_values::Partial;
use super::sums::Sums;
use super::{Accumulators, SavedAccumulators, StepValues};
use crate::Error;
use crate::world::World;

impl Accumulators {
    /// The values over all ranks; see [`values`](Self::values).
    pub(crate) fn values_over(&mut self, world: &World) -> Result<Vec<(String, f64, bool)>, Error> {
        if world.size() == 1 {
            return Ok(self.values());
        }
        let saved = world.gather(self.save())?;
        let values = world.on_zero(|| {
            self.merge_others(saved)?;
            let values = self.values().into_iter();
            Ok(values
                .map(|(name, value, shown)| (name, value.to_bits(), shown))
                .collect::<Vec<_>>())
        })?;
        let values = values.into_iter();
        Ok(values
            .map(|(name, bits, shown)| (name, f64::from_bits(bits), shown))
            .collect())
    }

    /// What a checkpoint keeps of all ranks together: right on rank 0 alone, which writes it.
    pub(crate) fn save_over(&mut self, world: &World) -> Result<SavedAccumulators, Error> {
        let mine = self.save();
        if world.size() == 1 {
            return Ok(mine);
        }
        let saved = world.gather(mine.clone())?;
        if !world.is_global_zero() {
            return Ok(mine);
        }
        let mut whole = self.copied();
        whole.merge_others(saved)?;
        Ok(whole.save())
    }

    fn merge_others(&mut self, saved: Vec<SavedAccumulators>) -> Result<(), Error> {
        for other in saved.into_iter().skip(1) {
            self.merge(other)?;
        }
        Ok(())
    }
}

impl StepValues {
    /// The values of the step over all ranks, each a mean weighted by samples unless it says otherwise.
    pub(crate) fn read_over(&self, world: &World) -> Result<Vec<(String, f64)>, Error> {
        if world.size() == 1 {
            return Ok(self.read());
        }
        let mut whole: Vec<(String, Sums)> = Vec::new();
        for Partial { name, sums } in world.gather(self.partial())?.into_iter().flatten() {
            match whole.iter_mut().find(|(known, _)| *known == name) {
                Some((_, mine)) => mine.merge(sums.into()),
                None => whole.push((name, sums.into())),
            }
        }
        Ok(whole
            .into_iter()
            .map(|(name, sums)| (name, sums.value()))
            .collect())
    }
}
