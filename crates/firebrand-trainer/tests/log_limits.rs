//! Loggers on a file system that takes no more: a limit on the size of files stands for a full disk.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in its helper functions"
)]
#![cfg(unix)]

use std::fs;
use std::process::Command;

use firebrand_trainer::loggers::{
    CsvLogger, JsonLinesLogger, LogRow, Loggers, RunDirectory, TensorBoardLogger,
};

const CHILD: &str = "FIREBRAND_TEST_LIMITED_RUN";
const NUM_STEPS: u64 = 2000;
/// In blocks of 512 bytes.
const LIMIT: u64 = 32;

fn loggers(run: &RunDirectory, resumed_at: Option<u64>) -> Loggers {
    let mut loggers = Loggers::new();
    loggers.push(Box::new(CsvLogger::new()));
    loggers.push(Box::new(JsonLinesLogger::new()));
    loggers.push(Box::new(TensorBoardLogger::new()));
    loggers.begin(run, resumed_at).unwrap();
    loggers
}

fn log(loggers: &mut Loggers, steps: std::ops::RangeInclusive<u64>) {
    for step in steps {
        loggers.log_metrics(&LogRow {
            step,
            epoch: 0,
            values: &[("loss".to_owned(), 1.0 / step as f64)],
        });
    }
}

/// The child: it trains to the end, though the limit is reached on the way, and hears of it at the end.
#[test]
#[ignore = "run by the other test under a limit"]
fn limited_run() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let run = RunDirectory::open(path).unwrap();
    let mut loggers = loggers(&run, None);
    log(&mut loggers, 1..=NUM_STEPS);
    let failures = loggers.finish();
    let mut failed: Vec<_> = failures.iter().map(|failure| failure.logger).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["csv", "json-lines", "tensorboard"]);
    for failure in &failures {
        assert!(
            failure.num_errors > 100 && failure.to_string().contains("limit on the size"),
            "{failure}"
        );
    }
}

fn read(run: &RunDirectory, name: &str) -> String {
    fs::read_to_string(run.path().join(name)).unwrap()
}

#[test]
fn a_full_disk_leaves_whole_rows_and_a_run_that_can_be_resumed() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    // Ignored signals stay ignored in the program that the shell becomes, so that a write fails instead.
    let script = format!("trap '' XFSZ; ulimit -f {LIMIT}; exec \"$0\" --exact limited_run --ignored");
    let child = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, run.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");

    let csv = read(&run, "metrics.csv");
    assert!(
        csv.ends_with('\n') && csv.len() as u64 > LIMIT * 512 - 64,
        "{}",
        csv.len()
    );
    let whole = csv.lines().skip(1).all(|line| line.split(',').count() == 3);
    let num_rows = csv.lines().count() as u64 - 1;
    assert!(whole && num_rows < NUM_STEPS);

    // With space again, the run resumes from a checkpoint of before; its files equal those of a run that had space.
    let resumed_at = 100;
    let mut resumed = loggers(&run, Some(resumed_at));
    log(&mut resumed, resumed_at + 1..=NUM_STEPS);
    assert!(resumed.finish().is_empty());
    let roomy = RunDirectory::create(root.path(), "run").unwrap();
    let mut loggers = loggers(&roomy, None);
    log(&mut loggers, 1..=NUM_STEPS);
    assert!(loggers.finish().is_empty());
    for name in ["metrics.csv", "metrics.jsonl"] {
        assert!(read(&run, name) == read(&roomy, name), "{name} differs");
    }
}
