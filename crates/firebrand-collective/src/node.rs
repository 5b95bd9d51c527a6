use std::fs;

use crate::{GroupContext, Result};

/// The number of the node of each rank of a group: nodes are numbered in the order of their first ranks.
///
/// Ranks are on one node if they run on one kernel and see one network: then they can share memory by file descriptor.
pub(crate) fn node_of_each_rank(context: &GroupContext) -> Result<Vec<usize>> {
    context
        .store
        .set(&format!("node/{}", context.rank), identity().as_bytes())?;
    let names = (0..context.global_ranks.len())
        .map(|rank| context.store.get(&format!("node/{rank}"), context.timeout))
        .collect::<Result<Vec<_>>>()?;
    Ok(number(&names))
}

/// Equal names get equal numbers, in the order in which names appear.
fn number<T: PartialEq>(names: &[T]) -> Vec<usize> {
    let mut distinct: Vec<&T> = Vec::new();
    names
        .iter()
        .map(|name| {
            distinct
                .iter()
                .position(|known| *known == name)
                .unwrap_or_else(|| {
                    distinct.push(name);
                    distinct.len() - 1
                })
        })
        .collect()
}

/// What this node is called among all: the boot of its kernel, and the network namespace. A container with a network of its own
/// counts as a node, since abstract sockets end there.
fn identity() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match boot.trim() {
        // Without a boot id, the name of the host has to do.
        "" => format!("{} {}", host.trim(), network.display()),
        boot => format!("{boot} {}", network.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_ranks() {
        assert_eq!(number(&["b", "a", "b", "c", "a"]), [0, 1, 0, 2, 1]);
        assert_eq!(identity(), identity());
        assert!(!identity().trim().is_empty());
    }
}
