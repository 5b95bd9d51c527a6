//! How fast ranks of one machine sum what they have: shared memory, TCP, and Gloo.

mod rank;
mod report;

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use firebrand::collective::Backend;

use crate::numbers::Numbers;
use crate::process::{Oracle, Script, this_program};
use crate::statistics::median;

pub(crate) use rank::serve;

/// Sums as Gloo does them.
const SCRIPT: &str = include_str!("../../python/allreduce.py");

/// The name of the hidden case that [`serve`]s.
pub(crate) const RANK_CASE: &str = "allreduce-rank";

/// How many ranks there are.
const WORLD_SIZES: [usize; 2] = [2, 4];

/// The bytes of each rank's buffer.
const SIZES: [usize; 7] = [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    Shm,
    Tcp,
    Gloo,
}

impl Means {
    const ALL: [Self; 3] = [Self::Shm, Self::Tcp, Self::Gloo];

    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Gloo => "gloo",
        }
    }

    /// The name of a bandwidth among the numbers.
    fn key(self, ranks: usize, size: usize) -> String {
        format!("allreduce.{}.n{ranks}.{size}", self.name())
    }

    /// How to start the first of some ranks, which starts the others; `None` for Gloo without Python.
    fn command(self, ranks: usize, peer: Option<(&Script, &Path)>) -> Result<Option<Command>> {
        let ranks = ranks.to_string();
        let firebrand = |backend: Backend| {
            this_program([RANK_CASE, "--backend", backend.as_str(), "--devices", &ranks]).map(Some)
        };
        match self {
            Self::Shm => firebrand(Backend::Auto),
            Self::Tcp => firebrand(Backend::Tcp),
            Self::Gloo => Ok(peer.map(|(script, python)| script.command(python, ["--ranks", &ranks]))),
        }
    }
}

/// Measures all sizes, prints the tables, and adds the numbers.
pub(crate) fn run(rounds: u32, python: Option<&Path>, numbers: &mut Numbers) -> Result<()> {
    report::title();
    let script = Script::new(SCRIPT)?;
    let peer = python.map(|python| (&script, python));
    for ranks in WORLD_SIZES {
        let mut families = Vec::new();
        for means in Means::ALL {
            if let Some(command) = means.command(ranks, peer)? {
                families.push((means, Oracle::start(command)?));
            }
        }
        // All are there for the whole time and sleep while another one is measured, so that a load on the machine meets all.
        for size in SIZES {
            let mut windows: Vec<Vec<f64>> = vec![Vec::new(); families.len()];
            for _ in 0..rounds {
                for ((_, family), windows) in families.iter_mut().zip(&mut windows) {
                    windows.extend(family.ask(&size.to_string())?);
                }
            }
            for ((means, _), windows) in families.iter().zip(&windows) {
                numbers.add(means.key(ranks, size), size as f64 / median(windows) / 1e9);
            }
        }
        for (_, family) in families {
            family.finish()?;
        }
        report::bandwidths(ranks, numbers);
    }
    Ok(())
}
