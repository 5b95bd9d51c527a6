//! Strangers, and clients that do not keep to the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::{ANY_PORT, SECRET, SOON, client, server};
use crate::auth::{Side, authenticate};
use crate::store::Store;
use crate::store::tcp::protocol::{MAX_FRAME, Request};
use crate::store::tcp::{StoreLimits, StoreServer};

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

/// What a client does to the server on a connection that has proved itself.
type Attack<'a> = Box<dyn Fn(&mut TcpStream) + 'a>;

#[test]
fn clients_that_break_the_protocol_are_sent_away_and_disturb_nobody() {
    let server = server();
    let store = client(&server);
    let set = Request::Set {
        key: "k",
        value: b"v",
    }
    .encode();
    let broken: Vec<Attack<'_>> = vec![
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
