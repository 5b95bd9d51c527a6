//! What a training step costs beyond the arithmetic: one model in four loops, on one thread.

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
use model::Size;
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
}

impl Loop {
    const ALL: [Self; 3] = [Self::Raw, Self::Trainer, Self::BurnTrain];

    /// The name of its time among the numbers.
    fn key(self) -> &'static str {
        match self {
            Self::Raw => "raw_us",
            Self::Trainer => "trainer_us",
            Self::BurnTrain => "burn_train_us",
        }
    }

    /// Trains the model of a size from its first weights on everything that the feed gives, and returns it.
    fn train(self, size: Size, feed: feed::Source) -> Result<model::Mlp> {
        let folder = tempfile::tempdir()?;
        match self {
            Self::Raw => Ok(raw_loop::train(size, feed)),
            Self::Trainer => trainer_loop::train(size, feed, folder.path()),
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
