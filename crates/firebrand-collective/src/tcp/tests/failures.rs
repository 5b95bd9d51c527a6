use std::time::Instant;

use super::*;
use crate::{Monitor, MonitorContext};

const SHORT: Duration = Duration::from_millis(400);

fn error_of(outcome: Result<Vec<f32>>) -> Error {
    outcome.unwrap_err()
}

#[test]
fn different_calls_are_named_by_both_neighbours() {
    let results = as_ranks(contexts(2), |context| {
        let len = if context.rank == 0 { 200 } else { 100 };
        let mut rank = Rank::connect(context).unwrap();
        rank.barrier().unwrap();
        let error = error_of(rank.sum(&vec![1.0; len]));
        // It stays broken.
        assert_eq!(rank.barrier().unwrap_err().to_string(), error.to_string());
        error
    });
    for error in results {
        assert!(matches!(error, Error::Mismatch(_)), "{error}");
        let text = "seq 1: rank 20 all_reduce sum f32[200], rank 21 all_reduce sum f32[100]";
        assert!(error.to_string().contains(text), "{error}");
    }
}

/// Whatever the patterns of the two operations are, the difference is found at once, and not at the deadline.
#[test]
fn any_two_operations_that_differ_are_found() {
    let operations = [
        (Operation::AllReduce(ReduceOp::Sum), 10),
        (Operation::AllReduce(ReduceOp::Max), 10),
        (Operation::AllReduce(ReduceOp::Sum), 1 << 20),
        (Operation::ReduceScatter(ReduceOp::Sum), 12),
        (Operation::AllGather, 10),
        (Operation::AllGather, 1 << 20),
        (Operation::Broadcast { root: 0 }, 10),
        (Operation::Broadcast { root: 1 }, 1 << 20),
        (Operation::Barrier, 0),
    ];
    let start = Instant::now();
    for ranks in [2, 4] {
        for (index, first) in operations.iter().enumerate() {
            let second = operations[(index + 1) % operations.len()];
            let results = as_ranks(contexts(ranks), |context| {
                let (operation, len) = if context.rank == 1 { second } else { *first };
                let mut rank = Rank::connect(context).unwrap();
                rank.run(operation, Buffer::zeros(DType::F32, len))
            });
            // Who has no part in what differs may be done before it is found.
            for result in &results[..2] {
                assert!(matches!(result, Err(Error::Mismatch(_))), "{result:?}");
            }
        }
    }
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_is_not_called_is_named_at_the_deadline() {
    let start = Instant::now();
    let results = as_ranks(contexts(3), |mut context| {
        context.timeout = SHORT;
        let number = context.rank;
        let store = Arc::clone(&context.store);
        let mut rank = Rank::connect(context).unwrap();
        if number == 2 {
            store.get("over", SOON).unwrap();
            return None;
        }
        let error = error_of(rank.sum(&[1.0]));
        store.set("over", b"").unwrap();
        Some(error)
    });
    let error = results.into_iter().flatten().next().unwrap();
    let named = matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for.contains(&22));
    assert!(named || matches!(error, Error::RankFailed { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let mut contexts = contexts(3);
    contexts.remove(1);
    let start = Instant::now();
    let errors = as_ranks(contexts, |mut context| {
        context.timeout = SHORT;
        Rank::connect(context).map(drop).unwrap_err()
    });
    for error in errors {
        let named = matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[21]);
        assert!(named, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_leaves_ends_the_operation_of_the_others() {
    for len in [4, 1 << 20] {
        let start = Instant::now();
        let results = as_ranks(contexts(2), |context| {
            let number = context.rank;
            let mut rank = Rank::connect(context).unwrap();
            rank.barrier().unwrap();
            (number == 0).then(|| error_of(rank.sum(&vec![1.0; len])))
        });
        let error = results[0].clone().unwrap();
        assert!(matches!(error, Error::RankFailed { rank: 21, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("closed during seq 1 all_reduce"), "{text}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
}

/// The true cause comes a little after the connection is closed.
#[test]
fn the_health_knows_better_than_the_connection() {
    let results = as_ranks(contexts(2), |context| {
        let number = context.rank;
        let health = Arc::clone(&context.health);
        let mut rank = Rank::connect(context).unwrap();
        rank.barrier().unwrap();
        if number == 1 {
            return None;
        }
        let reporter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            let cause = "out of memory".to_owned();
            health.fail(Error::RankFailed { rank: 3, cause });
        });
        let error = error_of(rank.sum(&[1.0]));
        reporter.join().unwrap();
        Some(error)
    });
    let error = results[0].clone().unwrap();
    assert!(matches!(error, Error::RankFailed { rank: 3, .. }), "{error}");
}

#[test]
fn a_failure_that_is_known_ends_the_wait() {
    let start = Instant::now();
    as_ranks(contexts(2), |context| {
        let number = context.rank;
        let (health, store) = (Arc::clone(&context.health), Arc::clone(&context.store));
        let mut rank = Rank::connect(context).unwrap();
        if number == 1 {
            store.get("over", SOON).unwrap();
            return;
        }
        let reporter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(60));
            health.fail(Error::Aborted("enough".to_owned()));
        });
        let error = error_of(rank.sum(&[1.0])).to_string();
        assert!(error.contains("enough"), "{error}");
        store.set("over", b"").unwrap();
        reporter.join().unwrap();
    });
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// Rank 1 leaves, which its neighbours in the ring see, and the other two see only that those leave. Whether rank 1 says why a little
/// later or never, all end with the first cause that is known.
#[test]
fn the_first_cause_reaches_who_sees_only_what_follows_from_it() {
    let start = Instant::now();
    for speaks in [true, false] {
        let errors = as_ranks(contexts_from_zero(5), |context| {
            fail_with_a_monitor(context, speaks)
        });
        for error in errors {
            let cause = if speaks {
                "loss is nan"
            } else {
                "the connection to it was closed"
            };
            let text = error.to_string();
            assert!(text.starts_with(&format!("rank 1 failed: {cause}")), "{text}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// Those of ranks that have the same numbers in the group and among all, as a monitor wants them.
fn contexts_from_zero(ranks: usize) -> Vec<GroupContext> {
    let mut contexts = contexts(ranks);
    for context in &mut contexts {
        context.global_ranks = (0..ranks).collect();
    }
    contexts
}

fn fail_with_a_monitor(context: GroupContext, speaks: bool) -> Error {
    let number = context.rank;
    let monitor = Monitor::start(MonitorContext {
        store: Arc::clone(&context.store),
        global_rank: number,
        world_size: context.global_ranks.len(),
        address: context.address,
        secret: Arc::clone(&context.secret),
        health: Arc::clone(&context.health),
        heartbeat: Duration::from_millis(100),
        silence: SOON,
        timeout: SOON,
    })
    .unwrap();
    let mut rank = Rank::connect(context).unwrap();
    rank.barrier().unwrap();
    if number != 1 {
        let error = error_of(rank.sum(&vec![1.0; 1 << 20]));
        // As a group does it.
        rank.context.health.fail(error.clone());
        drop(rank);
        drop(monitor);
        return error;
    }
    drop(rank);
    std::thread::sleep(Duration::from_millis(350));
    if speaks {
        monitor.fail("loss is nan");
    }
    let start = Instant::now();
    while monitor.global_failure().is_none() && start.elapsed() < SOON {
        std::thread::sleep(Health::PERIOD);
    }
    monitor.global_failure().unwrap()
}
