use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::model::Size;
use crate::numbers::Numbers;

/// Measures PyTorch and Lightning; the last line of its output is a JSON object.
const SCRIPT: &str = include_str!("../../python/overhead.py");

/// Lets a Python interpreter measure the peers on the model of a size, and adds their numbers.
pub(super) fn measure(python: &Path, size: Size, numbers: &mut Numbers) -> Result<()> {
    let mut child = Command::new(python)
        .args(["-", "--case", size.name()])
        .envs(["OMP_NUM_THREADS", "MKL_NUM_THREADS"].map(|name| (name, "1")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", python.display()))?;
    // A child that ends early closes the pipe; its exit status says more than the failed write.
    let written = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(SCRIPT.as_bytes()));
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!(
            "{} could not measure the peers ({}); install python/requirements.txt into its environment",
            python.display(),
            output.status
        );
    }
    written.transpose()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text
        .lines()
        .next_back()
        .context("the Python script printed nothing")?;
    numbers.merge(line)
}
