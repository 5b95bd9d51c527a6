//! Benchmarks of Firebrand: `firebrand-bench CASE [--json FILE] [--python PATH]`.
//!
//! Each case prints a table, and writes its numbers as one flat JSON object where it is asked to.

mod numbers;
mod overhead;
mod restart;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

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
    /// How many times each loop takes its turn; more turns give steadier medians.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Case {
    /// What a training step costs beyond the arithmetic, on one thread.
    Overhead,
    /// Every case.
    All,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(code) = restart::restart_if_needed()? {
        return Ok(code);
    }
    let mut numbers = Numbers::default();
    match arguments.case {
        Case::Overhead | Case::All => {
            overhead::run(arguments.rounds, arguments.python.as_deref(), &mut numbers)?;
        }
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
        let error = Arguments::try_parse_from(["firebrand-bench", "allreduce"])
            .err()
            .map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(
            error.contains("allreduce") && error.contains("overhead") && error.contains("all"),
            "{error}"
        );
    }
}
