//! `firebrand doctor` as a user sees it.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

/// What it prints with some variables and no others that would count.
fn doctor(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firebrand"));
    command
        .arg("doctor")
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(variables.iter().copied());
    let Output { status, stdout, .. } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap())
}

#[test]
fn everything_that_matters_is_named() {
    let (code, text) = doctor(&[], &[]);
    for part in [
        "cores",
        "memory",
        "cgroup",
        "/dev/shm",
        "memfd",
        "127.0.0.1",
        "ulimit -n",
        "ulimit -l",
        "libnccl.so.2",
        "libcuda.so.1",
        "RAYON_NUM_THREADS",
        "OMP_NUM_THREADS",
        "FIREBRAND_*",
        "one process on its own",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    assert_eq!(code == 0, text.ends_with("No problem found.\n"), "{text}");
}

#[test]
fn json_says_the_same_and_the_exit_code_follows_the_problems() {
    let (code, text) = doctor(&["--json"], &[("FIREBRAND_TIMEOUT", "5")]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let before = report["problems"].as_array().unwrap().len();
    assert_eq!(code, i32::from(before > 0));
    let sections = report["sections"].as_array().unwrap();
    assert!(sections.iter().any(|section| section["name"] == "Launcher"));

    let (code, text) = doctor(
        &["--json"],
        &[
            ("WORLD_SIZE", "2"),
            ("FIREBRAND_SECRET", "hush-hush"),
            ("FIREBRAND_TIMEOUT", "x"),
        ],
    );
    assert_eq!(code, 1);
    assert!(!text.contains("hush-hush"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(problems.len(), before + 2, "{text}");
    for problem in problems {
        assert!(!problem["fix"].as_str().unwrap().is_empty());
    }
}
