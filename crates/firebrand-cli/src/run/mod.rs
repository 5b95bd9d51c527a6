//! `firebrand run`: the agent of one node. It starts the node's ranks, watches them, and starts all of them again when one fails.

mod agent;
mod args;
mod guard;
mod interrupts;
mod job;
mod port;
mod program;

use std::convert::Infallible;

pub use args::{ExecRankArgs, RunArgs, Usage};
pub use guard::stand_guard;

/// Runs the ranks until they are over; returns the exit code.
pub fn run(args: &RunArgs) -> anyhow::Result<u8> {
    let job = job::Job::new(args)?;
    agent::Agent::new(job, args)?.run()
}

/// Becomes the program of a rank. It returns only if it cannot.
pub fn exec_rank(args: &ExecRankArgs) -> anyhow::Result<u8> {
    let never: Result<Infallible, _> = match args.command.split_first() {
        Some((program, rest)) => firebrand_launch::exec(program, rest),
        None => return Err(Usage("there is no program to run".to_owned()).into()),
    };
    match never {
        Ok(never) => match never {},
        Err(error) => {
            crate::say(&format!("error: {error}"));
            // As shells say that a command could not be run.
            Ok(126)
        }
    }
}
