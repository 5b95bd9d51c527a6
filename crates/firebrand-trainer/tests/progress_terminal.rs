//! Bars, log messages and panics of a whole process on a terminal of its own, which `script` makes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]
#![cfg(target_os = "linux")]

use std::panic::catch_unwind;
use std::process::Command;
use std::thread;
use std::time::Duration;

use firebrand_trainer::progress::{ProgressMode, ProgressReporter, init_tracing};

#[path = "../src/progress/test_screen.rs"]
mod test_screen;

const WIDTH: usize = 100;

/// The child: a worker and then the loop panic while bars are up.
#[test]
#[ignore = "run by the other test on a terminal"]
fn on_a_terminal() {
    assert!(init_tracing(true));
    assert!(!init_tracing(true), "a second time it leaves the first alone");
    let outcome = catch_unwind(|| {
        let mut progress = ProgressReporter::new(ProgressMode::Bars);
        progress.begin_stage("train epoch 0", Some(100), 0);
        for step in 0..50 {
            progress.advance(1);
            thread::sleep(Duration::from_millis(10));
            match step {
                10 => tracing::info!("a message of the log"),
                20 => tracing::debug!("a message below the filter"),
                25 => assert!(thread::spawn(|| panic!("the worker failed")).join().is_err()),
                30 => progress.begin_stage("validate", None, 0),
                40 => firebrand_trainer::progress::suspend(|| println!("output of the program")),
                _ => {}
            }
        }
        panic!("the loop failed");
    });
    assert!(outcome.is_err());
    println!("the end");
}

#[test]
fn nothing_on_a_terminal_is_torn_swallowed_or_left() {
    if !Command::new("script")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        println!("skipped: there is no `script` to make a terminal");
        return;
    }
    let child = std::env::current_exe().unwrap();
    let command = format!(
        "stty rows 40 cols {WIDTH}; exec '{}' --exact on_a_terminal --ignored --nocapture",
        child.display()
    );
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .envs([
            ("TERM", "xterm"),
            ("RUST_BACKTRACE", "0"),
            ("FIREBRAND_LOG", "info"),
            ("CI", ""),
        ])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let raw = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{raw}");
    assert!(
        raw.contains("train epoch 0 \x1b[36m━") && raw.contains("validate "),
        "bars were drawn: {raw}"
    );

    let screen = test_screen::Screen::new(WIDTH);
    screen.feed(&raw);
    let text = screen.text();
    let lines: Vec<_> = text.lines().collect();
    let position = |wanted: &str| {
        let found: Vec<_> = (0..lines.len())
            .filter(|&line| lines[line].contains(wanted))
            .collect();
        assert_eq!(found.len(), 1, "{wanted:?} in\n{text}");
        found[0]
    };
    let order = [
        position("INFO progress_terminal: a message of the log"),
        position("the worker failed"),
        position("output of the program"),
        position("the loop failed"),
        position("the end"),
    ];
    assert!(order.is_sorted(), "{text}");
    assert!(
        lines[order[0]].starts_with("20"),
        "the line begins with its time:\n{text}"
    );
    assert!(
        !text.contains("━") && !text.contains("validate") && !text.contains("below"),
        "{text}"
    );
    assert!(!screen.cursor_hidden());
}
