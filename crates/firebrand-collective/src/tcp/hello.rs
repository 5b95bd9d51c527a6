use crate::GroupContext;
use crate::control::{Fields, Malformed};

const MAGIC: [u8; 4] = *b"FBT1";

/// Who is at the two ends of a connection: what the one that dialled says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The number of ranks of the group.
    pub size: u32,
    /// Each end's number in the group and among all ranks.
    pub from: (u32, u32),
    pub to: (u32, u32),
}

impl Hello {
    pub const ENCODED: usize = 24;

    /// What one rank of a group says to another.
    pub fn between(context: &GroupContext, from: usize, to: usize) -> Self {
        let numbers = |rank: usize| (rank as u32, context.global_ranks[rank] as u32);
        Self {
            size: context.global_ranks.len() as u32,
            from: numbers(from),
            to: numbers(to),
        }
    }

    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut bytes = [0; Self::ENCODED];
        bytes[..4].copy_from_slice(&MAGIC);
        let words = [self.size, self.from.0, self.from.1, self.to.0, self.to.1];
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields::new(bytes);
        if fields.array()? != MAGIC {
            return Err(Malformed("it begins with other bytes"));
        }
        let hello = Self {
            size: fields.u32()?,
            from: (fields.u32()?, fields.u32()?),
            to: (fields.u32()?, fields.u32()?),
        };
        fields.end()?;
        Ok(hello)
    }

    /// The rank that says this to the rank of a context; none if it means another group or another rank.
    pub fn sender(&self, context: &GroupContext) -> Option<usize> {
        let from = self.from.0 as usize;
        let fits = from < context.global_ranks.len()
            && from != context.rank
            && *self == Self::between(context, from, context.rank);
        fits.then_some(from)
    }
}
