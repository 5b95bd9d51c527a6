//! Data parallel training over processes: the same curve as on one device, bit-equal after a kill, and no hang whatever fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use firebrand_tests::runs::{assert_close, column, processes, succeeded};

/// The program, with everything it writes under a folder.
fn program(root: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train_ranks"));
    command
        .args(["--default-root-dir", root.to_str().unwrap(), "--progress", "off"])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .env("RAYON_NUM_THREADS", "1")
        .env("FIREBRAND_TIMEOUT", "60")
        .env_remove("FIREBRAND_LOG");
    command
}

fn run(root: &Path, arguments: &str) -> Output {
    program(root, arguments).output().unwrap()
}

/// `train_loss` by step.
fn curve(root: &Path) -> Vec<f64> {
    column(root, "train_loss")
}

#[test]
fn the_loss_curve_is_that_of_one_device() {
    for (precision, tolerance) in [("64-true", 1e-9), ("32-true", 1e-4)] {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("one");
        succeeded(&run(&one, &format!("--precision {precision}")));
        let expected = curve(&one);
        assert_eq!(expected.len(), 200);
        assert!(expected[199] < 0.5 * expected[0], "it learns: {expected:?}");
        for ranks in [2, 3, 4] {
            let several = folder.path().join(ranks.to_string());
            let arguments = format!("--precision {precision} --devices {ranks} --strategy ddp");
            succeeded(&run(&several, &arguments));
            assert_close(
                &expected,
                &curve(&several),
                tolerance,
                &format!("{ranks} ranks, {precision}"),
            );
        }
    }
}

/// Batch norm over ranks is batch norm over the whole batch: in training, where gradients flow through the statistics of all ranks, and
/// in evaluation, which takes the running ones.
#[test]
fn batch_norm_over_ranks_is_that_of_one_device_with_the_whole_batch() {
    for (precision, tolerance) in [("64-true", 1e-9), ("32-true", 1e-3)] {
        let folder = tempfile::tempdir().unwrap();
        let common = format!("--precision {precision} --max-steps 50 --batch-norm");
        let one = folder.path().join("one");
        succeeded(&run(&one, &common));
        let (losses, validation) = (curve(&one), column(&one, "val_loss"));
        assert_eq!((losses.len(), validation.len()), (50, 3));
        for ranks in [2, 3] {
            let several = folder.path().join(ranks.to_string());
            succeeded(&run(
                &several,
                &format!("{common} --devices {ranks} --strategy ddp"),
            ));
            let what = format!("{ranks} ranks, {precision}");
            assert_close(&losses, &curve(&several), tolerance, &what);
            assert_close(&validation, &column(&several, "val_loss"), tolerance, &what);
        }
    }
}

/// Ranks with streams of different lengths: the epoch ends for all with the shortest, or those that have a batch go on and the
/// update is their mean.
#[test]
fn uneven_inputs_stop_together_or_join() {
    let folder = tempfile::tempdir().unwrap();
    let common = "--precision 64-true --max-epochs 3 --limit-val-batches 0";
    for (name, lengths, accumulate) in [
        ("first", "5,3,4", 1),
        ("last", "2,3,5", 1),
        ("groups", "2,3,5", 2),
    ] {
        let root = |what: &str| folder.path().join(format!("{name}-{what}"));
        let arguments = format!("{common} --stream {lengths} --accumulate-grad-batches {accumulate}");
        succeeded(&run(&root("one"), &arguments));
        let join = format!("{arguments} --devices 3 --uneven-inputs join");
        succeeded(&run(&root("join"), &join));
        let updates = 3 * 5usize.div_ceil(accumulate);
        let (one, joined) = (curve(&root("one")), curve(&root("join")));
        assert_eq!((one.len(), joined.len()), (updates, updates));
        if accumulate == 1 {
            // Every batch has the same size, so that the mean over ranks is the mean over samples.
            assert_close(&one, &joined, 1e-9, name);
        }
        succeeded(&run(&root("stop"), &format!("{arguments} --devices 3")));
        let shortest = if name == "first" { 3usize } else { 2 };
        assert_eq!(curve(&root("stop")).len(), 3 * shortest.div_ceil(accumulate));
    }
}

/// A gradient that is not finite on one rank is left out on all, and the scale of the loss falls on all.
#[test]
fn an_overflow_on_one_rank_is_skipped_by_all() {
    let folder = tempfile::tempdir().unwrap();
    let common = "--precision 16-mixed --devices 3 --max-steps 20";
    let (fine, overflown) = (folder.path().join("fine"), folder.path().join("overflown"));
    succeeded(&run(&fine, common));
    succeeded(&run(&overflown, &format!("{common} --fault inf --fault-rank 2")));
    let (before, after) = (column(&fine, "loss_scale"), column(&overflown, "loss_scale"));
    assert_eq!((before.len(), after.len()), (20, 20));
    for (step, (before, after)) in before.iter().zip(&after).enumerate() {
        let expected = if step < 5 { *before } else { before / 2.0 };
        assert_eq!(*after, expected, "step {step}: {before:?} {after:?}");
    }
    assert!(curve(&overflown).iter().all(|loss| loss.is_finite()));
    // A checkpoint of three ranks whose scale fell goes on.
    succeeded(&run(
        &overflown,
        "--precision 16-mixed --devices 3 --max-steps 25 --resume last",
    ));
    assert_eq!(column(&overflown, "loss_scale")[20..], [after[19]; 5]);
}

/// What is computed again in the backward pass is what was computed before.
#[test]
fn gradient_checkpointing_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    for precision in ["32-true", "bf16-mixed"] {
        for ranks in [1, 2] {
            let root = |what: &str| folder.path().join(format!("{precision}-{ranks}-{what}"));
            let common = format!("--precision {precision} --devices {ranks} --max-steps 30");
            succeeded(&run(&root("kept"), &common));
            succeeded(&run(
                &root("again"),
                &format!("{common} --gradient-checkpointing"),
            ));
            assert_eq!(
                curve(&root("kept")),
                curve(&root("again")),
                "{precision}, {ranks} ranks"
            );
        }
    }
}

#[test]
fn accumulation_over_ranks_is_one_large_batch() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let common = "--precision 64-true --max-steps 40 --global-batch 12 --accumulate-grad-batches 2";
    succeeded(&run(&one, common));
    succeeded(&run(&two, &format!("{common} --devices 2")));
    assert_close(&curve(&one), &curve(&two), 1e-9, "accumulation");
}

#[test]
fn evaluation_counts_every_sample_once_and_predictions_come_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let lines = |ranks: usize| -> Vec<String> {
        let output = run(
            &folder.path().join(ranks.to_string()),
            &format!("--precision 64-true --max-steps 3 --evaluate --devices {ranks}"),
        );
        succeeded(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| line.contains("val_mse\","));
        lines
            .map(|line| line.trim_start_matches(|c| c != '[').to_owned())
            .collect()
    };
    let order: Vec<usize> = (0..23).collect();
    let expected = format!("{order:?}");
    let numbers = |line: &str| -> Vec<f64> {
        line.split(&['(', ')', ',', '[', ']'][..])
            .filter_map(|word| word.trim().parse().ok())
            .collect()
    };
    let one = lines(1);
    assert_eq!(one.len(), 1);
    for ranks in [2, 3] {
        let found = lines(ranks);
        assert_eq!(found.len(), ranks, "{found:?}");
        for line in &found {
            let line = line
                .split_once("rank ")
                .map_or(line.as_str(), |(_, rest)| rest.split_once("] ").unwrap().1);
            assert!(line.ends_with(&expected), "{line}");
            assert_close(&numbers(&one[0]), &numbers(line), 1e-9, line);
        }
    }
}

#[test]
fn a_checkpoint_of_two_ranks_goes_on_on_others_and_no_sample_is_lost() {
    for ranks in [1, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let (root, samples) = (folder.path().join("runs"), folder.path().join("samples"));
        std::fs::create_dir(&samples).unwrap();
        let common = format!("--samples {}", samples.to_str().unwrap());
        succeeded(&run(&root, &format!("{common} --devices 2 --max-steps 7")));
        // The second time on as many ranks: the global batch is still that of the first run.
        for steps in [11, 16] {
            succeeded(&run(
                &root,
                &format!("{common} --devices {ranks} --max-steps {steps} --resume last"),
            ));
        }
        let mut seen = BTreeMap::<u64, usize>::new();
        let mut batches = BTreeMap::<u64, usize>::new();
        for file in std::fs::read_dir(&samples).unwrap().flatten() {
            for line in std::fs::read_to_string(file.path()).unwrap().lines() {
                let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
                let (epoch, step) = (numbers.next().unwrap(), numbers.next().unwrap());
                assert_eq!(epoch, 0);
                for index in numbers {
                    *seen.entry(index).or_default() += 1;
                    *batches.entry(step).or_default() += 1;
                }
            }
        }
        assert_eq!(seen.len(), 192, "{ranks} ranks");
        assert!(seen.values().all(|count| *count == 1), "{ranks} ranks: {seen:?}");
        assert!(
            batches.values().all(|count| *count == 12),
            "{ranks} ranks: {batches:?}"
        );
    }
}

/// Runs a program that goes wrong; returns what it said and how long it took.
fn failing(arguments: &str) -> (Output, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let mut command = program(folder.path(), arguments);
    // A rank that is stopped is found by its silence.
    command.env("FIREBRAND_TIMEOUT", "6");
    let output = command.output().unwrap();
    (output, start.elapsed())
}

#[test]
fn a_rank_that_fails_ends_all_and_is_named() {
    for (fault, rank, cause) in [
        ("error", 1, "the disk of the dataset is gone"),
        ("error", 0, "the disk of the dataset is gone"),
        ("panic", 1, "an index is out of bounds"),
        ("kill", 1, "signal 9"),
        ("stop", 2, "rank 2"),
        ("nan", 1, "NaN"),
        ("unused", 1, "spare"),
        ("validation", 2, "the validation data is gone"),
    ] {
        let (output, took) = failing(&format!("--devices 3 --fault {fault} --fault-rank {rank}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{fault}: {said}");
        assert!(
            took < Duration::from_secs(25),
            "{fault} on rank {rank} took {took:?}: {said}"
        );
        assert!(said.contains(cause), "{fault} on rank {rank}: {said}");
        if rank != 0 && !matches!(fault, "nan" | "unused") {
            assert!(said.contains(&format!("rank {rank}")), "{fault}: {said}");
        }
    }
}

/// A rank that dies while the others wait for its part of a batch norm, in the forward pass and in the backward pass.
#[test]
fn a_rank_that_is_killed_in_a_batch_norm_is_named() {
    for (fault, more) in [
        ("kill", ""),
        ("backward", ""),
        ("backward", "--detect-anomaly true"),
        ("backward", "--accumulate-grad-batches 2"),
    ] {
        let (output, took) = failing(&format!("--devices 3 --batch-norm --fault {fault} {more}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{fault} {more}: {said}");
        assert!(
            took < Duration::from_secs(25),
            "{fault} {more} took {took:?}: {said}"
        );
        for part in ["rank 1", "signal 9"] {
            assert!(said.contains(part), "{fault} {more}: {said}");
        }
        assert!(!said.contains("not finite"), "{fault} {more}: {said}");
    }
}

#[test]
fn a_slow_rank_survives() {
    let folder = tempfile::tempdir().unwrap();
    succeeded(&run(folder.path(), "--devices 2 --fault slow --max-steps 8"));
}

#[test]
fn data_that_takes_longer_than_the_deadline_to_prepare_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(folder.path(), "--devices 2 --max-steps 3 --prepare 8");
    succeeded(&command.env("FIREBRAND_TIMEOUT", "5").output().unwrap());
}

#[test]
fn what_other_ranks_do_after_the_fit_is_waited_for_and_their_failure_is_that_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), "--devices 3 --max-steps 3 --after 1");
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.matches("it is done").count(), 2, "{said}");
    let output = run(
        folder.path(),
        "--devices 2 --max-steps 3 --after 0.5 --after-code 7",
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("rank 1 did not end well") && said.contains("exit code 7"),
        "{said}"
    );
}

#[test]
fn ranks_that_are_waited_for_end_with_a_signal() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = program(folder.path(), "--devices 2 --max-steps 3 --after 60")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("something to do")));
        // The first rank may still be about to be done.
        std::thread::sleep(Duration::from_secs(1));
        let id = child.id().to_string();
        Command::new("kill").args([signal, &id]).status().unwrap();
        let start = Instant::now();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}

#[test]
fn threads_train_as_processes_do() {
    let folder = tempfile::tempdir().unwrap();
    let root = |name: &str| folder.path().join(name);
    let common = "--precision 64-true --accumulate-grad-batches 2 --max-steps 60 --devices 2 --launcher";
    for launcher in ["process", "thread"] {
        succeeded(&run(&root(launcher), &format!("{common} {launcher}")));
    }
    assert_close(
        &curve(&root("process")),
        &curve(&root("thread")),
        1e-12,
        "threads and processes",
    );
    let weights = |name: &str| {
        let checkpoints = root(name).join("ranks/version_0/checkpoints");
        let last = std::fs::read_to_string(checkpoints.join("last")).unwrap();
        assert!(last.contains("step=000060"), "{last}");
        std::fs::read(checkpoints.join(last.trim()).join("model.safetensors")).unwrap()
    };
    assert_eq!(
        weights("process"),
        weights("thread"),
        "the same sums in the same order"
    );
    // What was saved by threads goes on with processes.
    succeeded(&run(
        &root("thread"),
        "--precision 64-true --accumulate-grad-batches 2 --max-steps 70 --devices 2 --resume last",
    ));
}

#[test]
fn a_thread_that_fails_ends_all_with_its_cause() {
    for (fault, rank, cause) in [
        ("error", 1, "the disk of the dataset is gone"),
        ("error", 0, "the disk of the dataset is gone"),
        ("panic", 2, "it panicked: an index is out of bounds"),
        ("nan", 1, "NaN"),
        ("unused", 1, "spare"),
        ("validation", 2, "the validation data is gone"),
    ] {
        let arguments = format!("--devices 3 --launcher thread --fault {fault} --fault-rank {rank}");
        let (output, took) = failing(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{fault}: {said}");
        assert!(took < Duration::from_secs(25), "{fault} took {took:?}: {said}");
        assert!(said.contains(cause), "{fault} on rank {rank}: {said}");
        if rank != 0 && !matches!(fault, "nan" | "unused") {
            let error = said.lines().find(|line| line.starts_with("error: ")).unwrap();
            assert!(error.contains(&format!("rank {rank} failed")), "{fault}: {said}");
        }
    }
    // A panic of the first rank is one of the program.
    let (output, took) = failing("--devices 2 --launcher thread --fault panic --fault-rank 0");
    assert_eq!(output.status.code(), Some(101));
    assert!(took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn a_thread_that_does_not_come_back_is_left_behind_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(folder.path(), "--devices 2 --launcher thread --fault hang");
    let start = Instant::now();
    let output = command.env("FIREBRAND_TIMEOUT", "3").output().unwrap();
    let (took, said) = (start.elapsed(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(took < Duration::from_secs(20), "{took:?}: {said}");
    assert!(
        said.contains("still waiting for rank 1") && said.contains("the ranks [1] do not come back"),
        "{said}"
    );
}

#[test]
fn a_signal_stops_all_threads_at_one_update_and_the_run_goes_on_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let child = program(folder.path(), "--devices 2 --launcher thread --max-steps 1000000")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = folder.path().join("ranks/version_0/checkpoints/last");
    let start = Instant::now();
    while !metrics.exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "it saves");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{said}");
    let (_, step) = said.split_once("at global step ").unwrap();
    let step: u64 = step.split(';').next().unwrap().parse().unwrap();
    let arguments = format!(
        "--devices 2 --launcher thread --resume last --max-steps {}",
        step + 5
    );
    succeeded(&run(folder.path(), &arguments));
}

#[test]
fn ranks_end_when_the_first_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = program(
        folder.path(),
        "--devices 3 --max-steps 1000000 --fault slow --fault-rank 0",
    )
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let alive = || processes(folder.path(), None).len();
    let start = Instant::now();
    while alive() < 3 {
        assert!(start.elapsed() < Duration::from_secs(20), "three ranks start");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while alive() > 0 {
        assert!(
            killed.elapsed() < Duration::from_secs(5),
            "no rank is left behind"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
