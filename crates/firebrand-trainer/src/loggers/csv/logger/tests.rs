use std::fs;

use super::*;

fn row(logger: &mut CsvLogger, step: u64, values: &[(&str, f64)]) -> Result<(), LoggerError> {
    let values: Vec<_> = values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    logger.log_metrics(&LogRow {
        step,
        epoch: 0,
        values: &values,
    })
}

fn new_run() -> (tempfile::TempDir, RunDirectory, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    let path = run.path().join(CsvLogger::FILE_NAME);
    (root, run, path)
}

#[test]
fn a_row_is_written_when_the_step_moves_on_or_at_a_flush() {
    let (_root, run, path) = new_run();
    let mut logger = CsvLogger::new();
    logger.begin(&run, None).unwrap();
    row(&mut logger, 1, &[("loss", 0.5)]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    row(&mut logger, 2, &[("loss", 0.25)]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "step,epoch,loss\n1,0,0.5\n");
    logger.flush().unwrap();
    row(&mut logger, 2, &[("acc", 1.0)]).unwrap();
    row(&mut logger, 2, &[]).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "step,epoch,loss\n1,0,0.5\n2,0,0.25\n"
    );
    logger.finish().unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "step,epoch,loss,acc\n1,0,0.5,\n2,0,0.25,1.0\n"
    );
}

#[test]
fn a_logger_that_begins_again_goes_on_in_the_file() {
    let (_root, run, path) = new_run();
    for step in [1, 2] {
        let mut logger = CsvLogger::new();
        logger.begin(&run, None).unwrap();
        row(&mut logger, step, &[("loss", 0.5)]).unwrap();
        logger.finish().unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "step,epoch,loss\n1,0,0.5\n2,0,0.5\n"
    );
}

#[test]
fn use_outside_a_run_and_reserved_names_are_errors() {
    let (_root, run, path) = new_run();
    let mut logger = CsvLogger::new();
    assert!(matches!(
        row(&mut logger, 1, &[("loss", 1.0)]),
        Err(LoggerError::NotBegun { logger: "csv" })
    ));
    logger.begin(&run, None).unwrap();
    let refused = row(&mut logger, 1, &[("step", 9.0), ("loss", 0.5)]);
    assert!(matches!(refused, Err(LoggerError::ReservedMetric { .. })));
    logger.finish().unwrap();
    logger.finish().unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "step,epoch,loss\n1,0,0.5\n",
        "the rest of the row stays"
    );
    assert!(row(&mut logger, 2, &[("loss", 1.0)]).is_err());
}

#[test]
fn what_a_crash_leaves_at_the_end_is_cut() {
    let (_root, run, path) = new_run();
    let good = "step,epoch,loss\n1,0,0.5\n";
    // A line without its end, a block of zeros as after a power failure, a header of a column that got no value.
    for end in ["2,0,0.2", "\0\0\0\0\n\0\0", "2,0\n", "2,0,0.25\n3,0,1\n4,"] {
        fs::write(&path, format!("{good}{end}")).unwrap();
        CsvLogger::new().begin(&run, Some(1)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), good, "{end:?}");
    }
    fs::write(&path, "step,epoch,loss,acc\n1,0,0.5,\n").unwrap();
    CsvLogger::new().begin(&run, None).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), good);
    fs::write(&path, "step,epo").unwrap();
    CsvLogger::new().begin(&run, None).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
}

#[test]
fn a_damaged_or_foreign_file_is_left_alone_and_named() {
    let (_root, run, path) = new_run();
    for (text, expected) in [
        ("step,epoch,loss\n1,0,0.5\nrubbish\n2,0,0.25\n", "line 3"),
        ("epoch,step,loss\n1,0,0.5\n", "line 1: the first two columns"),
        (
            "step,epoch,loss\n1,0,0.5\n2,0,low\n",
            "line 3: a value is no number",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let message = CsvLogger::new().begin(&run, None).unwrap_err().to_string();
        assert!(
            message.contains(expected) && message.contains("metrics.csv"),
            "{message}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn hyper_parameters_lie_beside_the_rows() {
    let (_root, run, _path) = new_run();
    let mut logger = CsvLogger::new();
    logger.begin(&run, None).unwrap();
    logger.log_hparams(&"seed = 3".parse().unwrap()).unwrap();
    assert_eq!(
        fs::read_to_string(run.path().join("hparams.toml")).unwrap(),
        "seed = 3\n"
    );
}
