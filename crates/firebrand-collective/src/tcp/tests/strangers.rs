use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::*;
use crate::auth::{Side, authenticate};

fn address(context: &GroupContext, key: &str) -> SocketAddr {
    let value = context.store.get(key, SOON).unwrap();
    String::from_utf8(value).unwrap().parse().unwrap()
}

/// Everything that may come to a port: noise, silence, half a handshake, the wrong secret, and the right one with a hello of
/// another group. The connections are to be kept for a while.
fn molest(address: SocketAddr, purpose: &str) -> Vec<TcpStream> {
    let mut kept = Vec::new();
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        stream
    };
    let mut numbers = Numbers::new(9);
    let noise: Vec<u8> = (0..1 << 20).map(|_| numbers.next() as u8).collect();
    let mut stream = connect();
    // It is sent away before it is through.
    let _ = stream.write_all(&noise);
    kept.push(stream);
    for _ in 0..20 {
        kept.push(connect());
    }
    let mut stream = connect();
    stream.write_all(b"FBRAND01and then no more").unwrap();
    kept.push(stream);
    let mut stream = connect();
    assert!(authenticate(&mut stream, b"a guess", purpose, Side::Client, "it").is_err());
    kept.push(stream);
    for hello in [&noise[..24], &noise[..3], &[]] {
        let mut stream = connect();
        authenticate(&mut stream, SECRET, purpose, Side::Client, "it").unwrap();
        stream.write_all(hello).unwrap();
        kept.push(stream);
    }
    kept
}

#[test]
fn strangers_do_not_keep_the_ranks_of_a_transport_apart() {
    let start = Instant::now();
    as_ranks(contexts(2), |context| {
        let kept = if context.rank == 1 {
            let kept = molest(address(&context, "tcp/0"), "tcp");
            std::thread::sleep(Duration::from_millis(100));
            kept
        } else {
            Vec::new()
        };
        let mut rank = Rank::connect(context).unwrap();
        assert_eq!(rank.sum(&[1.0]).unwrap(), [2.0]);
        drop(kept);
    });
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
}

#[test]
fn strangers_do_not_keep_links_apart() {
    let start = Instant::now();
    as_ranks(contexts(2), |context| {
        let links = Links::connect(&context).unwrap();
        if context.rank == 0 {
            let received = links.recv(Buffer::zeros(DType::F32, 3), 1).wait().unwrap();
            assert_eq!(received.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
            return;
        }
        let kept = molest(address(&context, "links/0"), "links");
        links
            .send(Buffer::from_slice(&[1f32, 2.0, 3.0]), 0)
            .wait()
            .unwrap();
        drop(kept);
    });
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
}

#[test]
fn a_rank_with_another_secret_is_told_so() {
    let mut contexts = contexts(2);
    contexts[0].timeout = Duration::from_millis(500);
    contexts[1].secret = b"another".as_slice().into();
    let errors = as_ranks(contexts, |context| Rank::connect(context).map(drop).unwrap_err());
    let named = matches!(&errors[0], Error::Timeout { waiting_for, .. } if waiting_for == &[21]);
    assert!(named, "{}", errors[0]);
    assert!(matches!(errors[1], Error::Secret { .. }), "{}", errors[1]);
    assert!(errors[1].to_string().contains("rank 20"), "{}", errors[1]);
}

#[test]
fn nothing_is_listened_for_on_all_interfaces() {
    let mut context = contexts(2).remove(0);
    context.address = Ipv4Addr::UNSPECIFIED.into();
    assert!(TcpTransport::connect(&context).is_err());
    assert!(Links::connect(&context).is_err());
}
