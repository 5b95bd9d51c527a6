//! Who comes to the hub and does not belong there, and who does not come.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{KNOWN, SECRET, SOON, context, failure, start, store};
use crate::auth::{Side, authenticate};
use crate::monitor::message::{MAX_FRAME, Message};
use crate::monitor::{Monitor, MonitorContext};
use crate::{Error, Store};

fn hub(store: &Arc<dyn Store>) -> SocketAddr {
    let address = store.get("monitor/address", SOON).unwrap();
    String::from_utf8(address).unwrap().parse().unwrap()
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
        ..context(&super::store(), 1, 2)
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
