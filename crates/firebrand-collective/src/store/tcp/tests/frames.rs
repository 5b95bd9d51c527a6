use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::store::tcp::protocol::{MAX_KEYS, Request, Response};

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
