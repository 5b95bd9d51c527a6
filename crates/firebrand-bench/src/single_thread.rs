use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Read by rayon when its first thread starts, so it must be there before `main`.
const THREADS: &str = "RAYON_NUM_THREADS";
/// burn-train logs every iteration, and the trainer's own log would print it.
const LOG: &str = "FIREBRAND_LOG";

/// Runs this program again with one computing thread and a quiet log, unless that is how it runs already. Returns how the
/// other run ended.
pub(crate) fn restart_if_needed() -> Result<Option<ExitCode>> {
    if env::var_os(THREADS).is_some_and(|threads| threads == "1") && env::var_os(LOG).is_some() {
        return Ok(None);
    }
    let program = env::current_exe().context("cannot find this program to run it on one thread")?;
    let mut command = Command::new(&program);
    command.args(env::args_os().skip(1)).env(THREADS, "1");
    if env::var_os(LOG).is_none() {
        command.env(LOG, "warn");
    }
    let status = command
        .status()
        .with_context(|| format!("cannot run {} on one thread", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}
