use super::super::hello::Hello;
use super::super::links::Header;
use super::*;

/// Everything that is decoded from what a peer sends. Returns how much of it was understood.
fn decode(bytes: &[u8]) -> usize {
    let mut understood = 0;
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), *bytes);
        let context = &contexts(3)[1];
        assert!(
            hello
                .sender(context)
                .is_none_or(|sender| sender < 3 && sender != 1)
        );
        understood += 1;
    }
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(header.encode(), *bytes);
        understood += 1;
    }
    if let Some(call) = bytes.try_into().ok().and_then(Call::decode) {
        assert!(!call.to_string().is_empty());
        understood += 1;
    }
    understood
}

/// A million inputs: pure noise, and frames with a few bytes changed, cut or added.
#[test]
fn no_input_makes_a_decoder_panic() {
    let hello = Hello::between(&contexts(3)[0], 0, 1).encode();
    let header = Header {
        sequence: 3,
        dtype: DType::BF16,
        len: 77,
    };
    let call = Call {
        sequence: 41,
        operation: Operation::AllReduce(ReduceOp::Max),
        dtype: DType::F64,
        len: 1000,
    };
    let frames = [hello, header.encode(), call.encode()];
    assert!(frames.iter().all(|frame| decode(frame) > 0));
    let mut numbers = Numbers::new(1);
    let mut understood = 0usize;
    for round in 0..1_000_000usize {
        let mut bytes = if round % 4 == 0 {
            (0..numbers.below(40)).map(|_| numbers.next() as u8).collect()
        } else {
            let mut bytes = frames[round % 3].to_vec();
            for _ in 0..numbers.below(3) {
                let at = numbers.below(bytes.len());
                bytes[at] ^= 1 << numbers.below(8);
            }
            bytes
        };
        match numbers.below(8) {
            0 => bytes.truncate(numbers.below(bytes.len() + 1)),
            1 => bytes.push(numbers.next() as u8),
            _ => {}
        }
        understood += decode(&bytes);
    }
    assert!(understood > 10_000 && understood < 1_000_000, "{understood}");
}

#[test]
fn a_hello_to_another_group_or_rank_is_of_nobody() {
    let contexts = contexts(3);
    let hello = Hello::between(&contexts[0], 0, 1);
    assert_eq!(hello.sender(&contexts[1]), Some(0));
    assert_eq!(hello.sender(&contexts[2]), None);
    assert_eq!(hello.sender(&contexts[0]), None);
    let mut other = contexts[1].clone();
    other.global_ranks[0] = 5;
    assert_eq!(hello.sender(&other), None);
    assert_eq!(Hello { size: 4, ..hello }.sender(&contexts[1]), None);
}
