//! What tests ask of a run in a process of its own: whether it ended well, what it logged, and whether something of it is left.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Output;

/// Fails with what the program said, unless it ended well.
pub fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The values of a metric of `train_ranks` in the order in which they were logged.
pub fn column(root: &Path, metric: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(root.join("ranks/version_0/metrics.csv")).unwrap();
    let mut lines = text.lines();
    let names = lines.next().unwrap();
    let column = names.split(',').position(|name| name == metric).unwrap();
    lines
        .filter_map(|line| line.split(',').nth(column)?.parse().ok())
        .collect()
}

/// Fails at the first step at which two curves differ by more than a tolerance, relative to the first.
pub fn assert_close(expected: &[f64], found: &[f64], tolerance: f64, what: &str) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (step, (a, b)) in expected.iter().zip(found).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * a.abs(),
            "{what}: the loss of step {step} is {b} and not {a}"
        );
    }
}

/// The processes whose command lines name a root, but for one.
pub fn processes(root: &Path, but: Option<u32>) -> Vec<u32> {
    let root = root.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_run = processes.filter_map(|process| {
        let id: u32 = process.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        (Some(id) != but && String::from_utf8_lossy(&line).contains(root)).then_some(id)
    });
    of_run.collect()
}
