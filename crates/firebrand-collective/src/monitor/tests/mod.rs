//! What all ranks of a run hear of each other. Here ranks are threads; in `processes` they are processes.

#![allow(clippy::unwrap_used)]

mod messages;
mod processes;
mod strangers;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Monitor, MonitorContext};
use crate::{Error, Health, MemoryStore, Store};

const SECRET: &[u8] = b"the secret of a test";
const SOON: Duration = Duration::from_secs(10);
/// How long a failure may take to be known everywhere.
const KNOWN: Duration = Duration::from_secs(2);

fn context(store: &Arc<dyn Store>, global_rank: usize, world_size: usize) -> MonitorContext {
    MonitorContext {
        store: Arc::clone(store),
        global_rank,
        world_size,
        address: Ipv4Addr::LOCALHOST.into(),
        secret: SECRET.into(),
        health: Arc::new(Health::new()),
        heartbeat: Duration::from_millis(100),
        silence: SOON,
        timeout: SOON,
    }
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// Starts all ranks at once.
fn start(store: &Arc<dyn Store>, world_size: usize) -> Vec<(Monitor, Arc<Health>)> {
    let threads: Vec<_> = (0..world_size)
        .map(|rank| {
            let context = context(store, rank, world_size);
            thread::spawn(move || {
                let health = Arc::clone(&context.health);
                (Monitor::start(context).unwrap(), health)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The failure that a rank hears of.
fn failure(health: &Health) -> String {
    let start = Instant::now();
    loop {
        if let Err(failure) = health.check() {
            assert!(start.elapsed() < KNOWN, "{:?}", start.elapsed());
            return failure.to_string();
        }
        assert!(start.elapsed() < SOON, "nothing was heard");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn all_leave_cleanly_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let ranks = start(&store(), 3);
        for rank in order {
            let begin = Instant::now();
            ranks[rank].0.leave().unwrap();
            assert!(
                begin.elapsed() < Duration::from_millis(900),
                "{:?}",
                begin.elapsed()
            );
            // The second time there is nothing to do.
            ranks[rank].0.leave().unwrap();
            thread::sleep(Duration::from_millis(300));
        }
        for (monitor, health) in ranks {
            drop(monitor);
            health.check().unwrap();
        }
    }
}

#[test]
fn one_process_alone_needs_nobody() {
    let context = context(&store(), 0, 1);
    let health = Arc::clone(&context.health);
    let monitor = Monitor::start(context).unwrap();
    monitor.fail("it is lonely");
    assert!(monitor.global_failure().unwrap().to_string().contains("lonely"));
    assert!(monitor.leave().is_err());
    assert!(failure(&health).contains("rank 0"));
}

#[test]
fn a_failure_is_told_to_all_with_the_rank_where_it_began() {
    for failing in [2, 0] {
        let ranks = start(&store(), 4);
        let begin = Instant::now();
        ranks[failing].0.fail("out of memory in step 7");
        assert!(
            begin.elapsed() < Duration::from_millis(900),
            "{:?}",
            begin.elapsed()
        );
        for (monitor, health) in &ranks {
            let text = failure(health);
            assert_eq!(text, format!("rank {failing} failed: out of memory in step 7"));
            // What follows from it does not matter any more.
            monitor.fail("the collective ended");
            assert_eq!(monitor.global_failure().unwrap().to_string(), text);
            assert_eq!(monitor.leave().unwrap_err().to_string(), text);
        }
    }
}

#[test]
fn a_failure_is_told_with_what_the_rank_was_doing() {
    for failing in [2, 0] {
        let ranks = start(&store(), 3);
        ranks[failing].1.set_phase("starting");
        ranks[failing].1.set_phase("validating");
        ranks[1].1.set_phase("training");
        ranks[failing].0.fail("out of memory");
        let others = (0..3).filter(|rank| *rank != failing);
        for rank in others {
            let text = failure(&ranks[rank].1);
            assert_eq!(
                text,
                format!("rank {failing} failed: out of memory; it was validating")
            );
        }
    }
}

#[test]
fn what_fails_elsewhere_in_a_process_is_told_too() {
    for failing in [1, 0] {
        let ranks = start(&store(), 3);
        ranks[failing].1.fail(Error::Timeout {
            operation: "seq 41 all_reduce sum f32[200]".to_owned(),
            waiting_for: vec![2],
            after: Duration::from_secs(5),
        });
        for (rank, (_, health)) in ranks.iter().enumerate() {
            let text = failure(health);
            assert!(text.contains("seq 41 all_reduce"), "{text}");
            assert!(
                rank == failing
                    || text.contains("rank 2 failed")
                        && text.contains(&format!("rank {failing} was still waiting")),
                "{text}"
            );
        }
    }
}

fn closed(rank: usize) -> Error {
    Error::RankFailed {
        rank,
        cause: "it closed its connection".to_owned(),
    }
}

#[test]
fn the_rank_where_it_began_speaks_before_what_others_say_of_it() {
    for observer in [1, 0] {
        let ranks = start(&store(), 4);
        ranks[observer].1.fail(closed(3));
        thread::sleep(Duration::from_millis(50));
        ranks[3].0.fail("loss is nan");
        for (rank, (_, health)) in ranks.iter().enumerate() {
            let expected = match rank == observer {
                true => "rank 3 failed: it closed its connection",
                false => "rank 3 failed: loss is nan",
            };
            assert_eq!(failure(health), expected);
        }
    }
}

#[test]
fn a_death_that_follows_from_another_failure_is_not_what_is_told() {
    let ranks = start(&store(), 4);
    // Rank 3 ended since rank 2 failed; rank 1 sees that first.
    ranks[1].1.fail(closed(3));
    ranks[2].0.fail("loss is nan");
    for rank in [0, 2, 3] {
        assert_eq!(failure(&ranks[rank].1), "rank 2 failed: loss is nan");
    }
}

#[test]
fn what_one_rank_says_of_another_counts_after_a_while() {
    let ranks = start(&store(), 3);
    ranks[1].1.fail(closed(2));
    thread::sleep(Duration::from_millis(50));
    assert!(ranks[0].1.check().is_ok());
    for rank in [0, 2] {
        assert_eq!(failure(&ranks[rank].1), "rank 2 failed: it closed its connection");
    }
}

/// Rank 3 saw rank 2 leave, and says so first; rank 2 left because of rank 1.
#[test]
fn who_is_suspected_and_speaks_of_another_one_is_believed() {
    for last_word in [None, Some("loss is nan")] {
        let ranks = start(&store(), 4);
        ranks[3].1.fail(closed(2));
        thread::sleep(Duration::from_millis(30));
        ranks[2].1.fail(closed(1));
        if let Some(cause) = last_word {
            thread::sleep(Duration::from_millis(30));
            ranks[1].0.fail(cause);
        }
        let cause = last_word.unwrap_or("it closed its connection");
        for rank in [0, 1] {
            assert_eq!(failure(&ranks[rank].1), format!("rank 1 failed: {cause}"));
        }
    }
}

#[test]
fn who_ends_without_leaving_has_failed() {
    for failing in [1, 0] {
        let mut ranks = start(&store(), 3);
        drop(ranks.remove(failing).0);
        for (_, health) in &ranks {
            let text = failure(health);
            assert!(
                text.contains(&format!("rank {failing} failed: it ended without leaving")),
                "{text}"
            );
        }
        let mut ranks = start(&store(), 3);
        let (monitor, _) = ranks.remove(failing);
        let panicked = thread::spawn(move || {
            let _monitor = monitor;
            panic!("a panic of a test");
        });
        assert!(panicked.join().is_err());
        for (_, health) in &ranks {
            let text = failure(health);
            assert!(
                text.contains(&format!("rank {failing} failed: it panicked")),
                "{text}"
            );
        }
    }
}

#[test]
fn causes_are_capped_and_ranks_are_checked() {
    let ranks = start(&store(), 2);
    ranks[1].1.fail(closed(7));
    let text = failure(&ranks[0].1);
    assert!(text.contains("rank 1 failed: rank 7 failed: it closed"), "{text}");
    drop(ranks);

    let ranks = start(&store(), 2);
    ranks[1].0.fail(&"ü".repeat(100_000));
    let text = failure(&ranks[0].1);
    assert!(
        text.starts_with("rank 1 failed: üü") && text.len() < 9000,
        "{}",
        text.len()
    );
}
