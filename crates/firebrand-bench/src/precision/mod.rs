//! What mixed precision gains: time per step and peak memory of a GPT and an MLP in float32 and in bfloat16, on LibTorch, in Firebrand and in
//! PyTorch with autocast.

mod model;
mod rank;
mod report;

use std::path::Path;

use anyhow::Result;

use crate::numbers::Numbers;
use crate::process::{Script, numbers_of, this_program};
use crate::statistics::median;

pub(crate) use model::Workload;
pub(crate) use rank::train;

/// The same with PyTorch's `autocast`.
const SCRIPT: &str = include_str!("../../python/precision.py");

/// The name of the hidden case that [`train`]s.
pub(crate) const RANK_CASE: &str = "precision-rank";

/// Who trains, and in what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    torch: bool,
    bf16: bool,
}

impl Run {
    const ALL: [Self; 4] = [
        Self {
            torch: false,
            bf16: false,
        },
        Self {
            torch: false,
            bf16: true,
        },
        Self {
            torch: true,
            bf16: false,
        },
        Self {
            torch: true,
            bf16: true,
        },
    ];

    /// The names of its time and of its peak memory among the numbers.
    fn keys(self) -> (&'static str, &'static str) {
        match (self.torch, self.bf16) {
            (false, false) => ("f32_ms", "f32_peak_mib"),
            (false, true) => ("bf16_ms", "bf16_peak_mib"),
            (true, false) => ("torch_f32_ms", "torch_f32_peak_mib"),
            (true, true) => ("torch_bf16_ms", "torch_bf16_peak_mib"),
        }
    }

    fn precision(self) -> &'static str {
        if self.bf16 { "bf16-mixed" } else { "32-true" }
    }
}

/// Measures all workloads, prints the tables, and adds the numbers.
pub(crate) fn run(rounds: u32, python: Option<&Path>, numbers: &mut Numbers) -> Result<()> {
    report::title();
    let script = Script::new(SCRIPT)?;
    for workload in Workload::ALL {
        let mut runs: Vec<(Run, Vec<f64>, f64)> = Run::ALL
            .into_iter()
            .filter(|run| python.is_some() || !run.torch)
            .map(|run| (run, Vec::new(), 0.0))
            .collect();
        for _ in 0..rounds {
            // Each is first as often as the others, so that a load on the machine meets all alike.
            for (run, windows, peak) in &mut runs {
                let mut measured = measure(*run, workload, &script, python)?;
                *peak = peak.max(measured.pop().unwrap_or(f64::NAN));
                windows.extend(measured);
            }
            runs.rotate_left(1);
        }
        for (run, windows, peak) in &runs {
            let (time, memory) = run.keys();
            numbers.add(workload.key(time), median(windows));
            numbers.add(workload.key(memory), *peak);
        }
    }
    report::times(numbers);
    report::targets(numbers);
    Ok(())
}

/// Milliseconds per step of each window of a run, in a process of its own, and the peak of its resident memory in MiB.
fn measure(run: Run, workload: Workload, script: &Script, python: Option<&Path>) -> Result<Vec<f64>> {
    let arguments = ["--model", workload.name(), "--precision", run.precision()].map(str::to_owned);
    let command = match python.filter(|_| run.torch) {
        Some(python) => script.command(python, arguments.into_iter().chain(workload.sizes())),
        None => this_program([RANK_CASE.to_owned()].into_iter().chain(arguments))?,
    };
    numbers_of(command)
}
