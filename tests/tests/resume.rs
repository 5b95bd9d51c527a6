//! A run that is killed and resumed ends as one that was not: the same weights and the same logged curve, byte for byte.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rand::RngExt;

/// How many ranks train, how they communicate, and in which precision.
#[derive(Clone, Copy)]
struct Ranks(usize, &'static str, &'static str);

const ONE: Ranks = Ranks(1, "auto", "32-true");

fn start(root: &Path, Ranks(ranks, means, precision): Ranks, resume: Option<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train_classifier"));
    command
        .arg(root)
        .args([&ranks.to_string(), "3"])
        .args(resume)
        .env("FIREBRAND_COLLECTIVE", means)
        .env("FIREBRAND_TEST_PRECISION", precision)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // A fixed number of threads is part of the promise.
    command.env("RAYON_NUM_THREADS", "1").env_remove("FIREBRAND_LOG");
    command.spawn().unwrap()
}

fn finish(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().unwrap();
    (
        output.status,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

fn run(root: &Path) -> PathBuf {
    root.join("classifier/version_0")
}

fn last(root: &Path) -> Option<PathBuf> {
    let name = std::fs::read_to_string(run(root).join("checkpoints/last")).ok()?;
    Some(run(root).join("checkpoints").join(name.trim()))
}

/// What must be equal: weights, optimizer, averages, and the curve.
fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
    let last = last(root).expect("a finished run has a last checkpoint");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&last).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            files.push((name, std::fs::read(entry.path()).unwrap()));
        }
    }
    files.sort();
    assert!(
        files.iter().any(|(name, _)| name == "model.safetensors"),
        "{files:?}"
    );
    assert!(
        files.len() >= 3,
        "weights, optimizer and averages, and not only {}",
        files.len()
    );
    files.push((
        "metrics.csv".into(),
        std::fs::read(run(root).join("metrics.csv")).unwrap(),
    ));
    files
}

fn assert_same(expected: &[(String, Vec<u8>)], found: &[(String, Vec<u8>)], round: usize) {
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(expected), names(found));
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        assert!(
            expected == found,
            "round {round}: {name} differs{}",
            if name.ends_with("csv") {
                format!(
                    "\n{}\n---\n{}",
                    String::from_utf8_lossy(expected),
                    String::from_utf8_lossy(found)
                )
            } else {
                String::new()
            }
        );
    }
}

#[test]
fn killed_at_random_steps_and_resumed_is_byte_equal() {
    kill_and_resume(ONE, 20);
}

#[test]
fn several_ranks_are_byte_equal_too() {
    kill_and_resume(Ranks(2, "auto", "32-true"), 4);
    // A ring adds up in an order that depends on where a value lies in its bucket, which the checkpoint keeps.
    kill_and_resume(Ranks(3, "tcp", "32-true"), 4);
}

#[test]
fn mixed_precision_is_byte_equal_too() {
    for precision in ["bf16-mixed", "16-mixed"] {
        kill_and_resume(Ranks(1, "auto", precision), 3);
    }
    // The scale of the loss falls in the first updates, and is part of what goes on.
    kill_and_resume(Ranks(2, "auto", "16-mixed"), 2);
}

/// Kills a run, goes on, and kills it again, until it was killed often enough; at its end it is as one that was not killed.
fn kill_and_resume(ranks: Ranks, times: usize) {
    let folder = tempfile::tempdir().unwrap();
    let reference = folder.path().join("reference");
    let started = std::time::Instant::now();
    let (status, stderr) = finish(start(&reference, ranks, None));
    assert!(status.success(), "{stderr}");
    let whole = started.elapsed();
    let expected = files(&reference);

    let mut rng = rand::rng();
    let mut killed = 0;
    let mut round = 0;
    // Several kills in one run, then the next run, until there were enough.
    while killed < times {
        let root = folder.path().join(format!("round_{round}"));
        loop {
            let resume = last(&root).map(|_| "last");
            // Before the first checkpoint there is nothing to resume: such a run begins anew, in a folder of its own.
            if resume.is_none() {
                let _ = std::fs::remove_dir_all(&root);
            }
            let mut child = start(&root, ranks, resume);
            let patience = whole.mul_f64(rng.random_range(0.1..0.9));
            std::thread::sleep(patience.max(Duration::from_millis(20)));
            if child.try_wait().unwrap().is_none() && killed < times {
                child.kill().unwrap();
                killed += usize::from(last(&root).is_some());
                finish(child);
                continue;
            }
            let (status, stderr) = finish(child);
            assert!(status.success(), "round {round}: {stderr}");
            break;
        }
        assert_same(&expected, &files(&root), round);
        round += 1;
    }
}

/// The processes of ranks that train under a root.
fn ranks_of(root: &Path) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_train_classifier"));
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ranks = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let of_run = String::from_utf8_lossy(&line).contains(root.to_str().unwrap());
        of_run && std::fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == program)
    });
    ranks
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_run_whose_ranks_are_killed_is_restarted_and_ends_byte_equal() {
    let firebrand = Path::new(env!("CARGO_BIN_EXE_train_classifier")).with_file_name("firebrand");
    if !firebrand.exists() {
        println!(
            "skipped: {} is not built; `cargo test --workspace` builds it",
            firebrand.display()
        );
        return;
    }
    let two = Ranks(2, "auto", "32-true");
    let folder = tempfile::tempdir().unwrap();
    let reference = folder.path().join("reference");
    let (status, stderr) = finish(start(&reference, two, None));
    assert!(status.success(), "{stderr}");

    // Slow enough that three kills find it running.
    let root = folder.path().join("killed");
    let run = Command::new(firebrand)
        .args(["run", "--nproc-per-node", "2", "--max-restarts", "3", "--"])
        .args([
            env!("CARGO_BIN_EXE_train_classifier"),
            root.to_str().unwrap(),
            "2",
            "60",
        ])
        .env("RAYON_NUM_THREADS", "1")
        .env_remove("FIREBRAND_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rng = rand::rng();
    let mut killed: Vec<String> = Vec::new();
    let started = std::time::Instant::now();
    while killed.len() < 3 {
        assert!(started.elapsed() < Duration::from_secs(60), "{killed:?}");
        std::thread::sleep(Duration::from_millis(rng.random_range(100..400)));
        // A rank of this start: those before are gone.
        let ranks = ranks_of(&root);
        let victim = ranks
            .get(rng.random_range(0..2))
            .filter(|rank| !killed.contains(rank));
        if let Some(victim) = victim.filter(|_| ranks.len() == 2 && last(&root).is_some()) {
            let sent = Command::new("kill").args(["-KILL", victim]).status().unwrap();
            if sent.success() {
                killed.push(victim.clone());
            }
        }
    }
    let (status, stderr) = finish(run);
    assert!(status.success(), "{stderr}");
    assert_same(&files(&reference), &files(&root), 0);
    assert!(ranks_of(&root).is_empty(), "no rank is left behind");
}

#[test]
fn signals_save_and_leave_with_their_code() {
    let two = Ranks(2, "auto", "32-true");
    for (signal, code, ranks) in [("-TERM", 143, ONE), ("-INT", 130, ONE), ("-TERM", 143, two)] {
        let folder = tempfile::tempdir().unwrap();
        let reference = folder.path().join("reference");
        let (status, stderr) = finish(start(&reference, ranks, None));
        assert!(status.success(), "{stderr}");

        let root = folder.path().join("signalled");
        let child = start(&root, ranks, None);
        while last(&root).is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        let (status, stderr) = finish(child);
        assert_eq!(status.code(), Some(code), "{stderr}");
        assert!(stderr.contains("resume from"), "{stderr}");
        let (status, stderr) = finish(start(&root, ranks, Some("last")));
        assert!(status.success(), "{stderr}");
        assert_same(&files(&reference), &files(&root), 0);
    }
}
