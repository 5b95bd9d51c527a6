//! What a second rank costs: data parallel training of one model on one rank and on two, in Firebrand and in PyTorch.

mod model;
mod rank;
mod report;

use std::path::Path;

use anyhow::Result;

use crate::numbers::Numbers;
use crate::process::{Script, numbers_of, this_program};
use crate::statistics::median;

pub(crate) use rank::train;

/// The same with PyTorch's `DistributedDataParallel`.
const SCRIPT: &str = include_str!("../../python/ddp.py");

/// The name of the hidden case that [`train`]s.
pub(crate) const RANK_CASE: &str = "ddp-rank";

/// A model and its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Of both hidden layers.
    pub(crate) width: usize,
    /// On each rank.
    pub(crate) batch_size: usize,
}

impl Workload {
    const ALL: [Self; 3] = [
        Self {
            width: 512,
            batch_size: 256,
        },
        Self {
            width: 2048,
            batch_size: 128,
        },
        Self {
            width: 2048,
            batch_size: 512,
        },
    ];

    /// The name of one of its numbers.
    fn key(self, number: &str) -> String {
        format!("ddp.h{}_b{}.{number}", self.width, self.batch_size)
    }

    /// The steps of a window: so many that it takes half a second or so.
    fn window(self) -> usize {
        /// Multiplications of one thread in that time, roughly.
        const MULTIPLICATIONS: usize = 16_000_000_000;
        let weights = self.width * (784 + self.width + 10);
        (MULTIPLICATIONS / (3 * weights * self.batch_size)).max(3)
    }

    /// The arguments of a run, of this program and of the Python script alike.
    fn arguments(self, ranks: usize) -> Vec<String> {
        [
            ("--devices", ranks),
            ("--width", self.width),
            ("--batch-size", self.batch_size),
            ("--window", self.window()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
        .collect()
    }
}

/// Who trains, on how many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    torch: bool,
    ranks: usize,
}

impl Run {
    const ALL: [Self; 4] = [
        Self {
            torch: false,
            ranks: 1,
        },
        Self {
            torch: false,
            ranks: 2,
        },
        Self {
            torch: true,
            ranks: 1,
        },
        Self {
            torch: true,
            ranks: 2,
        },
    ];

    /// The name of its time among the numbers.
    fn key(self) -> &'static str {
        match (self.torch, self.ranks) {
            (false, 1) => "one_rank_ms",
            (false, _) => "two_ranks_ms",
            (true, 1) => "torch_one_rank_ms",
            (true, _) => "torch_two_ranks_ms",
        }
    }
}

/// Milliseconds per step of each window of each run.
type Windows = Vec<(Run, Vec<f64>)>;

/// Measures all workloads, prints the table, and adds the numbers.
pub(crate) fn run(rounds: u32, python: Option<&Path>, numbers: &mut Numbers) -> Result<()> {
    report::title();
    let script = Script::new(SCRIPT)?;
    let mut times = Vec::new();
    for workload in Workload::ALL {
        let mut windows = Run::ALL
            .into_iter()
            .filter(|run| python.is_some() || !run.torch)
            .map(|run| (run, Vec::new()))
            .collect::<Windows>();
        for _ in 0..rounds {
            // Each is first as often as the others, so that a load on the machine meets all alike.
            for (run, windows) in &mut windows {
                windows.extend(measure(*run, workload, &script, python)?);
            }
            windows.rotate_left(1);
        }
        for (run, windows) in &windows {
            numbers.add(workload.key(run.key()), median(windows));
        }
        for (efficiency, one, two) in report::EFFICIENCIES {
            if let (Some(one), Some(two)) = (numbers.get(&workload.key(one)), numbers.get(&workload.key(two)))
            {
                numbers.add(workload.key(efficiency), one / two);
            }
        }
        times.push((workload, windows));
    }
    report::times(&times);
    report::targets(numbers);
    Ok(())
}

/// Milliseconds per step of each window of a run.
fn measure(run: Run, workload: Workload, script: &Script, python: Option<&Path>) -> Result<Vec<f64>> {
    let mut arguments = workload.arguments(run.ranks);
    let command = match python.filter(|_| run.torch) {
        Some(python) => script.command(python, arguments),
        None => {
            arguments.insert(0, RANK_CASE.to_owned());
            this_program(arguments)?
        }
    };
    numbers_of(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_shorter_where_steps_are_longer() {
        let windows = Workload::ALL.map(Workload::window);
        assert!(windows[0] > windows[1] && windows[1] > windows[2], "{windows:?}");
        assert!(windows[2] >= 3);
    }
}
