//! A run that was killed and resumed leaves the bytes of one that was not.

use std::fs::{self, OpenOptions};
use std::io::Write;

use super::{CsvLogger, JsonLinesLogger, LogRow, Logger, RunDirectory};

const END: u64 = 20;

/// What a run logs at a step: training values at each, validation at every fifth, metrics that appear late, and a value
/// of the epoch after the point at which a checkpoint of that step would be taken.
fn log_step(logger: &mut dyn Logger, step: u64, checkpoint: bool) {
    let mut log = |values: &[(&str, f64)]| {
        let values: Vec<_> = values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        logger
            .log_metrics(&LogRow {
                step,
                epoch: (step - 1) / 5,
                values: &values,
            })
            .unwrap();
    };
    let x = step as f64;
    log(&[("train_loss", 1.0 / x), ("lr", 1e-3 * x)]);
    if step.is_multiple_of(5) {
        log(&[
            ("val_loss", if step == 10 { f64::NAN } else { 2.0 / x }),
            ("lr", 1e-4 * x),
        ]);
    }
    if step >= 12 {
        log(&[("late, \"quoted\"", -x)]);
    }
    if checkpoint {
        logger.flush().unwrap();
    }
    let mut log_late = |name: &str, value| {
        let values = [(name.to_owned(), value)];
        logger
            .log_metrics(&LogRow {
                step,
                epoch: (step - 1) / 5,
                values: &values,
            })
            .unwrap();
    };
    if step.is_multiple_of(5) {
        log_late("train_loss_epoch", 3.0 / x);
    }
    if step == 17 {
        log_late("rare", f64::INFINITY);
    }
}

fn bytes_of_every_resume(new: fn() -> Box<dyn Logger>, file_name: &str, torn: &str) -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let whole = RunDirectory::create(root.path(), "run").unwrap();
    let mut logger = new();
    logger.begin(&whole, None).unwrap();
    (1..=END).for_each(|step| log_step(logger.as_mut(), step, false));
    logger.finish().unwrap();
    let expected = fs::read(whole.path().join(file_name)).unwrap();

    for checkpoint in 0..=END {
        for killed in [checkpoint, checkpoint + 1, (checkpoint + 6).min(END)] {
            let run = RunDirectory::create(root.path(), "run").unwrap();
            let mut logger = new();
            logger.begin(&run, None).unwrap();
            (1..=killed.min(END)).for_each(|step| log_step(logger.as_mut(), step, step == checkpoint));
            drop(logger);
            let path = run.path().join(file_name);
            OpenOptions::new()
                .append(true)
                .open(&path)
                .unwrap()
                .write_all(torn.as_bytes())
                .unwrap();

            let mut logger = new();
            logger.begin(&run, Some(checkpoint)).unwrap();
            if checkpoint > 0 && checkpoint.is_multiple_of(5) {
                // The loop logs again what followed the checkpoint within its step.
                let values = [("train_loss_epoch".to_owned(), 3.0 / checkpoint as f64)];
                let epoch = (checkpoint - 1) / 5;
                logger
                    .log_metrics(&LogRow {
                        step: checkpoint,
                        epoch,
                        values: &values,
                    })
                    .unwrap();
            }
            if checkpoint == 17 {
                let values = [("rare".to_owned(), f64::INFINITY)];
                logger
                    .log_metrics(&LogRow {
                        step: 17,
                        epoch: 3,
                        values: &values,
                    })
                    .unwrap();
            }
            (checkpoint + 1..=END).for_each(|step| log_step(logger.as_mut(), step, false));
            logger.finish().unwrap();

            let resumed = fs::read(&path).unwrap();
            let [resumed, expected] = [&resumed, &expected].map(|bytes| String::from_utf8_lossy(bytes));
            assert_eq!(
                resumed, expected,
                "checkpoint at {checkpoint}, killed at {killed}"
            );
            assert_eq!(fs::read_dir(run.path()).unwrap().count(), 1);
        }
    }
    expected
}

#[test]
fn csv() {
    let bytes = bytes_of_every_resume(|| Box::new(CsvLogger::new()), "metrics.csv", "21,4,0.");
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len() as u64, 1 + END);
    assert_eq!(
        lines[0],
        "step,epoch,train_loss,lr,val_loss,train_loss_epoch,\"late, \"\"quoted\"\"\",rare"
    );
    assert_eq!(lines[1], "1,0,1.0,0.001,,,,");
    assert_eq!(lines[10], "10,1,0.1,0.001,NaN,0.3,,");
    assert_eq!(lines[17], "17,3,0.058823529411764705,0.017,,,-17.0,inf");
}

#[test]
fn json_lines() {
    let bytes = bytes_of_every_resume(
        || Box::new(JsonLinesLogger::new()),
        "metrics.jsonl",
        "{\"step\":21,\"ep",
    );
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len() as u64, END);
    assert_eq!(
        lines[9],
        r#"{"step":10,"epoch":1,"train_loss":0.1,"lr":0.001,"val_loss":"NaN","train_loss_epoch":0.3}"#
    );
    assert!(
        lines[16].ends_with(r#""late, \"quoted\"":-17.0,"rare":"inf"}"#),
        "{}",
        lines[16]
    );
    for line in lines {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}
