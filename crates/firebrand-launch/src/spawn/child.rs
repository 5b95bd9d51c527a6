use std::process::{Child as Process, ExitStatus};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::command::command;
use super::end::ChildEnd;
use super::lifeline::Lifeline;
use super::options::SpawnOptions;
use super::output::{OutputStream, Pump};
use crate::environment::Cluster;
use crate::{Error, Result};

/// How long the last words of a rank that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A rank's process, for the thread that supervises it.
pub(super) struct RankProcess {
    rank: usize,
    process: Process,
    pumps: Vec<Pump>,
    ended: Option<(Option<ExitStatus>, Instant)>,
}

impl RankProcess {
    pub fn start(cluster: &Cluster, options: &SpawnOptions, lifeline: &Lifeline) -> Result<Self> {
        let rank = cluster.topology.global_rank;
        let mut process = command(cluster, options, lifeline)?.spawn().map_err(|error| {
            Error::system(
                format!(
                    "rank {rank} could not be started as '{}'",
                    options.program.display()
                ),
                error,
            )
        })?;
        let prefix = format!("[rank {rank}] ");
        let stdout = process.stdout.take();
        let stderr = process.stderr.take();
        let mut started = Self {
            rank,
            process,
            pumps: Vec::new(),
            ended: None,
        };
        let pumps = [
            stdout.map(|source| Pump::start(source, OutputStream::Stdout, &prefix, options.sink.clone())),
            stderr.map(|source| Pump::start(source, OutputStream::Stderr, &prefix, options.sink.clone())),
        ];
        for pump in pumps.into_iter().flatten() {
            match pump {
                Ok(pump) => started.pumps.push(pump),
                Err(error) => {
                    started.kill();
                    drop(started.process.wait());
                    return Err(error);
                }
            }
        }
        Ok(started)
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, once it has and its last words have been handed on. It is no zombie then.
    pub fn look(&mut self) -> Option<ChildEnd> {
        if self.ended.is_none() {
            self.ended = self.reap().map(|status| (status, Instant::now()));
        }
        let (status, at) = self.ended?;
        if at.elapsed() < LAST_WORDS && !self.pumps.iter().all(Pump::is_finished) {
            return None;
        }
        self.pumps.clear();
        Some(ChildEnd {
            rank: self.rank,
            pid: self.pid(),
            status,
        })
    }

    /// Sends a signal to the process itself, which may have to end what it has started in order.
    pub fn signal(&self, signal: Signal) {
        if let (None, Some(pid)) = (self.ended, self.leader()) {
            // It is not reaped yet, so that the number is still its own.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills the process and what it has started.
    pub fn kill(&self) {
        if self.ended.is_none() {
            self.kill_group();
        }
    }

    fn leader(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.pid()).ok()?)
    }

    fn kill_group(&self) {
        if let Some(pid) = self.leader() {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// The status if it has ended. What it has left behind in its group is killed before its number can go to another process.
    fn reap(&mut self) -> Option<Option<ExitStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::Pid(self.leader()?), options) {
            Ok(None) | Err(Errno::INTR) => None,
            Ok(Some(_)) => {
                self.kill_group();
                Some(self.process.try_wait().ok().flatten())
            }
            // Somebody else has reaped it.
            Err(_) => Some(None),
        }
    }
}
