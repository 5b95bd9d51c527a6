use super::*;

fn entry(step: u64, value: f64) -> Entry {
    Entry {
        name: format!("s{step}"),
        global_step: step,
        value: Some(value),
        written: false,
    }
}

fn names(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

const TOP: Option<(TopK, Mode)> = Some((TopK::Best(2), Mode::Min));

#[test]
fn the_worst_makes_room() {
    let mut kept = Kept::default();
    assert_eq!(
        kept.add(entry(1, f64::NAN), TOP, true),
        Change {
            best: false,
            remove: vec![]
        }
    );
    assert_eq!(
        kept.add(entry(2, 3.0), TOP, true),
        Change {
            best: true,
            remove: vec![]
        }
    );
    assert!(!kept.admits(TopK::Best(2), Mode::Min, &entry(3, f64::NAN)));
    assert!(kept.admits(TopK::Best(2), Mode::Min, &entry(3, f64::INFINITY)));
    assert_eq!(
        kept.add(entry(3, 2.0), TOP, true),
        Change {
            best: true,
            remove: vec!["s1".into()]
        }
    );
    // Not among the best, but the last.
    assert_eq!(
        kept.add(entry(4, 9.0), None, true),
        Change {
            best: false,
            remove: vec![]
        }
    );
    assert_eq!(kept.add(entry(5, 9.0), None, true).remove, ["s4"]);
    assert_eq!(kept.add(entry(6, 2.5), TOP, true).remove, ["s2", "s5"]);
    assert_eq!(names(&kept.top), ["s3", "s6"]);
    assert!(!kept.admits(TopK::Best(2), Mode::Min, &entry(7, 2.5)));
    assert!(kept.admits(TopK::All, Mode::Min, &entry(7, 2.5)));
    assert!(!Kept::default().admits(TopK::Best(0), Mode::Min, &entry(7, 2.5)));
}

#[test]
fn a_failure_keeps_what_would_have_been_removed() {
    let mut kept = Kept::default();
    kept.add(entry(1, 3.0), TOP, true);
    kept.add(entry(2, 2.0), TOP, true);
    kept.saved("s1");
    kept.saved("s2");
    let before = kept.clone();
    assert_eq!(kept.add(entry(3, 1.0), TOP, true).remove, ["s1"]);
    kept.failed(Mode::Min, "s3");
    assert_eq!(kept, before);
}

#[test]
fn failures_of_several_that_are_on_their_way() {
    let top = Some((TopK::Best(1), Mode::Min));
    let mut kept = Kept::default();
    kept.add(entry(1, 3.0), top, true);
    kept.saved("s1");
    assert_eq!(kept.add(entry(2, 2.0), top, true).remove, ["s1"]);
    assert_eq!(kept.add(entry(3, 1.0), top, true).remove, ["s2"]);
    kept.failed(Mode::Min, "s2");
    assert_eq!(names(&kept.top), ["s3", "s1"]);
    kept.failed(Mode::Min, "s3");
    assert_eq!(
        (names(&kept.top), kept.last.as_ref().unwrap().name.as_str()),
        (vec!["s1"], "s1")
    );

    kept.add(entry(4, 2.0), top, true);
    kept.add(entry(5, 1.0), top, true);
    kept.failed(Mode::Min, "s4");
    kept.saved("s5");
    assert_eq!(kept.add(entry(6, 0.5), top, true).remove, ["s5", "s1"]);
}

#[test]
fn requests_of_one_step_are_one() {
    let mut kept = Kept::default();
    kept.add(entry(1, 2.0), TOP, true);
    kept.saved("s1");
    assert_eq!(kept.add(entry(2, 1.0), None, true).remove, Vec::<String>::new());
    let change = kept.add(entry(2, 1.0), Some((TopK::Best(1), Mode::Min)), true);
    assert_eq!(
        change,
        Change {
            best: true,
            remove: vec!["s1".into()]
        }
    );
    let mut written = kept.clone();
    written.saved("s2");
    assert!(written.pending.is_empty() && written.top[0].written && written.last.unwrap().written);
    kept.failed(Mode::Min, "s2");
    assert!(kept.pending.is_empty());
    assert_eq!(
        (names(&kept.top), kept.last.unwrap().name.as_str()),
        (vec!["s1"], "s1")
    );
}

#[test]
fn rewriting_a_name_never_removes_it() {
    let mut kept = Kept::default();
    kept.add(entry(1, 1.0), None, true);
    kept.saved("s1");
    assert_eq!(
        kept.add(entry(1, 1.0), TOP, false),
        Change {
            best: true,
            remove: vec![]
        }
    );
    kept.failed(Mode::Min, "s1");
    assert_eq!(
        (kept.top.len(), kept.last.as_ref().unwrap().name.as_str()),
        (0, "s1")
    );
}

#[test]
fn a_resumed_list_forgets_what_is_gone_and_removes_what_was_left() {
    let top = Some((TopK::Best(1), Mode::Min));
    let mut kept = Kept::default();
    kept.add(entry(1, 2.0), top, false);
    kept.saved("s1");
    kept.add(entry(2, 1.0), top, false);
    // The state inside s2, read after a crash between writing s2 and removing s1.
    let text = serde_json::to_string(&kept).unwrap();
    let mut read: Kept = serde_json::from_str(&text).unwrap();
    read.settle(|_| true);
    assert!(read.top[0].written);
    assert_eq!(read.add(entry(3, 0.5), top, false).remove, ["s2", "s1"]);

    let mut read: Kept = serde_json::from_str(&text).unwrap();
    read.settle(|name| name != "s1");
    assert_eq!(read.add(entry(3, 5.0), None, true).remove, Vec::<String>::new());
    read.settle(|_| false);
    assert_eq!(read, Kept::default());
}
