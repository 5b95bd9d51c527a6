use super::{Means, SIZES};
use crate::numbers::Numbers;
use crate::table::{Limit, load, mark, table};

/// What a bandwidth should be in proportion to Gloo's, from a size on.
struct Target {
    means: Means,
    from: usize,
    limit: Limit,
}

const TARGETS: [Target; 2] = [
    Target {
        means: Means::Shm,
        from: 64 << 10,
        limit: Limit::AtLeast(2.5),
    },
    Target {
        means: Means::Tcp,
        from: SIZES[0],
        limit: Limit::AtLeast(1.2),
    },
];

pub(super) fn title() {
    println!(
        "all-reduce of float32, sum, ranks of one machine; the load on the machine is {}\n",
        load()
    );
}

/// Prints the bandwidths of a number of ranks, and which targets are met.
pub(super) fn bandwidths(ranks: usize, numbers: &Numbers) {
    println!(
        "{ranks} ranks, GB/s: bytes of a rank's buffer / time of one all-reduce; load {}",
        load()
    );
    let mut table = table(["bytes", "shm", "tcp", "gloo", "shm / gloo", "", "tcp / gloo", ""]);
    for size in SIZES {
        let bandwidth = |means: Means| numbers.get(&means.key(ranks, size));
        let mut row = vec![size_text(size)];
        row.extend(
            Means::ALL.map(|means| bandwidth(means).map_or_else(String::new, |value| format!("{value:.3}"))),
        );
        for Target { means, from, limit } in TARGETS {
            let ratio = bandwidth(means)
                .zip(bandwidth(Means::Gloo))
                .map(|(ours, theirs)| ours / theirs);
            let verdict = match ratio {
                Some(ratio) if size >= from => mark(limit.holds(ratio)),
                _ => "",
            };
            row.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")));
            row.push(verdict.to_owned());
        }
        table.add_row(row);
    }
    println!("{table}");
    println!(
        "targets: shm {} × gloo from 64 KiB, tcp {} × gloo",
        TARGETS[0].limit.text(),
        TARGETS[1].limit.text()
    );
    println!(
        "shm moves {:.2} bytes of memory per byte on each rank\n",
        bytes_moved(ranks)
    );
}

/// How many bytes a rank reads or writes per byte of its buffer. It reduces its part: reads that of every rank and writes one; and
/// copies the parts of the others.
fn bytes_moved(ranks: usize) -> f64 {
    let ranks = ranks as f64;
    (ranks + 1.0) / ranks + 2.0 * (ranks - 1.0) / ranks
}

fn size_text(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size => format!("{} KiB", size >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ranks_move_two_and_a_half_bytes() {
        assert_eq!(bytes_moved(2), 2.5);
        assert_eq!(bytes_moved(4), 2.75);
    }

    #[test]
    fn sizes_are_read_in_their_unit() {
        assert_eq!(SIZES.map(size_text)[..3], ["4 KiB", "64 KiB", "1 MiB"]);
    }
}
