//! Benchmarks of Firebrand: `firebrand-bench CASE [--json FILE] [--python PATH]`.
//!
//! Each case prints a table, and writes its numbers as one flat JSON object where it is asked to.

mod allreduce;
mod clock;
mod ddp;
mod memory;
mod mlp;
mod numbers;
mod overhead;
mod precision;
mod process;
mod restart;
mod statistics;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use firebrand::Accelerator;
use firebrand::collective::Backend;

use numbers::Numbers;

/// Measures Firebrand against a raw Burn loop, burn-train, and PyTorch with Lightning.
#[derive(Parser)]
#[command(name = "firebrand-bench", version)]
struct Arguments {
    /// What to measure.
    case: Case,
    /// Write the numbers as one flat JSON object to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure the Python peers too, with this interpreter; see `python/requirements.txt` for what it needs.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// How many times each loop takes its turn; more turns give steadier medians. Default: 15 of `overhead`, 5 of the others.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    #[command(flatten)]
    rank: RankArguments,
}

/// What the program says to itself where it runs as the first of several ranks.
#[derive(clap::Args)]
struct RankArguments {
    #[arg(long, hide = true, default_value = "auto")]
    backend: Backend,
    #[arg(long, hide = true, default_value_t = 2)]
    devices: usize,
    #[arg(long, hide = true, default_value_t = 512)]
    width: usize,
    #[arg(long, hide = true, default_value_t = 256)]
    batch_size: usize,
    #[arg(long, hide = true, default_value_t = 20)]
    window: usize,
    #[arg(long, hide = true, value_enum, default_value = "gpt")]
    model: precision::Workload,
    #[arg(long, hide = true, default_value = "32-true")]
    precision: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// What a training step costs beyond the arithmetic, on one thread.
    Overhead,
    /// The bandwidth of an all-reduce between processes: shared memory, TCP, Gloo.
    Allreduce,
    /// What a second rank costs in data parallel training.
    Ddp,
    /// What mixed precision gains on LibTorch, beside PyTorch's autocast; the build needs `--features libtorch`.
    Precision,
    /// Every case but `precision`, which needs a build of its own.
    All,
    #[value(name = allreduce::RANK_CASE, hide = true)]
    AllreduceRank,
    #[value(name = ddp::RANK_CASE, hide = true)]
    DdpRank,
    #[value(name = precision::RANK_CASE, hide = true)]
    PrecisionRank,
}

impl Case {
    /// Whether it is asked for, by itself or with all.
    fn includes(self, case: Self) -> bool {
        self == Self::All || self == case
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(code) = restart::restart_if_needed()? {
        return Ok(code);
    }
    let Arguments {
        case, rounds, rank, ..
    } = &arguments;
    match case {
        Case::AllreduceRank => {
            allreduce::serve(rank.backend, rank.devices)?;
            return Ok(ExitCode::SUCCESS);
        }
        Case::DdpRank => {
            let workload = ddp::Workload {
                width: rank.width,
                batch_size: rank.batch_size,
            };
            ddp::train(workload, rank.devices, rank.window)?;
            return Ok(ExitCode::SUCCESS);
        }
        Case::PrecisionRank => {
            precision::train(rank.model, &rank.precision, Accelerator::LibTorch)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let python = arguments.python.as_deref();
    let mut numbers = Numbers::default();
    if case.includes(Case::Overhead) {
        overhead::run(rounds.unwrap_or(15), python, &mut numbers)?;
    }
    if case.includes(Case::Allreduce) {
        allreduce::run(rounds.unwrap_or(5), python, &mut numbers)?;
    }
    if case.includes(Case::Ddp) {
        ddp::run(rounds.unwrap_or(5), python, &mut numbers)?;
    }
    if *case == Case::Precision {
        precision::run(rounds.unwrap_or(2), python, &mut numbers)?;
    }
    if let Some(path) = &arguments.json {
        numbers.write(path)?;
        println!("numbers written to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_unknown_case_is_told_which_exist() {
        let error = Arguments::try_parse_from(["firebrand-bench", "warp"])
            .err()
            .map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(
            ["warp", "overhead", "allreduce", "ddp", "all"]
                .iter()
                .all(|word| error.contains(word)),
            "{error}"
        );
        assert!(!error.contains("rank"), "{error}");
    }
}
