use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Buffer, DType, Error, Health, ReduceOp, Result};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce(ReduceOp),
    ReduceScatter(ReduceOp),
    AllGather,
    Broadcast { root: usize },
    Barrier,
}

/// What a rank calls, which all ranks of a group must agree on: `seq 41 all_reduce sum f32[200]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// How many collectives the group has called before.
    pub sequence: u64,
    pub operation: Operation,
    pub dtype: DType,
    /// The number of elements of this rank's buffer.
    pub len: usize,
}

impl Call {
    /// The size of [`encode`](Self::encode).
    pub const ENCODED: usize = 24;

    /// The call as bytes, to be compared between ranks.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let (code, argument) = match self.operation {
            Operation::AllReduce(op) => (0, u32::from(op.code())),
            Operation::ReduceScatter(op) => (1, u32::from(op.code())),
            Operation::AllGather => (2, 0),
            Operation::Broadcast { root } => (3, root as u32),
            Operation::Barrier => (4, 0),
        };
        let mut bytes = [0; Self::ENCODED];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8] = code;
        bytes[9] = self.dtype.code();
        bytes[12..16].copy_from_slice(&u32::to_le_bytes(argument));
        bytes[16..].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes
    }

    /// The call of another rank, if the bytes are one.
    pub fn decode(bytes: &[u8; Self::ENCODED]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let argument = u32::from_le_bytes(std::array::from_fn(|i| bytes[12 + i]));
        let op = || u8::try_from(argument).ok().and_then(ReduceOp::from_code);
        let operation = match bytes[8] {
            0 => Operation::AllReduce(op()?),
            1 => Operation::ReduceScatter(op()?),
            2 => Operation::AllGather,
            3 => Operation::Broadcast {
                root: argument as usize,
            },
            4 => Operation::Barrier,
            _ => return None,
        };
        Some(Self {
            sequence: word(0),
            operation,
            dtype: DType::from_code(bytes[9])?,
            len: usize::try_from(word(16)).ok()?,
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence, dtype, len, ..
        } = self;
        write!(f, "seq {sequence} ")?;
        match self.operation {
            Operation::AllReduce(op) => write!(f, "all_reduce {op} {dtype}[{len}]"),
            Operation::ReduceScatter(op) => write!(f, "reduce_scatter {op} {dtype}[{len}]"),
            Operation::AllGather => write!(f, "all_gather {dtype}[{len}]"),
            Operation::Broadcast { root } => write!(f, "broadcast from rank {root} {dtype}[{len}]"),
            Operation::Barrier => f.write_str("barrier"),
        }
    }
}

/// Does the collectives of one group, one at a time, on the thread of the group; the one thing in which groups differ.
///
/// The buffer has been checked against the call: the operation has a meaning for its type, and a `reduce_scatter` divides
/// evenly. A transport compares the call with those of the other ranks: [`Error::Mismatch`] says what each of two called.
/// It waits with a [`Patience`], never without.
pub(crate) trait Transport: Send {
    /// Does one operation. All-reduce and broadcast give back the buffer itself.
    fn run(&mut self, call: &Call, buffer: Buffer, patience: &Patience) -> Result<Buffer>;
}

/// How long an operation may wait: until its deadline, or until a rank fails.
pub(crate) struct Patience {
    health: Arc<Health>,
    operation: String,
    start: Instant,
    timeout: Duration,
}

impl Patience {
    /// Until a deadline from now.
    pub fn new(health: Arc<Health>, operation: impl Into<String>, timeout: Duration) -> Self {
        Self {
            health,
            operation: operation.into(),
            start: Instant::now(),
            timeout,
        }
    }

    /// Ends the wait if there is no reason to go on; called at least every [`Health::PERIOD`]. `missing` names the ranks among
    /// all that are being waited for.
    pub fn check(&self, missing: impl FnOnce() -> Vec<usize>) -> Result<()> {
        self.health.check()?;
        if self.start.elapsed() < self.timeout {
            return Ok(());
        }
        Err(Error::Timeout {
            operation: self.operation.clone(),
            waiting_for: missing(),
            after: self.timeout,
        })
    }

    /// The failure that the other ranks know of, if the word of it comes soon.
    pub fn hearsay(&self) -> Option<Error> {
        self.health.hearsay()
    }

    /// How long to sleep before the next look.
    pub fn period(&self) -> Duration {
        let left = self.timeout.saturating_sub(self.start.elapsed());
        left.clamp(Duration::from_millis(1), Health::PERIOD)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_call_survives_its_encoding_and_other_bytes_are_none() {
        let operations = [
            Operation::AllReduce(ReduceOp::Mean),
            Operation::ReduceScatter(ReduceOp::Max),
            Operation::AllGather,
            Operation::Broadcast { root: 300 },
            Operation::Barrier,
        ];
        for operation in operations {
            let call = Call {
                sequence: 1 << 40,
                operation,
                dtype: DType::BF16,
                len: 200,
            };
            assert_eq!(Call::decode(&call.encode()), Some(call));
        }
        assert_eq!(Call::decode(&[0xff; Call::ENCODED]), None);
    }

    #[test]
    fn patience_ends_with_the_deadline_or_a_failure() {
        let health = Arc::new(Health::new());
        let patience = Patience::new(Arc::clone(&health), "seq 1 barrier", Duration::ZERO);
        let error = patience.check(|| vec![3]).unwrap_err().to_string();
        assert!(
            error.contains("seq 1 barrier") && error.contains("rank 3"),
            "{error}"
        );
        let patience = Patience::new(Arc::clone(&health), "barrier", Duration::from_secs(60));
        assert!(patience.check(Vec::new).is_ok());
        health.fail(Error::RankFailed {
            rank: 2,
            cause: "it was killed".to_owned(),
        });
        assert!(
            patience
                .check(Vec::new)
                .unwrap_err()
                .to_string()
                .contains("rank 2")
        );
    }
}
