use crate::Error;
use crate::control::{Fields, Malformed};

/// The longest cause that is told.
const MAX_CAUSE: usize = 8 << 10;

/// The longest frame.
pub(super) const MAX_FRAME: usize = 64 + MAX_CAUSE;

/// Which rank failed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub rank: usize,
    pub cause: String,
}

impl Failure {
    /// What an error of this rank means to the others: it speaks of another rank, or of this one.
    pub fn of(error: &Error, this_rank: usize) -> Self {
        let (rank, cause) = error.blame(this_rank);
        Self { rank, cause }
    }

    /// The failure of a rank whose connection ended.
    pub fn death(rank: usize) -> Self {
        Self {
            rank,
            cause: "its process ended without a word (killed?)".to_owned(),
        }
    }

    /// The failure of a rank that says nothing any more.
    pub fn silence(rank: usize, after: std::time::Duration) -> Self {
        Self {
            rank,
            cause: format!(
                "it gave no sign of life for {} s (is its process stopped, or its machine out of reach?)",
                after.as_secs_f64()
            ),
        }
    }

    pub fn error(&self) -> Error {
        Error::RankFailed {
            rank: self.rank,
            cause: self.cause.clone(),
        }
    }
}

/// What goes over a connection between a rank and the hub; each is one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The first of a rank.
    Hello { rank: usize },
    /// The hub's answer.
    Welcome,
    /// The hub's other answer.
    Refused(String),
    /// Still alive.
    Heartbeat,
    /// What the sender does from now on.
    Phase(String),
    /// Leaves as planned.
    Goodbye,
    /// A rank failed.
    Failed(Failure),
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello { rank } => with_number(0, *rank),
            Self::Welcome => vec![1],
            Self::Refused(reason) => with_text(vec![2], reason),
            Self::Heartbeat => vec![3],
            Self::Goodbye => vec![4],
            Self::Phase(phase) => with_text(vec![6], phase),
            Self::Failed(failure) => with_text(with_number(5, failure.rank), &failure.cause),
        }
    }

    pub fn decode(frame: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(frame);
        let message = match fields.u8()? {
            0 => Self::Hello {
                rank: fields.u32()? as usize,
            },
            1 => Self::Welcome,
            2 => Self::Refused(fields.text(MAX_CAUSE)?.to_owned()),
            3 => Self::Heartbeat,
            4 => Self::Goodbye,
            5 => Self::Failed(Failure {
                rank: fields.u32()? as usize,
                cause: fields.text(MAX_CAUSE)?.to_owned(),
            }),
            6 => Self::Phase(fields.text(MAX_CAUSE)?.to_owned()),
            _ => return Err(Malformed("there is no such message")),
        };
        fields.end()?;
        Ok(message)
    }
}

fn with_number(code: u8, number: usize) -> Vec<u8> {
    let mut frame = vec![code];
    frame.extend_from_slice(&(number as u32).to_le_bytes());
    frame
}

fn with_text(mut frame: Vec<u8>, text: &str) -> Vec<u8> {
    let text = &text[..text.floor_char_boundary(MAX_CAUSE)];
    frame.extend_from_slice(&(text.len() as u32).to_le_bytes());
    frame.extend_from_slice(text.as_bytes());
    frame
}
