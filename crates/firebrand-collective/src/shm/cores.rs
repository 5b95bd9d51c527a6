use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, on which a rank communicates, to the rank's share of the cores.
///
/// The threads of the ranks wake each other, and the system likes to run a thread where the one runs that woke it. Two of
/// them on the core on which one rank computes make that rank late, and all others wait for it in every update.
pub(super) fn keep_to_own_cores(rank: usize, ranks: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|core| allowed.is_set(*core))
        .collect();
    let own = share(cores.len(), rank, ranks);
    if own.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    for core in cores.get(own).unwrap_or_default() {
        set.set(*core);
    }
    // Where it is not allowed, everything works as well, if not as fast.
    let _ = sched_setaffinity(None, &set);
}

/// The cores of one of several ranks; none if there are fewer cores than ranks, or a launcher has bound the rank.
fn share(cores: usize, rank: usize, ranks: usize) -> std::ops::Range<usize> {
    if cores < ranks {
        return 0..0;
    }
    cores * rank / ranks..cores * (rank + 1) / ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_among_ranks() {
        for (cores, ranks) in [(2, 2), (16, 3), (5, 5), (8, 1), (96, 7)] {
            let shares: Vec<_> = (0..ranks).map(|rank| share(cores, rank, ranks)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()));
            assert_eq!(
                shares.into_iter().flatten().collect::<Vec<_>>(),
                (0..cores).collect::<Vec<_>>()
            );
        }
        assert!(share(2, 1, 3).is_empty());
    }
}
