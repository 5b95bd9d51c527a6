use crate::Share;

/// What ranks say with an update, as numbers that are summed over all of them: which gradients they have, and their share.
pub(super) struct Header {
    /// On how many ranks each gradient was used, by its position in the specification.
    pub used: Vec<f64>,
    /// How many ranks had a backward pass at all.
    pub participants: f64,
    pub weight: f64,
    /// For each rank zero, or the [`kind`] of its loss that is not finite.
    pub failed: Vec<f64>,
    pub notes: Vec<f64>,
}

/// What a loss is that is not finite, as a number that survives a sum with zeros.
fn kind(loss: f64) -> f64 {
    match loss {
        f64::INFINITY => 2.0,
        f64::NEG_INFINITY => 3.0,
        _ => 1.0,
    }
}

/// The loss of a kind.
fn loss(kind: f64) -> f64 {
    match kind {
        2.0 => f64::INFINITY,
        3.0 => f64::NEG_INFINITY,
        _ => f64::NAN,
    }
}

impl Header {
    const FIXED: usize = 2;

    /// What one rank of so many says.
    pub(super) fn of(share: Share, used: &[bool], rank: usize, world_size: usize) -> Self {
        let number = |flag: bool| f64::from(u8::from(flag));
        let mut failed = vec![0.0; world_size];
        if let (Some(loss), Some(place)) = (share.failed, failed.get_mut(rank)) {
            *place = kind(loss);
        }
        Self {
            participants: number(used.contains(&true)),
            used: used.iter().map(|used| number(*used)).collect(),
            weight: share.weight,
            failed,
            notes: share.notes,
        }
    }

    pub(super) fn encode(&self) -> Vec<f64> {
        [self.participants, self.weight]
            .iter()
            .chain(&self.failed)
            .chain(&self.used)
            .chain(&self.notes)
            .copied()
            .collect()
    }

    /// The sums over the ranks; `num_gradients` of them say where gradients were used.
    pub(super) fn decode(sums: &[f64], world_size: usize, num_gradients: usize) -> Self {
        let (fixed, rest) = sums.split_at_checked(Self::FIXED).unwrap_or((&[0.0; 2], &[]));
        let (failed, rest) = rest.split_at_checked(world_size).unwrap_or((rest, &[]));
        let (used, notes) = rest.split_at_checked(num_gradients).unwrap_or((rest, &[]));
        Self {
            participants: fixed[0],
            weight: fixed[1],
            failed: failed.to_vec(),
            used: used.to_vec(),
            notes: notes.to_vec(),
        }
    }

    /// The first rank of the group with a loss that is not finite, and that loss.
    pub(super) fn first_failed(&self) -> Option<(usize, f64)> {
        let rank = self.failed.iter().position(|kind| *kind != 0.0)?;
        Some((rank, loss(self.failed[rank])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_encoding() {
        let share = Share {
            weight: 2.5,
            failed: Some(f64::NEG_INFINITY),
            notes: vec![7.0, -1.0],
        };
        let header = Header::decode(&Header::of(share, &[true, false], 1, 3).encode(), 3, 2);
        assert_eq!((header.participants, header.weight), (1.0, 2.5));
        assert_eq!(header.first_failed(), Some((1, f64::NEG_INFINITY)));
        assert_eq!((header.used, header.notes), (vec![1.0, 0.0], vec![7.0, -1.0]));
        let fine = Header::of(Share::default(), &[], 0, 2);
        assert_eq!(fine.first_failed(), None);
    }
}
