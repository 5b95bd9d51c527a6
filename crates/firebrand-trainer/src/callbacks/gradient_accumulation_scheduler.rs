use std::collections::BTreeMap;

use firebrand_core::Result;

use super::{Callback, CallbackError, Commands, View};

/// Changes the number of micro-batches per update at the start of given epochs.
///
/// ```
/// use firebrand_trainer::callbacks::GradientAccumulationScheduler;
///
/// // The trainer's `accumulate_grad_batches` until epoch 3, then 4, and 8 from epoch 10 on.
/// let scheduler = GradientAccumulationScheduler::new([(4, 4), (10, 8)]);
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct GradientAccumulationScheduler {
    scheduling: BTreeMap<u64, u64>,
}

impl GradientAccumulationScheduler {
    /// Pairs of an epoch, from 0, and the number of micro-batches per update from its start on.
    pub fn new(scheduling: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self {
            scheduling: scheduling.into_iter().collect(),
        }
    }

    fn set(&self, view: &View<'_>, commands: &mut Commands) {
        if let Some((_, micro_batches)) = self.scheduling.range(..=view.epoch).next_back() {
            commands.accumulate_grad_batches(*micro_batches);
        }
    }
}

impl Callback for GradientAccumulationScheduler {
    fn name(&self) -> String {
        "GradientAccumulationScheduler".to_owned()
    }

    fn on_fit_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        if let Some((epoch, _)) = self
            .scheduling
            .iter()
            .find(|(_, micro_batches)| **micro_batches == 0)
        {
            return Err(CallbackError::Option {
                option: "scheduling",
                value: format!("0 from epoch {epoch} on"),
                expected: "a number of micro-batches of at least 1",
            }
            .into());
        }
        // A run that is resumed within an epoch has no start of it.
        self.set(view, commands);
        Ok(())
    }

    fn on_train_epoch_start(&mut self, view: &View<'_>, commands: &mut Commands) -> Result<()> {
        self.set(view, commands);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callbacks::test_fixture::{Fixture, commands};

    #[test]
    fn the_newest_entry_holds() {
        let mut fixture = Fixture::new();
        let mut scheduler = GradientAccumulationScheduler::new([(10, 8), (4, 2)]);
        for (epoch, expected) in [
            (0, None),
            (3, None),
            (4, Some(2)),
            (9, Some(2)),
            (10, Some(8)),
            (99, Some(8)),
        ] {
            fixture.epoch = epoch;
            let start = commands(|commands| scheduler.on_train_epoch_start(&fixture.view(), commands));
            assert_eq!(start.accumulate, expected, "{epoch}");
            assert_eq!(
                commands(|commands| scheduler.on_fit_start(&fixture.view(), commands)).accumulate,
                expected
            );
        }
        let mut scheduler = GradientAccumulationScheduler::new([(4, 0)]);
        let error = scheduler
            .on_fit_start(&fixture.view(), &mut Commands::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("epoch 4"), "{error}");
    }
}
