//! What a training step costs beyond the arithmetic: one model in several loops, on one thread.

mod burn_train_loop;
mod feed;
mod memory;
mod model;
mod python;
mod raw_loop;
mod report;
mod timing;
mod trainer_loop;

#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::Result;

use crate::numbers::Numbers;
use model::{Optimizer, Size};
use timing::Timings;

/// The loops that run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loop {
    /// Burn alone, written out.
    Raw,
    /// `firebrand::Trainer`.
    Trainer,
    /// `burn_train::SupervisedTraining`.
    BurnTrain,
    /// Burn alone, with SGD.
    RawSgd,
    /// `firebrand::Trainer`, with SGD, whose update is Burn's: the arithmetic is the same code in both.
    TrainerSgd,
}

impl Loop {
    const ALL: [Self; 5] = [
        Self::Raw,
        Self::Trainer,
        Self::BurnTrain,
        Self::RawSgd,
        Self::TrainerSgd,
    ];

    /// The name of its time among the numbers.
    fn key(self) -> &'static str {
        match self {
            Self::Raw => "raw_us",
            Self::Trainer => "trainer_us",
            Self::BurnTrain => "burn_train_us",
            Self::RawSgd => "raw_sgd_us",
            Self::TrainerSgd => "trainer_sgd_us",
        }
    }

    fn optimizer(self) -> Optimizer {
        match self {
            Self::Raw | Self::Trainer | Self::BurnTrain => Optimizer::AdamW,
            Self::RawSgd | Self::TrainerSgd => Optimizer::Sgd,
        }
    }

    /// The loop that a loop is compared with: Burn alone, with the same optimizer.
    fn baseline(self) -> Self {
        match self.optimizer() {
            Optimizer::AdamW => Self::Raw,
            Optimizer::Sgd => Self::RawSgd,
        }
    }

    /// Trains the model of a size from its first weights on everything that the feed gives, and returns it.
    fn train(self, size: Size, feed: feed::Source) -> Result<model::Mlp> {
        let folder = tempfile::tempdir()?;
        let optimizer = self.optimizer();
        match self {
            Self::Raw | Self::RawSgd => Ok(raw_loop::train(size, optimizer, feed)),
            Self::Trainer | Self::TrainerSgd => trainer_loop::train(size, optimizer, feed, folder.path()),
            Self::BurnTrain => burn_train_loop::train(size, feed, folder.path()),
        }
    }
}

/// Measures both models in all loops, prints the tables, and adds the numbers.
pub(crate) fn run(rounds: u32, python: Option<&Path>, numbers: &mut Numbers) -> Result<()> {
    report::title();
    // First, while the heap has no slack yet that would hide growth.
    let growth = memory::growth_mib()?;
    for size in Size::ALL {
        let timings = Timings::measure(size, rounds)?;
        for which in Loop::ALL {
            numbers.add(size.key(which.key()), timings.median(which));
        }
        if let Some(python) = python {
            python::measure(python, size, numbers)?;
        }
        report::times(size, &timings, numbers);
    }
    if let Some(growth) = growth {
        numbers.add(memory::KEY, growth);
    }
    report::targets(numbers);
    Ok(())
}
