//! What is said while ranks wait for each other.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use firebrand_collective::Topology;

/// Says something again and again, until it is dropped, while something takes long.
pub(super) struct Notice(#[allow(dead_code)] Sender<()>);

impl Notice {
    /// Asks for the text after each interval, with how long it has taken so far, on a thread of its own.
    pub fn every(interval: Duration, text: impl Fn(Duration) -> Option<String> + Send + 'static) -> Self {
        let (stop, stopped) = channel::<()>();
        let begun = Instant::now();
        // Nobody waits for the thread, since the text may need an answer from a rank that does not give one. Without a
        // thread nothing is said.
        let _ = std::thread::Builder::new()
            .name("firebrand-notice".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    let text = text(begun.elapsed());
                    if let Some(text) = text
                        && stopped.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Timeout)
                    {
                        say(&text);
                    }
                }
            });
        Self(stop)
    }
}

/// Writes a line to standard error, which may be closed. There is no logger yet where ranks come together.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "firebrand: {text}");
}

/// Ranks in words, with their nodes if there are several.
pub(super) fn in_words(ranks: &[usize], topology: &Topology) -> String {
    let mut text = match ranks {
        [] => return "other ranks".to_owned(),
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", ranges(ranks)),
    };
    if topology.num_nodes > 1 {
        let mut nodes: Vec<usize> = ranks
            .iter()
            .map(|rank| rank / topology.local_world_size.max(1))
            .collect();
        nodes.dedup();
        let plural = if nodes.len() == 1 { "" } else { "s" };
        text.push_str(&format!(" (node{plural} {})", ranges(&nodes)));
    }
    text
}

/// Ascending numbers, those that follow each other as a range.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let parts: Vec<String> = parts
        .iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_with_their_nodes() {
        let topology = |num_nodes| Topology {
            world_size: 4 * num_nodes,
            local_world_size: 4,
            num_nodes,
            ..Topology::single()
        };
        for (ranks, num_nodes, text) in [
            (&[3][..], 1, "rank 3"),
            (&[1, 2], 1, "ranks 1, 2"),
            (&[1, 2, 3], 1, "ranks 1-3"),
            (&[4, 5, 6, 7], 2, "ranks 4-7 (node 1)"),
            (&[1, 4, 5, 6, 9], 4, "ranks 1, 4-6, 9 (nodes 0-2)"),
        ] {
            assert_eq!(in_words(ranks, &topology(num_nodes)), text);
        }
    }
}
