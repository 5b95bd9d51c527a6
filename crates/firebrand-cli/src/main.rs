//! The `firebrand` command: `run` starts the ranks of a run and starts them again when one fails, `doctor` says what a machine
//! and its environment offer, `checkpoint inspect` what is in a checkpoint.

mod checkpoint;
mod doctor;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "firebrand", version, about = "Starts and examines training runs")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a program as several ranks, watches them, and starts them again when one fails
    Run(run::RunArgs),
    /// Says what this machine and environment offer, and what stands in the way of a run
    Doctor(doctor::DoctorArgs),
    /// Examines checkpoints
    Checkpoint(checkpoint::CheckpointArgs),
    /// What each rank of `run` begins as
    #[command(hide = true)]
    ExecRank(run::ExecRankArgs),
    /// What `run` leaves to look after the ranks if it is killed
    #[command(hide = true)]
    Guard,
}

fn main() -> ExitCode {
    // Usage errors end here, with exit code 2.
    let outcome = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Checkpoint(args) => checkpoint::checkpoint(&args),
        Command::ExecRank(args) => run::exec_rank(&args),
        Command::Guard => {
            run::stand_guard();
            Ok(0)
        }
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::from(if error.is::<run::Usage>() { 2 } else { 1 })
        }
    }
}

/// Writes a line to standard error, which may be closed.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}
