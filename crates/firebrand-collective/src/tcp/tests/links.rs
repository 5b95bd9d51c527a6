use std::time::Instant;

use super::*;
use crate::Work;

fn values(from: usize, number: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (from * 1000 + number * 10 + i % 10) as f32)
        .collect()
}

fn zeros(len: usize) -> Buffer {
    Buffer::zeros(DType::F32, len)
}

#[test]
fn messages_arrive_in_order_between_all_ranks_at_once() {
    const LENS: [usize; 6] = [0, 1, 1000, 1 << 20, 3, 70_001];
    as_ranks(contexts(4), |context| {
        let own = context.rank;
        let links = Links::connect(&context).unwrap();
        let peers = || (0..4).filter(|peer| *peer != own);
        let mut sends = Vec::new();
        let mut receives = Vec::new();
        for (number, len) in LENS.into_iter().enumerate() {
            for peer in peers() {
                // Both sides first receive, or send first, or one each.
                let receive = || (peer, number, links.recv(zeros(len), peer));
                let send = || links.send(Buffer::from_slice(&values(own, number, len)), peer);
                if (own + number) % 2 == 0 {
                    receives.push(receive());
                    sends.push(send());
                } else {
                    sends.push(send());
                    receives.push(receive());
                }
            }
        }
        for (peer, number, work) in receives {
            let buffer = work.wait().unwrap();
            assert_eq!(
                buffer.as_slice::<f32>().unwrap(),
                values(peer, number, LENS[number])
            );
        }
        for work in sends {
            work.wait().unwrap();
        }
    });
}

#[test]
fn a_rank_that_does_not_receive_holds_up_nobody_else() {
    as_ranks(contexts(3), |context| {
        let own = context.rank;
        let store = Arc::clone(&context.store);
        let links = Links::connect(&context).unwrap();
        match own {
            0 => {
                // Far more than fits into the buffers of the system.
                let stuck = links.send(zeros(16 << 20), 1);
                links.send(zeros(1 << 20), 2).wait().unwrap();
                links.recv(zeros(5), 1).wait().unwrap();
                assert!(!stuck.is_done());
                store.set("go", b"").unwrap();
                stuck.wait().unwrap();
            }
            1 => {
                links.send(zeros(5), 0).wait().unwrap();
                store.get("go", SOON).unwrap();
                links.recv(zeros(16 << 20), 0).wait().unwrap();
            }
            _ => drop(links.recv(zeros(1 << 20), 0).wait().unwrap()),
        }
    });
}

#[test]
fn different_messages_are_named_by_the_receiver() {
    let errors = as_ranks(contexts(2), |context| {
        let links = Links::connect(&context).unwrap();
        let end = |work: Work| work.wait().map(drop).map_err(|error| error.to_string());
        if context.rank == 0 {
            end(links.send(zeros(3), 1)).unwrap();
            let second = end(links.send(zeros(200), 1));
            context.store.get("seen", SOON).unwrap();
            return second;
        }
        end(links.recv(zeros(3), 0)).unwrap();
        let error = end(links.recv(Buffer::zeros(DType::I32, 100), 0));
        // It stays broken.
        assert_eq!(end(links.recv(zeros(200), 0)), error);
        context.store.set("seen", b"").unwrap();
        error
    });
    assert!(errors[0].is_ok());
    let error = errors[1].clone().unwrap_err();
    let expected = "message 1: rank 20 sends f32[200], rank 21 receives i32[100]";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_peer_that_sends_nothing_or_does_not_come_is_named_at_the_deadline() {
    let mut contexts = contexts(3);
    contexts.truncate(2);
    for context in &mut contexts {
        context.timeout = Duration::from_millis(300);
    }
    let links: Vec<_> = contexts
        .iter()
        .map(|context| Links::connect(context).unwrap())
        .collect();
    let start = Instant::now();
    let works = [
        (
            links[0].recv(zeros(2), 1),
            21,
            "receive of message 0 f32[2] from rank 21",
        ),
        (
            links[1].recv(zeros(2), 2),
            22,
            "receive of message 0 f32[2] from rank 22",
        ),
        (links[1].send(zeros(2), 2), 22, "rank 22"),
    ];
    for (work, missing, text) in works {
        let error = work.wait().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let named = matches!(&error, Error::Timeout { waiting_for, .. } if waiting_for == &[missing]);
        assert!(named, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn what_was_sent_arrives_when_the_sender_has_left() {
    as_ranks(contexts(2), |context| {
        let links = Links::connect(&context).unwrap();
        if context.rank == 0 {
            links.send(zeros(10_000), 1).wait().unwrap();
            drop(links);
            context.store.set("left", b"").unwrap();
        } else {
            context.store.get("left", SOON).unwrap();
            links.recv(zeros(10_000), 0).wait().unwrap();
            let error = links.recv(zeros(1), 0).wait().unwrap_err();
            assert!(matches!(error, Error::RankFailed { rank: 20, .. }), "{error}");
        }
    });
}

#[test]
fn dropping_the_links_ends_what_is_under_way() {
    let contexts = contexts(3);
    let first = Links::connect(&contexts[0]).unwrap();
    let second = Links::connect(&contexts[1]).unwrap();
    let works = [
        first.recv(zeros(1), 1),
        // Too much for the buffers of the system, and to a rank that does not come.
        first.send(zeros(16 << 20), 1),
        first.send(zeros(1), 2),
    ];
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(first);
    for work in works {
        let error = work.wait().unwrap_err();
        assert!(matches!(error, Error::Aborted(_)), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    drop(second);
}

#[test]
fn a_failure_that_is_known_ends_every_message() {
    let contexts = contexts(2);
    let links = Links::connect(&contexts[0]).unwrap();
    let work = links.recv(zeros(1), 1);
    std::thread::sleep(Duration::from_millis(30));
    let cause = "the disk is full".to_owned();
    contexts[0].health.fail(Error::RankFailed { rank: 7, cause });
    let start = Instant::now();
    let error = work.wait().unwrap_err().to_string();
    assert!(error.contains("rank 7") && error.contains("disk"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn a_group_of_one_has_no_links_and_nobody_sends_to_itself() {
    let links = Links::connect(&contexts(1)[0]).unwrap();
    assert!(links.send(zeros(1), 0).wait().is_err());
    let links = Links::connect(&contexts(2)[1]).unwrap();
    let error = links.recv(zeros(1), 1).wait().unwrap_err().to_string();
    assert!(error.contains("rank 1"), "{error}");
    assert!(links.send(zeros(1), 2).wait().is_err());
}
