//! Both programs, run as a user runs them.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::process::{Command, Output};

fn run(form: &str, flags: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mixed-precision"))
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .args(["--form", form])
        .args(flags.split_whitespace())
        .output()
        .unwrap()
}

/// What a run that succeeded printed.
fn printed(form: &str, precision: &str) -> String {
    let output = run(form, &format!("--precision {precision}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The number after a word, in each line that has it.
fn numbers(printed: &str, word: &str) -> Vec<f64> {
    let after = printed.lines().filter_map(|line| line.split_once(word));
    after
        .map(|(_, rest)| rest.split(',').next().unwrap().trim().parse().unwrap())
        .collect()
}

#[test]
fn both_forms_are_one_training() {
    for precision in ["32-true", "bf16-mixed", "16-mixed"] {
        let [by_hand, trainer] = ["by-hand", "trainer"].map(|form| printed(form, precision));
        // To the last digit: the same casts, scales, checks and updates in the same order.
        assert_eq!(by_hand, trainer, "{precision}");
        let losses = numbers(&trainer, "loss ");
        assert_eq!(losses.len(), 10, "{trainer}");
        assert!(losses[9] < 0.5 * losses[0], "{trainer}");
    }
}

#[test]
fn float16_finds_its_scale_and_bfloat16_needs_none() {
    let float16 = printed("trainer", "16-mixed");
    let scales = numbers(&float16, "loss scale ");
    // Gradients overflow at 65536; each update that was left out halved it.
    let last = *scales.last().unwrap();
    assert!(last < 65536.0, "{float16}");
    let left_out = (65536.0 / last).log2();
    let updates = float16.lines().last().unwrap();
    assert_eq!(updates, format!("{} updates", 320.0 - left_out));
    for precision in ["32-true", "bf16-mixed"] {
        let printed = printed("trainer", precision);
        assert!(
            printed.ends_with("320 updates\n") && !printed.contains("loss scale"),
            "{printed}"
        );
    }
}

#[test]
fn the_precisions_do_not_agree_to_the_digit_and_agree_to_some_per_cent() {
    let [exact, bf16] =
        ["32-true", "bf16-mixed"].map(|precision| numbers(&printed("trainer", precision), "loss "));
    assert_ne!(exact, bf16);
    for (exact, bf16) in exact.iter().zip(&bf16) {
        assert!((exact - bf16).abs() < 0.05 * exact, "{exact} {bf16}");
    }
}

#[test]
fn what_is_not_written_out_by_hand_is_said() {
    let output = run("by-hand", "--precision bf16-true");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr.contains("bf16-true") && stderr.contains("16-mixed"),
        "{stderr}"
    );
}
