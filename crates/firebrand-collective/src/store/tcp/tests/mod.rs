#![allow(clippy::unwrap_used)]

mod attacks;
mod frames;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

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

/// As a stopped process is: the connections stand, and nothing comes.
#[test]
fn a_server_that_does_not_answer_is_named_soon_after_the_deadline() {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            authenticate(&mut stream, SECRET, "store", Side::Server, "a client").unwrap();
            open.push(stream);
        }
    });
    let store = TcpStore::connect(address, SECRET, Duration::from_millis(300)).unwrap();
    let start = Instant::now();
    for error in [
        store.get("k", Duration::from_millis(300)).unwrap_err(),
        store.set("k", b"").unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains(&format!("{address} does not answer")), "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
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
