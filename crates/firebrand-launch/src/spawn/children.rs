use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;

use super::child::RankProcess;
use super::end::ChildEnd;
use super::lifeline::Lifeline;
use super::options::SpawnOptions;
use super::supervisor::{Ends, Order, supervise};
use crate::environment::Cluster;
use crate::{Error, Result};

/// How long a process may take to be gone after it was killed.
const GONE: Duration = Duration::from_secs(5);

/// A rank that this process has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its global rank.
    pub rank: usize,
    /// The number of its process.
    pub pid: u32,
}

/// The ranks that this process has started. A thread watches them, reaps those that end, and kills what they leave behind.
///
/// When it is dropped the ranks are ended. They also end when this process does, however it ends.
#[must_use = "the ranks are ended when it is dropped"]
pub struct Children {
    children: Vec<Child>,
    ends: Arc<Ends>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
    grace: Duration,
}

impl Children {
    /// Starts a process for each of some ranks: `program` with the variables of [`rank_variables`](crate::rank_variables), in a
    /// process group of its own, with an empty standard input, and with `[rank 1] ` before every line that it writes.
    /// `RAYON_NUM_THREADS` and `OMP_NUM_THREADS` divide the processors among the ranks of the node unless they are set.
    ///
    /// `on_failure` is called with the first that fails, from a thread of its own; 130 and 143, the codes of a run that was
    /// stopped and has saved, are no failures.
    ///
    /// # Errors
    ///
    /// If one cannot be started; the others have been ended then.
    pub fn spawn(
        ranks: &[Cluster],
        options: &SpawnOptions,
        on_failure: impl FnOnce(ChildEnd) + Send + 'static,
    ) -> Result<Self> {
        let ends = Arc::new(Ends::new(
            ranks.iter().map(|cluster| cluster.topology.global_rank).collect(),
        ));
        let (orders, received) = channel();
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("firebrand-children".to_owned())
            .spawn({
                let (ends, ranks, options) = (Arc::clone(&ends), ranks.to_vec(), options.clone());
                move || {
                    let (processes, lifeline) = match start(&ranks, &options) {
                        Ok(started) => started,
                        Err(error) => return drop(tell.send(Err(error))),
                    };
                    let children: Vec<Child> = processes
                        .iter()
                        .map(|process| Child {
                            rank: process.rank(),
                            pid: process.pid(),
                        })
                        .collect();
                    drop(tell.send(Ok(children)));
                    drop(options);
                    supervise(processes, lifeline, &ends, &received, Box::new(on_failure));
                }
            })
            .map_err(|error| {
                Error::system("the thread that supervises the ranks could not be started", error)
            })?;
        let children = told.recv().unwrap_or_else(|_| {
            Err(Error::system(
                "the thread that supervises the ranks",
                "it ended at once",
            ))
        })?;
        Ok(Self {
            children,
            ends,
            orders,
            thread: Some(thread),
            grace: options.grace,
        })
    }

    /// The ranks that were started.
    pub fn children(&self) -> &[Child] {
        &self.children
    }

    /// The first that failed.
    pub fn first_failure(&self) -> Option<ChildEnd> {
        self.ends.state().first_failure
    }

    /// Those that have ended, in the order in which they did.
    pub fn ended(&self) -> Vec<ChildEnd> {
        self.ends.state().ended.clone()
    }

    /// The global ranks that have not ended.
    pub fn running(&self) -> Vec<usize> {
        self.ends.state().running.clone()
    }

    /// Waits until all have ended by themselves.
    ///
    /// # Errors
    ///
    /// If some have not by the deadline, with their ranks; they go on.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<ChildEnd>> {
        let state = self.ends.wait(timeout);
        if state.running.is_empty() {
            return Ok(state.ended.clone());
        }
        Err(Error::system(
            format!(
                "the ranks {:?} have not ended within {} s",
                state.running,
                timeout.as_secs_f64()
            ),
            "they may be saving, or hang; look at their output",
        ))
    }

    /// Sends a signal to every rank that has not ended, such as 15 for SIGTERM.
    ///
    /// # Errors
    ///
    /// If there is no such signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Error::system(format!("signal {signal}"), "there is none with this number"))?;
        // All have ended when nobody takes orders.
        drop(self.orders.send(Order::Signal(signal)));
        Ok(())
    }

    /// Asks all to end with SIGTERM, kills those that have not after `grace`, and returns how they ended.
    pub fn shutdown(&self, grace: Duration) -> Vec<ChildEnd> {
        drop(self.orders.send(Order::End(grace)));
        self.ends.wait(grace.saturating_add(GONE)).ended.clone()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.shutdown(self.grace);
        // A process that cannot even be killed, since the kernel is busy for it, is left to the thread.
        if self.ends.state().running.is_empty()
            && let Some(thread) = self.thread.take()
        {
            drop(thread.join());
        }
    }
}

fn start(ranks: &[Cluster], options: &SpawnOptions) -> Result<(Vec<RankProcess>, Lifeline)> {
    let lifeline = Lifeline::new()?;
    let mut processes = Vec::with_capacity(ranks.len());
    for cluster in ranks {
        match RankProcess::start(cluster, options, &lifeline) {
            Ok(process) => processes.push(process),
            Err(error) => {
                processes.iter().for_each(RankProcess::kill);
                while !processes.is_empty() {
                    processes.retain_mut(|process| process.look().is_none());
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Err(error);
            }
        }
    }
    Ok((processes, lifeline))
}
