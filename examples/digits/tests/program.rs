//! The program, run as a user runs it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn digits(folder: &Path, flags: &str) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_digits"));
    program
        .current_dir(folder)
        .args(flags.split_whitespace())
        .output()
        .unwrap()
}

/// The test accuracy on the last line of a run that succeeded.
fn accuracy(output: &Output) -> f64 {
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
    let last = stdout.lines().last().unwrap_or_default();
    last.strip_prefix("test_acc=")
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{stdout}"))
}

/// The values of one column of a run's `metrics.csv`, with their steps.
fn column(run: &Path, name: &str) -> Vec<(u64, f64)> {
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    let column = reader.headers().unwrap().iter().position(|header| header == name);
    let column = column.unwrap_or_else(|| panic!("no column {name}"));
    let rows = reader.records().map(Result::unwrap);
    rows.filter(|row| !row[column].is_empty())
        .map(|row| (row[0].parse().unwrap(), row[column].parse().unwrap()))
        .collect()
}

#[test]
fn a_run_trains_tests_and_leaves_its_files() {
    let folder = folder("a_run");
    let tested = accuracy(&digits(&folder, "--max-epochs 15"));
    assert!(tested > 0.93, "{tested}");
    let run = folder.join("runs/digits/version_0");
    for file in [
        "hparams.toml",
        "curves.svg",
        "checkpoints/last",
        "checkpoints/best",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    let steps: Vec<u64> = column(&run, "val_loss")
        .into_iter()
        .map(|(step, _)| step)
        .collect();
    assert_eq!(steps, (1..=15).map(|epoch| epoch * 34).collect::<Vec<_>>());
    for name in ["train_loss", "train_acc", "val_acc", "lr"] {
        assert!(column(&run, name).len() >= 15, "{name}");
    }
    assert_eq!(column(&run, "test_acc").len(), 1);
    assert_eq!(column(&run, "test_loss")[0].0, 15 * 34);
    let svg = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("val_loss") && svg.matches("<polyline").count() >= 4,
        "{svg}"
    );
}

#[test]
fn a_saved_configuration_repeats_the_run_and_flags_win_over_it() {
    let folder = folder("configuration");
    let first = digits(
        &folder,
        "--max-epochs 2 --seed 5 --batch-size 64 --gradient-clip-val 1 --name first",
    );
    let saved = "--config runs/first/version_0/hparams.toml";
    let again = digits(&folder, &format!("{saved} --name again"));
    assert_eq!(accuracy(&first), accuracy(&again));
    let metrics =
        |name: &str| std::fs::read(folder.join("runs").join(name).join("version_0/metrics.csv")).unwrap();
    assert_eq!(metrics("first"), metrics("again"));
    accuracy(&digits(
        &folder,
        &format!("{saved} --name other --batch-size 32 --max-steps 20"),
    ));
    let run = folder.join("runs/other/version_0");
    assert_eq!(column(&run, "train_loss").last().unwrap().0, 20);
}

#[test]
fn a_resumed_run_goes_on_where_it_was() {
    let folder = folder("resume");
    for flags in ["--max-steps 50", "--max-steps 120 --resume last"] {
        accuracy(&digits(&folder, flags));
    }
    let steps: Vec<u64> = column(&folder.join("runs/digits/version_0"), "train_loss")
        .iter()
        .map(|row| row.0)
        .collect();
    assert_eq!(steps, (1..=12).map(|n| n * 10).collect::<Vec<_>>());
    assert!(!folder.join("runs/digits/version_1").exists());
    let nothing = digits(&folder, "--name other --resume last");
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("there is no checkpoint 'last'"));
    accuracy(&digits(&folder, "--name other --resume auto --max-steps 1"));
}

#[test]
fn both_networks_can_be_tried_without_leaving_anything() {
    let folder = folder("fast_dev_run");
    for model in ["mlp", "conv"] {
        accuracy(&digits(&folder, &format!("--model {model} --fast-dev-run")));
        accuracy(&digits(
            &folder,
            &format!("--model {model} --fast-dev-run=3 --early-stopping 2"),
        ));
    }
    assert!(std::fs::read_dir(&folder).unwrap().next().is_none());
    accuracy(&digits(&folder, "--max-steps 3 --enable-checkpointing false"));
    assert!(!folder.join("runs/digits/version_0/checkpoints").exists());
}

#[test]
fn two_ranks_learn_as_one_does_and_speak_once() {
    let folder = folder("two_ranks");
    let output = digits(&folder, "--devices 2 --strategy ddp");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(accuracy(&output) >= 0.96, "{stdout}");
    assert_eq!(stdout.matches("test_acc=").count(), 1, "{stdout}");
    assert!(folder.join("runs/digits/version_0/checkpoints/last").exists());
    assert!(!folder.join("runs/digits/version_1").exists());
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    let folder = folder("wrong_usage");
    for (flags, expected) in [
        ("--modle conv", "--model"),
        ("--model cnn", "[possible values: mlp, conv]"),
        ("--strategy pipeline", "not available yet in this version"),
        ("--strategy single --devices 2", "`single`"),
        ("--min-epochs 5 --max-epochs 2", "min_epochs: 5"),
        ("--config nowhere.toml", "nowhere.toml"),
    ] {
        let output = digits(&folder, flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags}: {stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn both_networks_train_in_float64_too() {
    let folder = folder("float64");
    for model in ["mlp", "conv"] {
        let flags = format!("--model {model} --max-epochs 1 --precision 64-true --limit-train-batches 4");
        accuracy(&digits(&folder, &flags));
    }
}

#[test]
fn a_negative_number_is_named_with_its_flag() {
    let folder = folder("negative");
    let output = digits(&folder, "--max-epochs -1");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--max-epochs") && text.contains("-1"), "{text}");
}

#[test]
fn a_standard_output_that_is_full_stops_nothing() {
    let folder = folder("full_output");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let Ok(full) = full else {
        eprintln!("skipped: there is no /dev/full here");
        return;
    };
    let status = Command::new(env!("CARGO_BIN_EXE_digits"))
        .current_dir(&folder)
        .args(["--max-epochs", "1"])
        .stdout(full)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn a_part_of_the_settings_may_stand_in_a_file_and_a_typo_is_named() {
    let folder = folder("settings");
    std::fs::write(
        folder.join("part.toml"),
        "max_epochs = 1\n[module]\nbatch_size = 64\n",
    )
    .unwrap();
    accuracy(&digits(&folder, "--config part.toml"));
    let hparams = std::fs::read_to_string(folder.join("runs/digits/version_0/hparams.toml")).unwrap();
    assert!(hparams.contains("batch_size = 64"), "{hparams}");
    std::fs::write(folder.join("typo.toml"), "[module]\nbatchsize = 64\n").unwrap();
    let output = digits(&folder, "--config typo.toml");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("batchsize") && text.contains("typo.toml"), "{text}");
}
