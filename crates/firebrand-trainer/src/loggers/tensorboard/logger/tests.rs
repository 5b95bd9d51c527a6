use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tfrecord::protobuf::Event;
use tfrecord::protobuf::event::What;
use tfrecord::{EventIter, RecordReaderConfig};

use super::*;

fn event_files(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

fn events(path: &Path) -> Vec<Event> {
    EventIter::open(path, RecordReaderConfig::default())
        .unwrap()
        .map(|event| event.unwrap())
        .collect()
}

/// Step, tag and value of every scalar.
fn scalars(events: &[Event]) -> Vec<(i64, &str, f32)> {
    let mut found = Vec::new();
    for event in events {
        let Some(What::Summary(summary)) = &event.what else {
            continue;
        };
        for value in &summary.value {
            if let Some(value::Value::SimpleValue(scalar)) = value.value {
                found.push((event.step, value.tag.as_str(), scalar));
            }
        }
    }
    found
}

fn log(logger: &mut TensorBoardLogger, step: u64, values: &[(&str, f64)]) {
    let values: Vec<_> = values
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    logger
        .log_metrics(&LogRow {
            step,
            epoch: step / 2,
            values: &values,
        })
        .unwrap();
}

#[test]
fn what_was_logged_reads_back() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    let before = unix_time();
    let mut logger = TensorBoardLogger::new();
    logger.begin(&run, None).unwrap();
    logger.log_hparams(&"lr = 0.5".parse().unwrap()).unwrap();
    log(&mut logger, 1, &[("train_loss", 0.75), ("train_loss", 0.5)]);
    log(&mut logger, 1, &[("val_loss", f64::NAN)]);
    logger.log_histogram(2, "weights", &[1.0, 2.0, f64::NAN]).unwrap();
    logger.log_histogram(2, "nothing", &[]).unwrap();
    logger.finish().unwrap();
    assert!(logger.flush().is_err());

    let paths = event_files(run.path());
    assert_eq!(paths.len(), 1);
    let name = paths[0].file_name().unwrap().to_str().unwrap();
    let parts: Vec<_> = name.splitn(5, '.').collect();
    assert_eq!(parts[..3], ["events", "out", "tfevents"]);
    assert!(
        parts[3].parse::<u64>().unwrap() >= before as u64 && !parts[4].is_empty(),
        "{name}"
    );

    let events = events(&paths[0]);
    assert_eq!(
        events[0].what,
        Some(What::FileVersion("brain.Event:2".to_owned()))
    );
    assert!(
        events
            .iter()
            .all(|event| (before..=unix_time()).contains(&event.wall_time))
    );
    let found = scalars(&events);
    assert_eq!(found[..2], [(1, "train_loss", 0.5), (1, "epoch", 0.0)]);
    assert!(found.len() == 3 && found[2].1 == "val_loss" && found[2].2.is_nan());
    let Some(What::Summary(last)) = &events.last().unwrap().what else {
        panic!("no histogram")
    };
    let Some(value::Value::Histo(histogram)) = &last.value[0].value else {
        panic!("no histogram")
    };
    assert_eq!((histogram.num, histogram.sum), (2.0, 3.0));
}

#[test]
fn a_resume_cuts_later_events_and_a_torn_record_and_keeps_the_rest_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    let mut logger = TensorBoardLogger::new();
    logger.begin(&run, None).unwrap();
    (1..=4).for_each(|step| log(&mut logger, step, &[("loss", step as f64)]));
    drop(logger);
    let first = event_files(run.path()).remove(0);
    let untouched = events(&first);

    for torn in [&b"\x20\0\0\0\0\0\0\0\x11\x22"[..], b"\0", &[0; 64]] {
        fs::OpenOptions::new()
            .append(true)
            .open(&first)
            .unwrap()
            .write_all(torn)
            .unwrap();
        TensorBoardLogger::new().begin(&run, Some(4)).unwrap();
        assert_eq!(events(&first), untouched, "{torn:?}");
    }

    let mut logger = TensorBoardLogger::new();
    logger.begin(&run, Some(2)).unwrap();
    (3..=5).for_each(|step| log(&mut logger, step, &[("loss", 10.0 * step as f64)]));
    logger.finish().unwrap();

    let paths = event_files(run.path());
    let kept = events(&paths[0]);
    assert_eq!(kept[..], untouched[..3]);
    let restart = &events(paths.last().unwrap())[1];
    assert!(matches!(&restart.what, Some(What::SessionLog(log)) if log.status == 1) && restart.step == 3);
    let all: Vec<Event> = paths.iter().flat_map(|path| events(path)).collect();
    let losses: Vec<_> = scalars(&all)
        .into_iter()
        .filter(|(_, tag, _)| *tag == "loss")
        .collect();
    assert_eq!(
        losses,
        [
            (1, "loss", 1.0),
            (2, "loss", 2.0),
            (3, "loss", 30.0),
            (4, "loss", 40.0),
            (5, "loss", 50.0)
        ]
    );
}

#[test]
fn a_record_that_lies_about_its_length_takes_no_memory() {
    let root = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(root.path(), "run").unwrap();
    TensorBoardLogger::new().begin(&run, None).unwrap();
    let path = event_files(run.path()).remove(0);
    let untouched = events(&path);
    // The length is 2^62, and its checksum is right.
    let length = (1_u64 << 62).to_le_bytes();
    let mut lie = Vec::new();
    tfrecord::io::sync::try_write_record(&mut lie, length.to_vec()).unwrap();
    let checksum = &lie[20..];
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[&length[..], checksum, &[0; 100]].concat())
        .unwrap();

    TensorBoardLogger::new().begin(&run, None).unwrap();
    assert_eq!(events(&path), untouched);
}
