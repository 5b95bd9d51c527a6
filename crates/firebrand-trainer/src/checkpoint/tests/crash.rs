use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use super::{name, snapshot};
use crate::checkpoint::{Checkpoint, CheckpointDir, Pointer, Protection, Resume};

const DIRECTORY: &str = "FIREBRAND_TEST_CRASH_DIRECTORY";
const WRITER: &str = "checkpoint::tests::crash::writer_that_is_killed";

/// Runs as a child process of the test below and never ends by itself: it writes new checkpoints, replaces each one
/// with itself, moves the pointer, and removes old ones.
#[test]
fn writer_that_is_killed() {
    let Some(directory) = env::var_os(DIRECTORY) else {
        return;
    };
    let dir = CheckpointDir::new(directory);
    let first = dir
        .list()
        .unwrap()
        .first()
        .and_then(|newest| newest.global_step)
        .unwrap_or(0)
        + 1;
    for step in first.. {
        dir.write(&name(step), &snapshot(step)).unwrap();
        println!("committed {step}");
        std::io::stdout().flush().unwrap();
        dir.write(&name(step), &snapshot(step)).unwrap();
        dir.point(Pointer::Last, &name(step)).unwrap();
        if step > first + 2 {
            dir.remove(&name(step - 2), Protection::KeepPointedAt).unwrap();
        }
    }
}

#[test]
fn a_writer_killed_at_any_moment_leaves_whole_checkpoints() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    let (mut num_leftovers, mut last_committed) = (0, 0);
    for round in 0..24u64 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([WRITER, "--exact", "--nocapture"])
            .env(DIRECTORY, temp.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed = |line: String| {
            line.rsplit_once("committed ")
                .and_then(|(_, step)| step.parse::<u64>().ok())
        };
        let first = lines.by_ref().find_map(|line| committed(line.unwrap())).unwrap();
        thread::sleep(Duration::from_micros(round * 1711 % 23_000));
        child.kill().unwrap();
        child.wait().unwrap();
        last_committed = lines
            .filter_map(|line| committed(line.ok()?))
            .last()
            .unwrap_or(first);

        num_leftovers += hidden(temp.path()).len() - 1;
        for candidate in dir.list().unwrap() {
            let step = candidate.global_step.unwrap();
            let read = Checkpoint::open(&candidate.path).and_then(|checkpoint| checkpoint.snapshot());
            assert_eq!(read.unwrap(), snapshot(step), "round {round}: {candidate:?}");
        }
        // What `write` returned for is there, whatever was going on when the process died.
        let newest = dir
            .resolve(&Resume::Auto)
            .unwrap()
            .unwrap()
            .manifest()
            .global_step
            .unwrap();
        assert!(
            newest >= last_committed,
            "round {round}: {newest} < {last_committed}"
        );
        if dir.pointer(Pointer::Last).unwrap().is_some() {
            let last = dir.resolve(&Resume::Last).unwrap().unwrap();
            assert!(last.manifest().global_step.unwrap() <= newest);
        }
    }
    println!("{num_leftovers} hidden leftovers in 24 rounds, {last_committed} steps");
    assert!(
        num_leftovers > 0,
        "no round was cut off inside a write: the test proves nothing"
    );
    dir.write("end", &snapshot(1)).unwrap();
    assert_eq!(hidden(temp.path()), [".lock"], "the next write clears up");
}

fn hidden(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}
