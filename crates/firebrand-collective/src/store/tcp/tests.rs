#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::protocol::{MAX_FRAME, MAX_KEYS, Request, Response};
use super::{StoreLimits, StoreServer, TcpStore};
use crate::auth::{Side, authenticate};
use crate::store::{Store, test_contract};
use crate::{Error, Health};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SOON: Duration = Duration::from_secs(10);
const SECRET: &[u8] = b"the secret of a test";

fn server() -> StoreServer {
    StoreServer::bind(ANY_PORT, SECRET, StoreLimits::default()).unwrap()
}

fn client(server: &StoreServer) -> TcpStore {
    TcpStore::connect(server.address(), SECRET, SOON).unwrap()
}

/// A connection that has proved itself, to send what a client never would.
fn raw(server: &StoreServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    authenticate(&mut stream, SECRET, "store", Side::Client, "the server").unwrap();
    stream
}

fn send(stream: &mut TcpStream, frame: &[u8]) {
    stream.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
    stream.write_all(frame).unwrap();
}

/// Whether the server closes a connection, and does so soon.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SOON)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn it_does_what_a_store_does() {
    let server = server();
    let store: Arc<dyn Store> = Arc::new(client(&server));
    test_contract::check(&store);
}

#[test]
fn clients_and_the_process_of_the_server_share_values_and_wake_each_other() {
    let server = server();
    let (near, far) = (server.store(), client(&server));
    near.set("near", b"1").unwrap();
    assert_eq!(far.get("near", SOON).unwrap(), b"1");
    far.set("far", b"2").unwrap();
    assert_eq!(near.get("far", SOON).unwrap(), b"2");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            far.wait(&["one", "two"], SOON).unwrap();
            far.get("three", SOON).unwrap()
        });
        for key in ["two", "one", "three"] {
            thread::sleep(Duration::from_millis(30));
            near.set(key, key.as_bytes()).unwrap();
        }
        assert_eq!(waiting.join().unwrap(), b"three");
    });
}

#[test]
fn a_client_may_come_before_the_server() {
    // A port that is free at least now.
    let address = TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let early = thread::spawn(move || TcpStore::connect(address, SECRET, SOON)?.get("key", SOON));
    thread::sleep(Duration::from_millis(200));
    let server = StoreServer::bind(address, SECRET, StoreLimits::default()).unwrap();
    server.store().set("key", b"value").unwrap();
    assert_eq!(early.join().unwrap().unwrap(), b"value");
}

#[test]
fn no_server_another_secret_and_another_program_are_told_apart() {
    let address = TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let refuse = |timeout| TcpStore::connect(address, SECRET, timeout).err().unwrap();
    let start = Instant::now();
    let error = refuse(Duration::from_millis(200));
    assert!(start.elapsed() < SOON / 2);
    let text = error.to_string();
    assert!(
        matches!(error, Error::Connect { .. }) && text.contains(&address.to_string()),
        "{text}"
    );
    assert!(text.contains("after 0.2 s"), "{text}");

    let server = StoreServer::bind(address, b"another secret", StoreLimits::default()).unwrap();
    let error = refuse(SOON);
    assert!(matches!(error, Error::Secret { .. }), "{error}");
    assert!(error.to_string().contains("FIREBRAND_SECRET"), "{error}");
    drop(server);

    let silent = TcpListener::bind(address).unwrap();
    let start = Instant::now();
    let error = refuse(Duration::from_millis(300));
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(start.elapsed() < SOON / 2);
    drop(silent);
}

#[test]
fn a_taken_port_and_all_interfaces_are_refused_with_the_remedy() {
    let server = server();
    let bind = |address| {
        StoreServer::bind(address, SECRET, StoreLimits::default())
            .err()
            .unwrap()
            .to_string()
    };
    let text = bind(server.address());
    assert!(
        text.contains(&server.address().to_string()) && text.contains("taken"),
        "{text}"
    );
    let text = bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
    assert!(text.contains("0.0.0.0:0"), "{text}");
    let text = bind(SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0));
    assert!(
        text.contains("192.0.2.1") && text.contains("ip address"),
        "{text}"
    );
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    assert!(StoreServer::serve(listener, SECRET, StoreLimits::default()).is_err());
}

#[test]
fn a_dropped_server_ends_its_clients_and_frees_its_port() {
    for round in 0..3 {
        let server = server();
        let address = server.address();
        let store = Arc::new(TcpStore::connect(address, SECRET, Duration::from_secs(2)).unwrap());
        let silent = TcpStream::connect(address).unwrap();
        let waiting = thread::spawn({
            let store = Arc::clone(&store);
            move || store.get("never", Duration::from_secs(60))
        });
        thread::sleep(Duration::from_millis(20 * round));
        let start = Instant::now();
        drop(server);
        assert!(start.elapsed() < Duration::from_secs(1));
        drop(TcpListener::bind(address).unwrap());
        for error in [
            waiting.join().unwrap().unwrap_err(),
            store.set("k", b"").unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains(&address.to_string()) && text.contains("rank 0"),
                "{text}"
            );
        }
        assert!(start.elapsed() < Duration::from_secs(5));
        drop(silent);
    }
}

#[test]
fn a_client_goes_on_with_a_server_that_was_started_again_when_it_only_reads() {
    let first = server();
    let address = first.address();
    let store = client(&first);
    store.set("key", b"1").unwrap();
    drop(first);
    let second = StoreServer::bind(address, SECRET, StoreLimits::default()).unwrap();
    second.store().set("key", b"2").unwrap();
    assert_eq!(store.get("key", SOON).unwrap(), b"2");
    drop(second);
    let third = StoreServer::bind(address, SECRET, StoreLimits::default()).unwrap();
    // Nobody knows whether the first server has counted.
    assert!(store.add("count", 1).is_err());
    assert_eq!(store.add("count", 1).unwrap(), 1);
    drop(third);
}

#[test]
fn a_failure_of_a_rank_ends_a_wait() {
    let server = server();
    let health = Arc::new(Health::new());
    let store = client(&server).with_health(Arc::clone(&health));
    let waiting = thread::spawn(move || (store.get("never", Duration::from_secs(60)), store.set("k", b"")));
    thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    health.fail(Error::RankFailed {
        rank: 3,
        cause: "out of memory".to_owned(),
    });
    let (get, set) = waiting.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert!(matches!(get, Err(Error::RankFailed { rank: 3, .. })));
    assert!(matches!(set, Err(Error::RankFailed { rank: 3, .. })));
}

#[test]
fn strangers_hold_up_nobody_and_are_sent_away() {
    let limits = StoreLimits {
        max_strangers: 8,
        handshake: Duration::from_millis(400),
        ..StoreLimits::default()
    };
    let server = StoreServer::bind(ANY_PORT, SECRET, limits).unwrap();
    // Silent ones, half of a hello, garbage, and another program.
    let mut strangers: Vec<TcpStream> = (0..60)
        .map(|i| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            let bytes: &[u8] = match i % 4 {
                0 => b"",
                1 => b"FBRAND01 and then nothing",
                2 => &[0xff; 500],
                _ => b"GET / HTTP/1.1\r\n\r\n",
            };
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    let store = client(&server);
    store.set("key", b"value").unwrap();
    assert_eq!(store.get("key", SOON).unwrap(), b"value");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(strangers.iter_mut().all(is_closed));
    // One who sends a byte now and then does not stay longer.
    let mut slow = TcpStream::connect(server.address()).unwrap();
    let start = Instant::now();
    while slow.write_all(b"F").is_ok() && start.elapsed() < SOON {
        thread::sleep(Duration::from_millis(50));
    }
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn clients_that_break_the_protocol_are_sent_away_and_disturb_nobody() {
    let server = server();
    let store = client(&server);
    let set = Request::Set {
        key: "k",
        value: b"v",
    }
    .encode();
    let broken: Vec<Box<dyn Fn(&mut TcpStream)>> = vec![
        Box::new(|stream| stream.write_all(&u32::MAX.to_le_bytes()).unwrap()),
        Box::new(|stream| stream.write_all(&(MAX_FRAME as u32 + 1).to_le_bytes()).unwrap()),
        Box::new(|stream| send(stream, &[])),
        Box::new(|stream| send(stream, &[99, 1, 2, 3])),
        Box::new(|stream| send(stream, &[0, 255, 255, 255, 255])),
        Box::new(|stream| {
            // Two requests at once.
            let mut both = (set.len() as u32).to_le_bytes().to_vec();
            both.extend_from_slice(&set);
            stream.write_all(&[both.clone(), both].concat()).unwrap();
        }),
        Box::new(|stream| {
            // A request while another one waits.
            let get = Request::Get {
                key: "never",
                timeout: SOON * 6,
            };
            send(stream, &get.encode());
            thread::sleep(Duration::from_millis(50));
            send(stream, &set);
        }),
    ];
    for (number, attack) in broken.iter().enumerate() {
        let mut stream = raw(&server);
        attack(&mut stream);
        assert!(is_closed(&mut stream), "attack {number}");
    }
    // Half a frame, and then nothing: it stays, and costs nobody anything.
    let mut half = raw(&server);
    half.write_all(&1000u32.to_le_bytes()).unwrap();
    half.write_all(&[0; 10]).unwrap();
    // One that is gone while it waits.
    let mut gone = raw(&server);
    let get = Request::Get {
        key: "never",
        timeout: SOON * 6,
    };
    send(&mut gone, &get.encode());
    drop(gone);
    // One that asks for much and never reads.
    server.store().set("large", &vec![1; 1 << 20]).unwrap();
    let mut deaf = raw(&server);
    let get = Request::Get {
        key: "large",
        timeout: SOON,
    };
    send(&mut deaf, &get.encode());
    assert_eq!(store.add("count", 1).unwrap(), 1);
    server.store().set("never", b"").unwrap();
    assert_eq!(store.add("count", 1).unwrap(), 2);
}

#[test]
fn more_connections_than_are_allowed_are_closed_and_make_room_when_they_go() {
    let limits = StoreLimits {
        max_connections: 2,
        ..StoreLimits::default()
    };
    let server = StoreServer::bind(ANY_PORT, SECRET, limits).unwrap();
    let (first, second) = (client(&server), client(&server));
    first.set("k", b"").unwrap();
    second.set("k", b"").unwrap();
    let third = client(&server).set("k", b"").unwrap_err().to_string();
    assert!(third.contains("ended the connection"), "{third}");
    drop(first);
    let start = Instant::now();
    while client(&server).set("k", b"").is_err() {
        assert!(start.elapsed() < SOON);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn hundreds_of_clients_meet() {
    const CLIENTS: usize = 200;
    let server = server();
    let address = server.address();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|rank| {
            thread::Builder::new()
                .stack_size(256 << 10)
                .spawn(move || {
                    let store = TcpStore::connect(address, SECRET, SOON).unwrap();
                    store
                        .set(&format!("address/{rank}"), &rank.to_le_bytes())
                        .unwrap();
                    let keys: Vec<String> = (0..CLIENTS).map(|other| format!("address/{other}")).collect();
                    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                    store.wait(&keys, SOON).unwrap();
                    store.get(keys[CLIENTS - 1 - rank], SOON).unwrap()
                })
                .unwrap()
        })
        .collect();
    for (rank, client) in clients.into_iter().enumerate() {
        assert_eq!(client.join().unwrap(), (CLIENTS - 1 - rank).to_le_bytes());
    }
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let key = "[a-z/ü]{0,12}";
    let value = proptest::collection::vec(any::<u8>(), 0..40);
    (
        0..7,
        key,
        value.clone(),
        value,
        any::<i64>(),
        proptest::collection::vec(key, 0..6),
    )
        .prop_map(|(kind, key, first, second, number, keys)| {
            let timeout = Duration::from_millis(u64::from(number as u32));
            let keys = keys.iter().map(String::as_str).collect();
            let request = match kind {
                0 => Request::Set {
                    key: &key,
                    value: &first,
                },
                1 => Request::Get { key: &key, timeout },
                2 => Request::Add {
                    key: &key,
                    amount: number,
                },
                3 => Request::CompareSet {
                    key: &key,
                    expected: &first,
                    desired: &second,
                },
                4 => Request::Wait { keys, timeout },
                5 => Request::Check { keys },
                _ => Request::Delete { key: &key },
            };
            let frame = request.encode();
            assert_eq!(Request::decode(&frame), Ok(request));
            frame
        })
}

/// A million frames, random ones and requests with a few bytes changed: none panics, and none that is accepted was read wrongly.
#[test]
fn a_million_mutated_frames() {
    let mut runner = TestRunner::deterministic();
    let seeds: Vec<Vec<u8>> = (0..500)
        .map(|_| any_request().new_tree(&mut runner).unwrap().current())
        .collect();
    // A xorshift generator: the numbers need to be many, not good.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut accepted = 0;
    for round in 0..1_000_000 {
        let mut frame = seeds[random() % seeds.len()].clone();
        if round % 4 == 0 {
            frame = (0..random() % 32).map(|_| random() as u8).collect();
        }
        for _ in 0..random() % 3 {
            match random() % 4 {
                0 if !frame.is_empty() => frame.truncate(random() % frame.len()),
                1 => frame.push(random() as u8),
                _ if !frame.is_empty() => {
                    let place = random() % frame.len();
                    frame[place] = random() as u8;
                }
                _ => {}
            }
        }
        if let Ok(request) = Request::decode(&frame) {
            assert_eq!(request.encode(), frame);
            accepted += 1;
        }
        if let Ok(response) = Response::decode(&frame) {
            assert_eq!(response.encode(), frame);
        }
    }
    assert!(accepted > 100_000 && accepted < 900_000, "{accepted}");
}

#[test]
fn numbers_of_keys_and_lengths_that_are_not_there_reserve_nothing() {
    for count in [MAX_KEYS as u32, MAX_KEYS as u32 + 1, u32::MAX] {
        let frame = [&[5][..], &count.to_le_bytes()].concat();
        assert!(Request::decode(&frame).is_err());
    }
    let frame = [&[0][..], &u32::MAX.to_le_bytes()].concat();
    assert!(Request::decode(&frame).is_err());
    let message = "ü".repeat(5000);
    let frame = Response::Refused(&message).encode();
    assert!(matches!(Response::decode(&frame), Ok(Response::Refused(text)) if text.len() == 4096));
}
