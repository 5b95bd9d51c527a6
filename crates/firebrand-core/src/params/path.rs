use burn::module::ParamId;
use sha2::{Digest, Sha256};

/// The identity of the parameter at `path`: the same in every process, on every rank and in every file.
///
/// Burn's own identities are random per process. The value is the first eight bytes of SHA-256 of the path.
pub fn path_id(path: &str) -> ParamId {
    ParamId::from(hash(&[b"parameter", path.as_bytes()]))
}

/// What a seed is for, so that two uses of one user seed never draw the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedStream {
    /// Initial weights, one seed per parameter path.
    Weights,
    /// Random numbers inside a step.
    Step,
    /// The order of the data.
    Shuffle,
    /// Augmentation of one sample.
    Sample,
}

/// A seed that is a function of the user's seed, a purpose, a name and numbers such as step or rank.
///
/// The fields are hashed with their lengths, so that different arguments never collide by concatenation.
pub fn seed_from(seed: u64, stream: SeedStream, name: &str, numbers: &[u64]) -> u64 {
    let stream: &[u8] = match stream {
        SeedStream::Weights => b"weights",
        SeedStream::Step => b"step",
        SeedStream::Shuffle => b"shuffle",
        SeedStream::Sample => b"sample",
    };
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    hash(&[stream, &seed.to_le_bytes(), name.as_bytes(), &numbers])
}

fn hash(fields: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new();
    for field in fields {
        digest.update((field.len() as u64).to_le_bytes());
        digest.update(field);
    }
    let bytes = digest.finalize();
    bytes
        .iter()
        .take(8)
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_the_same_in_every_process() {
        assert_eq!(path_id("net.fc1.weight"), path_id("net.fc1.weight"));
        assert_ne!(path_id("net.fc1.weight"), path_id("net.fc2.weight"));
        // A literal: files and ranks of another build rely on it.
        assert_eq!(path_id("net.fc1.weight").val(), 10_114_679_113_918_691_532);
    }

    #[test]
    fn seeds_differ_in_every_argument() {
        let base = seed_from(1, SeedStream::Step, "a", &[1, 2]);
        for other in [
            seed_from(2, SeedStream::Step, "a", &[1, 2]),
            seed_from(1, SeedStream::Weights, "a", &[1, 2]),
            seed_from(1, SeedStream::Step, "b", &[1, 2]),
            seed_from(1, SeedStream::Step, "a", &[2, 1]),
            seed_from(1, SeedStream::Step, "a", &[1, 2, 0]),
        ] {
            assert_ne!(base, other);
        }
    }
}
