use std::{fs, thread, time::Duration};

use super::{name, snapshot};
use crate::checkpoint::{
    BackgroundWriter, CheckpointDir, CheckpointError, Pointer, SaveOutcome, SaveRequest,
};

#[test]
fn checkpoints_are_written_in_order_with_what_depends_on_them() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    let mut writer = BackgroundWriter::new(dir.clone()).unwrap();
    let mut names = Vec::new();
    for step in 1..=6u64 {
        let mut request = SaveRequest::new(name(step), snapshot(step)).point(Pointer::Last);
        if step == 2 {
            request = request.point(Pointer::Best);
        }
        if step > 2 {
            request = request.remove(name(step - 2));
        }
        names.extend(
            writer
                .submit(request)
                .into_iter()
                .map(|outcome| outcome.result.unwrap().name),
        );
    }
    names.extend(
        writer
            .flush()
            .into_iter()
            .map(|outcome| outcome.result.unwrap().name),
    );
    assert_eq!(names, (1..=6).map(name).collect::<Vec<_>>());
    assert_eq!(writer.num_pending(), 0);
    // `best` protects step 2; the others but the last two are gone.
    let left: Vec<_> = dir
        .list()
        .unwrap()
        .into_iter()
        .map(|candidate| candidate.name)
        .collect();
    assert_eq!(left, [name(6), name(5), name(2)]);
    assert_eq!(dir.pointer(Pointer::Last).unwrap(), Some(name(6)));
}

#[test]
fn submitting_does_not_wait_for_the_write() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    let mut writer = BackgroundWriter::new(dir.clone()).unwrap();
    // While this draft holds the directory nothing can be written: two requests are taken in all the same.
    let draft = dir.draft("held").unwrap();
    assert!(writer.submit(SaveRequest::new(name(1), snapshot(1))).is_empty());
    while !writer.requests_taken() {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(writer.submit(SaveRequest::new(name(2), snapshot(2))).is_empty());
    assert_eq!(
        (
            writer.num_pending(),
            writer.poll().len(),
            dir.list().unwrap().len()
        ),
        (2, 0, 0)
    );
    // A third waits until the first is written.
    thread::scope(|scope| {
        let third = scope.spawn(|| writer.submit(SaveRequest::new(name(3), snapshot(3))).len());
        thread::sleep(Duration::from_millis(100));
        assert!(!third.is_finished());
        drop(draft);
        assert!(third.join().unwrap() <= 2);
    });
    writer
        .flush()
        .into_iter()
        .for_each(|outcome| drop(outcome.result.unwrap()));
    assert_eq!(dir.list().unwrap().len(), 3);
}

#[test]
fn an_error_is_reported_once_and_the_writer_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path().join("checkpoints"));
    let mut writer = BackgroundWriter::new(dir.clone()).unwrap();
    fs::write(dir.root(), "in the way").unwrap();
    let mut outcomes = writer.submit(SaveRequest::new(name(1), snapshot(1)));
    outcomes.extend(writer.flush());
    assert!(
        matches!(
            &*outcomes,
            [SaveOutcome {
                result: Err(CheckpointError::Io { .. }),
                ..
            }]
        ),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[0].name, name(1));
    assert!(writer.poll().is_empty() && writer.flush().is_empty());
    fs::remove_file(dir.root()).unwrap();
    let mut outcomes = writer.submit(SaveRequest::new(name(2), snapshot(2)));
    outcomes.extend(writer.flush());
    assert!(matches!(&*outcomes, [SaveOutcome { result: Ok(written), .. }] if written.name == name(2)));
}

#[test]
fn dropping_waits_for_what_was_submitted() {
    let temp = tempfile::tempdir().unwrap();
    let dir = CheckpointDir::new(temp.path());
    let mut writer = BackgroundWriter::new(dir.clone()).unwrap();
    for step in 1..=3 {
        assert!(
            writer
                .submit(SaveRequest::new(name(step), snapshot(step)))
                .iter()
                .all(|outcome| outcome.result.is_ok())
        );
    }
    // An error that nobody asks for is logged, not thrown.
    let _ = writer.submit(SaveRequest::new("..", snapshot(4)));
    drop(writer);
    assert_eq!(dir.list().unwrap().len(), 3);
}

#[test]
fn every_outcome_is_handed_out_once() {
    let temp = tempfile::tempdir().unwrap();
    let mut writer = BackgroundWriter::new(CheckpointDir::new(temp.path())).unwrap();
    // An unusable name fails about as fast as the caller gets to look.
    let mut num_outcomes = 0;
    for _ in 0..2000 {
        num_outcomes += writer.submit(SaveRequest::new("..", Default::default())).len();
    }
    num_outcomes += writer.flush().len();
    assert_eq!((num_outcomes, writer.num_pending()), (2000, 0));
}
