//! The program, run as a user runs it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A network that trains in a second.
const SMALL: &str = "--width 32 --layers 1 --heads 2 --batch-size 16 --samples 12 --log-every-n-steps 5 \
                     --limit-val-batches 2 --limit-test-batches 2";

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn surnames(folder: &Path, flags: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_surnames-gpt"))
        .current_dir(folder)
        .args(SMALL.split_whitespace().filter(|_| !flags.contains("--config")))
        .args(flags.split_whitespace())
        .output()
        .unwrap()
}

/// The names that a run made up, how many of them are known, and its loss on the test data.
fn made_up(output: &Output) -> (Vec<String>, usize, f64) {
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
    let mut lines: Vec<&str> = stdout.lines().collect();
    let loss = lines.pop().unwrap().strip_prefix("test_loss=").unwrap();
    let counted = lines.pop().unwrap();
    let known = counted.strip_suffix(" of 12 names are in the training data");
    let known = known.unwrap_or_else(|| panic!("{stdout}")).parse().unwrap();
    let names = lines[lines.len() - 12..].iter().map(|name| (*name).to_owned());
    (names.collect(), known, loss.parse().unwrap())
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
fn every_precision_learns_and_makes_up_names() {
    let folder = folder("precisions");
    let mut losses = Vec::new();
    for precision in ["32-true", "bf16-mixed", "16-mixed"] {
        let output = surnames(
            &folder,
            &format!("--precision {precision} --name {precision} --max-steps 60 --val-check-interval 30"),
        );
        let (names, known, test_loss) = made_up(&output);
        let letters = |name: &String| {
            name.len() <= 13
                && name.starts_with(|letter: char| letter.is_ascii_uppercase())
                && name[1..].bytes().all(|letter| letter.is_ascii_lowercase())
        };
        assert!(names.iter().all(letters), "{names:?}");
        assert!(known <= 12);
        let run = folder.join("runs").join(precision).join("version_0");
        let train = column(&run, "train_loss");
        // A network that knows nothing gives ln 27 = 3.3.
        assert!(
            train.first().unwrap().1 > 2.95 && train.last().unwrap().1 < 2.85,
            "{train:?}"
        );
        assert!(test_loss < 2.85, "{test_loss}");
        assert_eq!(
            column(&run, "val_loss")
                .iter()
                .map(|row| row.0)
                .collect::<Vec<_>>(),
            [30, 60]
        );
        assert_eq!(column(&run, "lr").len(), 12);
        losses.push(test_loss);
    }
    for loss in &losses[1..] {
        assert!((loss - losses[0]).abs() < 0.02 * losses[0], "{losses:?}");
    }
}

#[test]
fn a_saved_configuration_gives_the_same_names_and_a_seed_gives_others() {
    let folder = folder("configuration");
    let first = made_up(&surnames(&folder, "--max-steps 30 --seed 5 --name first"));
    let saved = "--config runs/first/version_0/hparams.toml --samples 12";
    let again = made_up(&surnames(&folder, &format!("{saved} --name again")));
    assert_eq!(first, again);
    let other = made_up(&surnames(
        &folder,
        &format!("{saved} --name other --sample-seed 2"),
    ));
    assert_eq!(first.2, other.2);
    assert_ne!(first.0, other.0);
}

#[test]
fn a_resumed_run_goes_on_where_it_was() {
    let folder = folder("resume");
    for flags in ["--max-steps 30", "--max-steps 60 --resume last"] {
        made_up(&surnames(&folder, &format!("{flags} --precision 16-mixed")));
    }
    let run = folder.join("runs/surnames-gpt/version_0");
    let steps: Vec<u64> = column(&run, "train_loss").iter().map(|row| row.0).collect();
    assert_eq!(steps, (1..=12).map(|n| n * 5).collect::<Vec<_>>());
    assert!(!folder.join("runs/surnames-gpt/version_1").exists());
}

#[test]
fn two_ranks_learn_and_speak_once() {
    let folder = folder("two_ranks");
    let output = surnames(
        &folder,
        "--devices 2 --strategy ddp --precision bf16-mixed --max-steps 60",
    );
    let (_, _, loss) = made_up(&output);
    assert!(loss < 2.85, "{loss}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        stdout.matches("names are in the training data").count(),
        1,
        "{stdout}"
    );
}

#[test]
fn a_try_leaves_nothing() {
    let folder = folder("fast_dev_run");
    made_up(&surnames(&folder, "--fast-dev-run"));
    assert!(std::fs::read_dir(&folder).unwrap().next().is_none());
}

#[test]
fn what_does_not_go_together_is_said() {
    let folder = folder("wrong_usage");
    for (flags, code, expected) in [
        ("--context 13", 1, "the longest name takes 14 places"),
        ("--heads 5", 1, "n_heads = 5"),
        ("--temperature 0", 2, "expected a number above 0"),
        (
            "--size huge",
            2,
            "[possible values: tiny, small, medium, large, xl]",
        ),
    ] {
        let arguments: Vec<&str> = flags.split_whitespace().collect();
        let output = Command::new(env!("CARGO_BIN_EXE_surnames-gpt"))
            .current_dir(&folder)
            .args(arguments)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags}: {stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}
