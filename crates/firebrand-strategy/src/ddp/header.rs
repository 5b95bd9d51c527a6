use crate::Share;

/// What ranks say with an update, as numbers that are summed over all of them: which gradients they have, and their share.
pub(super) struct Header {
    /// On how many ranks each gradient was used, by its position in the specification.
    pub used: Vec<f64>,
    /// How many ranks had a backward pass at all.
    pub participants: f64,
    pub weight: f64,
    /// How many ranks have a loss that is not finite.
    pub failed: f64,
    pub notes: Vec<f64>,
}

impl Header {
    const FIXED: usize = 3;

    pub(super) fn of(share: Share, used: &[bool]) -> Self {
        let number = |flag: bool| f64::from(u8::from(flag));
        Self {
            participants: number(used.contains(&true)),
            used: used.iter().map(|used| number(*used)).collect(),
            weight: share.weight,
            failed: number(share.failed),
            notes: share.notes,
        }
    }

    pub(super) fn encode(&self) -> Vec<f64> {
        let fixed = [self.participants, self.weight, self.failed];
        fixed
            .iter()
            .chain(&self.used)
            .chain(&self.notes)
            .copied()
            .collect()
    }

    /// The sums over the ranks; `num_gradients` of them say where gradients were used.
    pub(super) fn decode(sums: &[f64], num_gradients: usize) -> Self {
        let (fixed, rest) = sums.split_at_checked(Self::FIXED).unwrap_or((&[0.0; 3], &[]));
        let (used, notes) = rest.split_at_checked(num_gradients).unwrap_or((rest, &[]));
        Self {
            participants: fixed[0],
            weight: fixed[1],
            failed: fixed[2],
            used: used.to_vec(),
            notes: notes.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_encoding() {
        let share = Share {
            weight: 2.5,
            failed: true,
            notes: vec![7.0, -1.0],
        };
        let header = Header::decode(&Header::of(share, &[true, false]).encode(), 2);
        assert_eq!(
            (header.participants, header.weight, header.failed),
            (1.0, 2.5, 1.0)
        );
        assert_eq!((header.used, header.notes), (vec![1.0, 0.0], vec![7.0, -1.0]));
    }
}
