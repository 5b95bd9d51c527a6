//! What every [`Store`] does, whatever is behind it.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{MAX_KEY, MAX_VALUE, MemoryStore, PrefixStore, Store};
use crate::Error;

const SOON: Duration = Duration::from_secs(10);

/// Checks one store, which is empty.
pub(super) fn check(store: &Arc<dyn Store>) {
    values(store.as_ref());
    counters(store.as_ref());
    compare_and_set(store.as_ref());
    deadlines(store.as_ref());
    sizes(store.as_ref());
    threads_wait_for_each_other(store);
}

fn values(store: &dyn Store) {
    assert!(!store.check(&["a"]).unwrap());
    assert!(store.check(&[]).unwrap());
    store.set("a", b"1").unwrap();
    store.set("b", b"").unwrap();
    store.set("ü/ñ", &[0, 255, 10, 13]).unwrap();
    assert_eq!(store.get("a", SOON).unwrap(), b"1");
    assert_eq!(store.get("b", SOON).unwrap(), b"");
    assert_eq!(store.get("ü/ñ", SOON).unwrap(), [0, 255, 10, 13]);
    assert!(store.check(&["a", "b"]).unwrap());
    assert!(!store.check(&["a", "c"]).unwrap());
    store.wait(&["a", "b", "ü/ñ"], SOON).unwrap();
    store.set("a", b"2").unwrap();
    assert_eq!(store.get("a", SOON).unwrap(), b"2");
    assert!(store.delete("a").unwrap());
    assert!(!store.delete("a").unwrap());
    assert!(!store.check(&["a"]).unwrap());
}

fn counters(store: &dyn Store) {
    assert_eq!(store.add("count", 3).unwrap(), 3);
    assert_eq!(store.add("count", -5).unwrap(), -2);
    assert_eq!(store.get("count", SOON).unwrap(), b"-2");
    store.set("count", b"40").unwrap();
    assert_eq!(store.add("count", 2).unwrap(), 42);
    assert!(store.delete("count").unwrap());
}

fn compare_and_set(store: &dyn Store) {
    assert_eq!(store.compare_set("c", b"x", b"y").unwrap(), b"");
    assert_eq!(store.compare_set("c", b"x", b"x").unwrap(), b"");
    assert!(!store.check(&["c"]).unwrap());
    assert_eq!(store.compare_set("c", b"", b"first").unwrap(), b"first");
    assert_eq!(store.compare_set("c", b"", b"second").unwrap(), b"first");
    assert_eq!(store.compare_set("c", b"first", b"second").unwrap(), b"second");
    assert_eq!(store.compare_set("c", b"second", b"second").unwrap(), b"second");
    assert_eq!(store.get("c", SOON).unwrap(), b"second");
    assert!(store.delete("c").unwrap());
}

/// A deadline ends the wait with the key that is missing, and leaves the store as good as before.
fn deadlines(store: &dyn Store) {
    store.set("there", b"1").unwrap();
    let start = Instant::now();
    let short = Duration::from_millis(80);
    let errors = [
        store.get("missing", short).unwrap_err(),
        store.wait(&["there", "missing"], short).unwrap_err(),
        store.get("missing", Duration::ZERO).unwrap_err(),
    ];
    let elapsed = start.elapsed();
    assert!(elapsed >= 2 * short && elapsed < SOON, "{elapsed:?}");
    for error in errors {
        assert!(
            matches!(&error, Error::Missing { key, .. } if key.ends_with("missing")),
            "{error}"
        );
    }
    assert_eq!(store.get("there", Duration::ZERO).unwrap(), b"1");
    store.wait(&["there"], Duration::MAX).unwrap();
}

fn sizes(store: &dyn Store) {
    let value = vec![7; MAX_VALUE];
    // Room for the prefixes that some stores put before a key.
    let key = "k".repeat(MAX_KEY - 64);
    store.set(&key, &value).unwrap();
    assert_eq!(store.get(&key, SOON).unwrap(), value);
    assert_eq!(store.compare_set(&key, &value, &value).unwrap(), value);
    let error = store.set("k", &vec![7; MAX_VALUE + 1]).unwrap_err().to_string();
    assert!(error.contains("1048577"), "{error}");
    let error = store.set(&"k".repeat(MAX_KEY + 1), b"").unwrap_err().to_string();
    assert!(error.contains("1024"), "{error}");
    let many: Vec<String> = (0..1500).map(|i| format!("many/{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (last, rest) = many.split_last().unwrap();
    for key in rest {
        store.set(key, b"").unwrap();
    }
    assert!(store.check(rest).unwrap() && !store.check(&many).unwrap());
    store.set(last, b"").unwrap();
    store.wait(&many, SOON).unwrap();
}

/// Many threads wait, on the same store, for what others of them set later.
fn threads_wait_for_each_other(store: &Arc<dyn Store>) {
    const THREADS: usize = 6;
    let threads: Vec<_> = (0..THREADS)
        .map(|rank| {
            let store = Arc::clone(store);
            thread::spawn(move || {
                for round in 0..5 {
                    // Each waits for the one before it; the first sets its value last, when all others wait already.
                    let own = format!("chain/{round}/{rank}");
                    if rank > 0 {
                        let before = format!("chain/{round}/{}", rank - 1);
                        assert_eq!(store.get(&before, SOON).unwrap(), [rank as u8 - 1]);
                    } else {
                        thread::sleep(Duration::from_millis(10));
                    }
                    store.set(&own, &[rank as u8]).unwrap();
                    let all: Vec<String> = (0..THREADS)
                        .map(|other| format!("chain/{round}/{other}"))
                        .collect();
                    let all: Vec<&str> = all.iter().map(String::as_str).collect();
                    store.wait(&all, SOON).unwrap();
                    store.add("sum", rank as i64).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(store.get("sum", SOON).unwrap(), b"75");
}

#[test]
fn memory_and_prefix() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    check(&store);
    let store: Arc<dyn Store> = Arc::new(PrefixStore::new(store, "part"));
    check(&store);
}

#[test]
fn a_store_with_limits_is_full_and_has_room_again_after_a_delete() {
    let store = MemoryStore::with_limits(2, 10);
    store.set("a", b"1234").unwrap();
    store.set("b", b"").unwrap();
    for refused in [
        store.set("c", b""),
        store.set("b", b"12345"),
        store.add("c", 1).map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("full") && error.contains("2 keys and 10 bytes"),
            "{error}"
        );
    }
    assert!(store.compare_set("c", b"", b"1").is_err());
    store.set("b", b"1234").unwrap();
    assert!(store.delete("a").unwrap());
    store.set("c", b"1234").unwrap();
}
