//! How operations end that do not succeed, in words.

use std::io::{self, ErrorKind};

use crate::Error;
use crate::transport::Call;

/// Whether it was only too early, and not the end.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// What became of a connection, in words.
pub(super) fn how_it_ended(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => "closed".to_owned(),
        _ => format!("lost ({error})"),
    }
}

/// What two ranks call, `seq 41: rank 0 all_reduce sum f32[200], rank 1 all_reduce sum f32[100]`.
pub(super) fn mismatch(first: (usize, Call), other: (usize, Call)) -> Error {
    let prefix = format!("seq {} ", first.1.sequence);
    let text = if first.1.sequence == other.1.sequence {
        let [one, two] = [first, other].map(|(_, call)| call.to_string().replacen(&prefix, "", 1));
        format!(
            "{}: rank {} {one}, rank {} {two}",
            prefix.trim_end(),
            first.0,
            other.0
        )
    } else {
        format!("rank {} {}, rank {} {}", first.0, first.1, other.0, other.1)
    };
    Error::Mismatch(text)
}
