use crate::monitor::message::{Failure, Message};

#[test]
fn messages_survive_their_encoding_and_other_bytes_are_none() {
    let messages = [
        Message::Hello { rank: 4095 },
        Message::Welcome,
        Message::Refused("no".to_owned()),
        Message::Heartbeat,
        Message::Phase("validating".to_owned()),
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
