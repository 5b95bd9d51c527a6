#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::message::{Failure, MAX_FRAME, Message};
use super::{Monitor, MonitorContext};
use crate::auth::{Side, authenticate};
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

fn hub(store: &Arc<dyn Store>) -> SocketAddr {
    let address = store.get("monitor/address", SOON).unwrap();
    String::from_utf8(address).unwrap().parse().unwrap()
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
                rank == failing || text.contains(&format!("rank {failing} failed")),
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
fn ranks_that_do_not_come_are_named() {
    let store = store();
    let timeout = Duration::from_millis(700);
    let second = context(&store, 1, 4);
    let health = Arc::clone(&second.health);
    let second = thread::spawn(move || Monitor::start(second));
    let first = MonitorContext {
        timeout,
        ..context(&store, 0, 4)
    };
    let error = Monitor::start(first).err().unwrap();
    assert!(
        matches!(&error, Error::Timeout { waiting_for, .. } if *waiting_for == [2, 3]),
        "{error}"
    );
    let second = second.join().unwrap().unwrap();
    let text = failure(&health);
    assert!(
        text.contains("rank 0 failed") && text.contains("ranks 2, 3"),
        "{text}"
    );
    drop(second);

    let lonely = MonitorContext {
        timeout,
        ..context(&self::store(), 1, 2)
    };
    let begin = Instant::now();
    let error = Monitor::start(lonely).err().unwrap();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    assert!(begin.elapsed() >= timeout && begin.elapsed() < KNOWN);
}

#[test]
fn the_same_rank_twice_and_ranks_of_another_world_are_refused() {
    let store = store();
    let ranks = start(&store, 2);
    let refuse = |context| Monitor::start(context).err().unwrap().to_string();
    let text = refuse(context(&store, 1, 2));
    assert!(text.contains("rank 1 has come already"), "{text}");
    let text = refuse(context(&store, 2, 3));
    assert!(
        text.contains("there is no rank 2") && text.contains("world size"),
        "{text}"
    );
    let text = refuse(context(&store, 3, 3));
    assert!(text.contains("there is no rank 3 among 3"), "{text}");
    let text = refuse(MonitorContext {
        secret: b"another".as_slice().into(),
        ..context(&store, 1, 2)
    });
    assert!(text.contains("FIREBRAND_SECRET"), "{text}");
    let text = refuse(MonitorContext {
        heartbeat: Duration::ZERO,
        ..context(&store, 1, 2)
    });
    assert!(text.contains("heartbeat"), "{text}");
    for (monitor, _) in &ranks {
        monitor.leave().unwrap();
    }
}

/// A connection to the hub that has proved itself.
fn guest(store: &Arc<dyn Store>) -> TcpStream {
    let mut stream = TcpStream::connect(hub(store)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    authenticate(&mut stream, SECRET, "monitor", Side::Client, "the hub").unwrap();
    stream
}

fn send(stream: &mut TcpStream, frame: &[u8]) {
    stream.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

#[test]
fn strangers_and_nonsense_disturb_nobody() {
    let store = store();
    let ranks = start(&store, 2);
    let mut strangers: Vec<TcpStream> = (0..150)
        .map(|_| {
            let mut stream = TcpStream::connect(hub(&store)).unwrap();
            stream.write_all(b"FBRAN").unwrap();
            stream
        })
        .collect();
    strangers[0].write_all(&[0xff; 1000]).unwrap();
    for frame in [
        &[][..],
        &[77; 100],
        &Message::Heartbeat.encode(),
        &Message::Goodbye.encode(),
    ] {
        let mut stream = guest(&store);
        send(&mut stream, frame);
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
    let mut long = guest(&store);
    long.write_all(&(MAX_FRAME as u32 + 1).to_le_bytes()).unwrap();
    assert_eq!(long.read(&mut [0; 16]).unwrap(), 0);
    thread::sleep(Duration::from_millis(300));
    for (monitor, _) in &ranks {
        monitor.leave().unwrap();
    }
}

#[test]
fn a_rank_that_talks_nonsense_has_failed() {
    for nonsense in [&[77; 9][..], &Message::Welcome.encode()] {
        let store = store();
        let first = context(&store, 0, 2);
        let health = Arc::clone(&first.health);
        let first = thread::spawn(move || Monitor::start(first));
        let mut stream = guest(&store);
        send(&mut stream, &Message::Hello { rank: 1 }.encode());
        let monitor = first.join().unwrap().unwrap();
        send(&mut stream, nonsense);
        let text = failure(&health);
        assert!(text.contains("rank 1 failed: it sent"), "{text}");
        drop(monitor);
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

#[test]
fn messages_survive_their_encoding_and_other_bytes_are_none() {
    let messages = [
        Message::Hello { rank: 4095 },
        Message::Welcome,
        Message::Refused("no".to_owned()),
        Message::Heartbeat,
        Message::Goodbye,
        Message::Failed(Failure {
            rank: 3,
            cause: "nan".to_owned(),
        }),
    ];
    for message in &messages {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(message));
    }
    // A xorshift generator: the numbers need to be many, not good.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut accepted = 0;
    for _ in 0..200_000 {
        let mut frame = messages[random() % messages.len()].encode();
        let place = random() % frame.len();
        frame[place] = random() as u8;
        frame.truncate(1 + random() % 16);
        if let Ok(message) = Message::decode(&frame) {
            assert_eq!(message.encode(), frame);
            accepted += 1;
        }
    }
    assert!(accepted > 1000 && accepted < 150_000, "{accepted}");
}
