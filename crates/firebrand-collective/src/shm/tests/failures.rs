//! What goes wrong ends with an error that names it, on every rank, in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;
use crate::Error;

const SUM: Operation = Operation::AllReduce(ReduceOp::Sum);

#[test]
fn ranks_that_call_different_operations_all_learn_what_was_called() {
    type Choose = fn(&Rank) -> (Operation, Buffer);
    let cases: [(Choose, &str); 4] = [
        (
            |rank| (SUM, Buffer::zeros(DType::F32, [200, 200, 100][rank.rank])),
            "seq 1: rank 10 all_reduce sum f32[200], rank 12 all_reduce sum f32[100]",
        ),
        (
            |rank| {
                (
                    SUM,
                    rank.arena
                        .allocate([DType::F32, DType::I32, DType::I32][rank.rank], 1 << 20)
                        .unwrap(),
                )
            },
            "seq 1: rank 10 all_reduce sum f32[1048576], rank 11 all_reduce sum i32[1048576]",
        ),
        (
            |rank| match rank.rank {
                2 => (Operation::Barrier, Buffer::zeros(DType::U8, 0)),
                _ => (SUM, Buffer::zeros(DType::F32, 1 << 20)),
            },
            "seq 1: rank 10 all_reduce sum f32[1048576], rank 12 barrier",
        ),
        (
            |rank| {
                (
                    Operation::Broadcast { root: rank.rank / 2 },
                    Buffer::zeros(DType::U8, 3),
                )
            },
            "seq 1: rank 10 broadcast from rank 0 u8[3], rank 12 broadcast from rank 1 u8[3]",
        ),
    ];
    for (choose, text) in cases {
        with_ranks(3, PATIENT, |mut rank| {
            rank.barrier().unwrap();
            let (operation, buffer) = choose(&rank);
            let error = rank.run(operation, buffer).unwrap_err();
            assert!(
                matches!(&error, Error::Mismatch(found) if found == text),
                "{error}"
            );
            // There is no way on from here.
            assert!(matches!(rank.barrier(), Err(Error::Mismatch(_))));
        });
    }
}

#[test]
fn a_rank_that_is_one_operation_ahead_is_told_apart() {
    with_ranks(2, PATIENT, |mut rank| {
        rank.sequence += rank.rank as u64;
        let error = rank.barrier().unwrap_err().to_string();
        assert!(
            error.contains("rank 10 seq 0 barrier, rank 11 seq 1 barrier"),
            "{error}"
        );
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let timeout = Duration::from_millis(300);
    let barrier = std::sync::Barrier::new(3);
    let outcomes = with_ranks(3, timeout, |mut rank| {
        rank.barrier().unwrap();
        barrier.wait();
        let punctual = rank.rank != 1;
        let mut reduce = || {
            let start = Instant::now();
            let buffer = rank.buffer(&vec![1.0f32; 100_000], true);
            (rank.run(SUM, buffer).unwrap_err(), start.elapsed())
        };
        // One comes when the others have given up; they leave when it is there.
        let punctual = punctual.then(&mut reduce);
        barrier.wait();
        let outcome = punctual.unwrap_or_else(reduce);
        barrier.wait();
        outcome
    });
    for (error, after) in [&outcomes[0], &outcomes[2]] {
        assert!(
            matches!(error, Error::Timeout { waiting_for, .. } if *waiting_for == [11]),
            "{error}"
        );
        assert!(
            error.to_string().contains("seq 1 all_reduce sum f32[100000]"),
            "{error}"
        );
        assert!((timeout..5 * timeout).contains(after), "{after:?}");
    }
    // The late one learns that it is its own absence that the others could not wait for.
    let (error, after) = &outcomes[1];
    assert!(
        matches!(error, Error::RankFailed { rank: 11, cause } if cause.contains("waiting for rank 11")),
        "{error}"
    );
    assert!(*after < timeout / 2, "{after:?}");
}

#[test]
fn a_failure_elsewhere_ends_a_wait_soon() {
    let ended = AtomicBool::new(false);
    with_ranks(2, PATIENT, |mut rank| {
        rank.barrier().unwrap();
        if rank.rank == 1 {
            // It neither comes nor leaves.
            let start = Instant::now();
            while !ended.load(Ordering::Relaxed) && start.elapsed() < PATIENT {
                std::thread::sleep(Duration::from_millis(5));
            }
            return;
        }
        let health = Arc::clone(&rank.health);
        let failed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            health.fail(Error::RankFailed {
                rank: 77,
                cause: "it was killed".to_owned(),
            });
            Instant::now()
        });
        let error = rank.barrier().unwrap_err();
        let after = failed.join().unwrap().elapsed();
        ended.store(true, Ordering::Relaxed);
        assert!(matches!(error, Error::RankFailed { rank: 77, .. }), "{error}");
        assert!(after < Duration::from_millis(300), "{after:?}");
    });
}

#[test]
fn a_rank_that_gives_up_or_leaves_takes_the_others_with_it() {
    // Rank 2 learns of a failure; nobody else does, except through it.
    with_ranks(3, PATIENT, |mut rank| {
        rank.barrier().unwrap();
        if rank.rank == 2 {
            rank.health.fail(Error::RankFailed {
                rank: 77,
                cause: "it was killed".to_owned(),
            });
        }
        let error = rank.barrier().unwrap_err();
        assert!(matches!(error, Error::RankFailed { rank: 77, .. }), "{error}");
    });
    with_ranks(2, PATIENT, |mut rank| {
        rank.barrier().unwrap();
        if rank.rank == 0 {
            let error = rank.barrier().unwrap_err().to_string();
            assert!(
                error.contains("rank 11 failed") && error.contains("left"),
                "{error}"
            );
        }
    });
    // Who leaves because of something else is not blamed by those who hear of it a little later.
    with_ranks(2, PATIENT, |mut rank| {
        rank.barrier().unwrap();
        if rank.rank == 0 {
            let health = Arc::clone(&rank.health);
            let told = std::thread::spawn(move || {
                std::thread::sleep(Health::SUSPICION);
                health.fail(Error::RankFailed {
                    rank: 77,
                    cause: "it was killed".to_owned(),
                });
            });
            let error = rank.barrier().unwrap_err();
            told.join().unwrap();
            assert!(matches!(error, Error::RankFailed { rank: 77, .. }), "{error}");
        }
    });
}

#[test]
fn a_result_stands_though_the_others_leave_at_once() {
    for round in 0..30 {
        with_ranks(3, PATIENT, |mut rank| {
            let buffer = rank.buffer(&vec![1.0f32; 100_000], (round + rank.rank) % 2 == 0);
            let found = rank.run(SUM, buffer).unwrap();
            drop(rank);
            assert!(found.as_slice::<f32>().unwrap().iter().all(|found| *found == 3.0));
        });
    }
}

#[test]
fn memory_that_a_peer_may_still_read_is_not_used_again() {
    with_ranks(2, Duration::from_millis(200), |mut rank| {
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(400));
            return;
        }
        let buffer = rank.buffer(&vec![1.0f32; 100_000], true);
        let at = buffer.bytes().as_ptr();
        rank.run(SUM, buffer).unwrap_err();
        let again = rank.arena.allocate(DType::F32, 100_000).unwrap();
        assert_ne!(again.bytes().as_ptr(), at);
    });
}

#[test]
fn another_secret_is_refused() {
    let errors = with_contexts(2, Duration::from_millis(500), |mut context| {
        context.secret = Arc::from(format!("secret {}", context.rank).into_bytes());
        connect(&context).err().unwrap()
    });
    // Rank 0 cannot tell one that has another secret from a stranger, and goes on waiting for the rank.
    assert!(
        matches!(&errors[0], Error::Timeout { waiting_for, .. } if *waiting_for == [11]),
        "{errors:?}"
    );
    assert!(matches!(&errors[1], Error::Secret { .. }), "{errors:?}");
}

#[test]
fn strangers_at_the_socket_do_no_harm() {
    use std::io::Write;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};

    with_contexts(2, Duration::from_secs(10), |context| {
        if context.rank == 1 {
            let name = context.store.get("shm", context.timeout).unwrap();
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            for garbage in [&b""[..], b"GET / HTTP/1.1\r\n\r\nand more than a hello", &[0; 40]] {
                let mut stream = UnixStream::connect_addr(&address).unwrap();
                stream.write_all(garbage).unwrap();
            }
        }
        let mut rank = Rank::new(&context).unwrap();
        rank.barrier().unwrap();
        assert!(!context.store.check(&["shm"]).unwrap());
    });
}

#[test]
fn a_group_that_does_not_become_complete_is_an_error_in_time() {
    let start = Instant::now();
    let errors = with_contexts(3, Duration::from_millis(300), |context| {
        (context.rank != 1).then(|| connect(&context).err().unwrap().to_string())
    });
    assert!(
        errors[0].as_ref().unwrap().contains("still waiting for rank 11"),
        "{errors:?}"
    );
    let other = errors[2].as_ref().unwrap();
    assert!(other.contains("rank 10"), "{other}");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn two_processes_with_one_rank_are_an_error() {
    let errors = with_contexts(3, Duration::from_secs(5), |mut context| {
        context.rank = context.rank.min(1);
        connect(&context).err().unwrap().to_string()
    });
    assert!(
        errors[0].contains("rank 1 of 3") && errors[0].contains("its own rank"),
        "{errors:?}"
    );
}

#[test]
fn positions_beyond_a_peers_memory_are_refused() {
    for offset in [usize::MAX - 8, 1 << 45] {
        with_ranks(2, Duration::from_secs(5), |mut rank| {
            let call = Call {
                sequence: 0,
                operation: SUM,
                dtype: DType::F32,
                len: 100_000,
            };
            if rank.rank == 1 {
                let source = Source {
                    offset,
                    staged: false,
                };
                rank.transport.control.announce(0, &call, source, &[]);
                let patience = Patience::new(Arc::clone(&rank.health), "the peer", PATIENT);
                // Until the other has given up.
                let error = rank
                    .transport
                    .control
                    .wait(Progress::Done, 1, &patience)
                    .unwrap_err();
                assert!(
                    error.to_string().contains("sent a message that makes no sense"),
                    "{error}"
                );
                return;
            }
            let buffer = rank.buffer(&vec![1.0f32; 100_000], true);
            let error = rank.run(SUM, buffer).unwrap_err();
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        });
    }
}
