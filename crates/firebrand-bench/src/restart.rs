use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Read by rayon, and by OpenMP for LibTorch, when their first threads start.
const THREADS: [(&str, &str); 3] = [
    ("RAYON_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
];

/// What else must be in the environment before `main`, and is set unless it is there.
const SETTINGS: [(&str, &str); 3] = [
    // burn-train logs every iteration, and the trainer's own log would print it.
    ("FIREBRAND_LOG", "warn"),
    // By default glibc gives large buffers back to the system and gets them again, or not, by the luck of how they lie in the
    // heap: page faults that make one run of the same loop 20 % slower than the next.
    ("MALLOC_TRIM_THRESHOLD_", "4294967296"),
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
];

/// Runs this program again with the environment that it needs, unless that is how it runs already. Returns how the other run
/// ended.
pub(crate) fn restart_if_needed() -> Result<Option<ExitCode>> {
    let mut missing: Vec<_> = SETTINGS
        .into_iter()
        .filter(|(name, _)| env::var_os(name).is_none())
        .collect();
    let others = THREADS
        .into_iter()
        .filter(|(name, one)| env::var_os(name).is_none_or(|threads| threads != *one));
    missing.extend(others);
    if missing.is_empty() {
        return Ok(None);
    }
    let program = env::current_exe().context("cannot find this program to run it again on one thread")?;
    let status = Command::new(&program)
        .args(env::args_os().skip(1))
        .envs(missing)
        .status()
        .with_context(|| format!("cannot run {} again on one thread", program.display()))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
}
