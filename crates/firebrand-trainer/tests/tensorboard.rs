//! The event files as the real TensorBoard reads them.
//!
//! `FIREBRAND_TEST_PYTHON` names an interpreter that can `import tensorboard`; without it `python3` is tried, and
//! where that cannot, the test says so and checks nothing.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use firebrand_trainer::loggers::{LogRow, Logger, RunDirectory, TensorBoardLogger};
use serde_json::{Value, json};

fn python_with_tensorboard() -> Option<PathBuf> {
    let named = std::env::var_os("FIREBRAND_TEST_PYTHON").map(PathBuf::from);
    let python = named.clone().unwrap_or_else(|| PathBuf::from("python3"));
    let found = Command::new(&python).args(["-c", "import tensorboard"]).output();
    let works = found.is_ok_and(|output| output.status.success());
    assert!(
        works || named.is_none(),
        "FIREBRAND_TEST_PYTHON={} cannot import tensorboard",
        python.display()
    );
    works.then_some(python)
}

fn read(python: &Path, run: &RunDirectory) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_tensorboard.py");
    let output = Command::new(python).arg(script).arg(run.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn log(logger: &mut TensorBoardLogger, step: u64, loss: f64) {
    logger
        .log_metrics(&LogRow {
            step,
            epoch: step / 10,
            values: &[("train/loss".to_owned(), loss)],
        })
        .unwrap();
}

#[test]
fn tensorboard_reads_a_run_that_was_killed_and_resumed() {
    let Some(python) = python_with_tensorboard() else {
        println!("skipped: no Python with tensorboard; set FIREBRAND_TEST_PYTHON to one");
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    let hparams: toml::Table =
        "seed = 7\nname = \"mlp\"\nshuffle = true\nsizes = [32, 10]\n[optimizer]\nlr = 1e-3"
            .parse()
            .unwrap();
    let weights: Vec<f64> = (0..1000).map(|i| f64::from(i) / 100.0 - 5.0).collect();

    let mut logger = TensorBoardLogger::new();
    logger.begin(&run, None).unwrap();
    logger.log_hparams(&hparams).unwrap();
    (1..=15).for_each(|step| log(&mut logger, step, 1.0 / step as f64));
    logger.log_histogram(10, "weights", &weights).unwrap();
    logger.log_histogram(15, "weights", &weights[..500]).unwrap();
    drop(logger);

    let mut logger = TensorBoardLogger::new();
    logger.begin(&run, Some(12)).unwrap();
    (13..=20).for_each(|step| log(&mut logger, step, 2.0 / step as f64));
    log(&mut logger, 21, f64::NAN);
    logger.finish().unwrap();

    let seen = read(&python, &run);
    let losses = seen["scalars"]["train/loss"].as_array().unwrap();
    let expected: Vec<Value> = (1..=21)
        .map(|step| {
            let factor = if step <= 12 { 1.0 } else { 2.0 };
            let value = f64::from((factor / f64::from(step)) as f32);
            if step == 21 {
                json!([21, "nan"])
            } else {
                json!([step, value])
            }
        })
        .collect();
    let found: Vec<Value> = losses
        .iter()
        .map(|event| match event[1].as_str().unwrap() {
            "nan" => json!([event[0], "nan"]),
            number => json!([event[0], number.parse::<f64>().unwrap()]),
        })
        .collect();
    assert_eq!(found, expected);
    let times: Vec<f64> = losses.iter().map(|event| event[2].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 1.7e9, "{times:?}");
    assert_eq!(seen["scalars"]["epoch"][20][1], "2.0");

    let (min, max) = (weights[0], weights[999]);
    assert_eq!(
        seen["histograms"]["weights"],
        json!([[10, 1000.0, min, max, weights.iter().sum::<f64>()]])
    );

    let session = &seen["hparams"];
    assert_eq!(
        session["values"],
        json!({"seed": 7.0, "name": "mlp", "shuffle": true, "sizes": "[32, 10]", "optimizer.lr": 1e-3})
    );
    assert_eq!(session["group_name"], "run/version_0");
    assert!(session["start_time"].as_f64().unwrap() > 1.7e9);
}
