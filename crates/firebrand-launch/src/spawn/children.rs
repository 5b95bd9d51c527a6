use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use firebrand_collective::{Secret, Topology};

use super::command::again;
use crate::output::{self, Target};
use crate::{Error, MasterAddress, Result};

/// How often the processes are looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// How long a process has between being asked to end and being killed.
const GRACE: Duration = Duration::from_secs(5);

/// How a rank's process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The rank, among all.
    pub rank: usize,
    /// Whether it ended with success.
    pub success: bool,
    /// How it ended in words: `its process was killed by signal 9`.
    pub text: String,
}

/// The other ranks of this node, each a process. Dropping it ends them.
pub struct Children {
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Rank {
    rank: usize,
    process: Child,
    /// Held open: its end tells the child that this process is gone.
    input: Option<ChildStdin>,
    exited: bool,
}

impl Children {
    /// Starts the ranks of a node besides the first, and calls `on_exit` once for each that ends, from a thread of its own.
    ///
    /// # Errors
    ///
    /// If a process cannot be started; those that were are ended again.
    pub fn start(
        topologies: &[Topology],
        master: &MasterAddress,
        secret: &Secret,
        on_exit: impl Fn(Exit) + Send + 'static,
    ) -> Result<Self> {
        let commands = topologies
            .iter()
            .map(|topology| Ok((topology.global_rank, again(topology, master, secret)?)))
            .collect::<Result<Vec<_>>>()?;
        let closing = Arc::new(AtomicBool::new(false));
        let (started, outcome) = mpsc::channel();
        let ends = Arc::clone(&closing);
        // The processes belong to the thread that starts them: the system kills them when it ends.
        let thread = std::thread::Builder::new()
            .name("firebrand-children".to_owned())
            .spawn(move || {
                let mut ranks = match start_all(commands) {
                    Ok(ranks) => ranks,
                    Err(error) => {
                        let _ = started.send(Err(error));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                supervise(&mut ranks, &ends, on_exit);
            })
            .map_err(|error| Error::spawn("the thread that starts other ranks", error))?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Self {
                closing,
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::spawn("the other ranks", "their thread ended")),
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn start_all(commands: Vec<(usize, Command)>) -> Result<Vec<Rank>> {
    let mut ranks: Vec<Rank> = Vec::with_capacity(commands.len());
    for (rank, mut command) in commands {
        match command.spawn() {
            Ok(mut process) => {
                let prefix = format!("[rank {rank}] ");
                if let Some(stdout) = process.stdout.take() {
                    let _ = output::forward(stdout, prefix.clone(), Target::Stdout);
                }
                if let Some(stderr) = process.stderr.take() {
                    let _ = output::forward(stderr, prefix, Target::Stderr);
                }
                ranks.push(Rank {
                    rank,
                    input: process.stdin.take(),
                    process,
                    exited: false,
                });
            }
            Err(error) => {
                end_all(&mut ranks);
                return Err(Error::spawn(format!("rank {rank} could not be started"), error));
            }
        }
    }
    Ok(ranks)
}

/// Reaps each process when it ends, and ends those that are left when it is time.
fn supervise(ranks: &mut [Rank], closing: &AtomicBool, on_exit: impl Fn(Exit)) {
    while !closing.load(Ordering::SeqCst) {
        for rank in ranks.iter_mut().filter(|rank| !rank.exited) {
            if let Ok(Some(status)) = rank.process.try_wait() {
                rank.exited = true;
                on_exit(Exit {
                    rank: rank.rank,
                    success: status.success(),
                    text: describe(status),
                });
            }
        }
        if ranks.iter().all(|rank| rank.exited) {
            return;
        }
        std::thread::sleep(PERIOD);
    }
    end_all(ranks);
}

/// Asks every process to end, and kills those that do not; all are reaped.
fn end_all(ranks: &mut [Rank]) {
    // A rank that only waits for its parent ends by this.
    ranks.iter_mut().for_each(|rank| rank.input = None);
    let start = Instant::now();
    let mut asked = false;
    loop {
        for rank in ranks.iter_mut().filter(|rank| !rank.exited) {
            rank.exited = !matches!(rank.process.try_wait(), Ok(None));
        }
        if ranks.iter().all(|rank| rank.exited) {
            return;
        }
        let waited = start.elapsed();
        if waited > GRACE {
            break;
        }
        if waited > GRACE / 5 && !std::mem::replace(&mut asked, true) {
            ranks.iter().filter(|rank| !rank.exited).for_each(terminate);
        }
        std::thread::sleep(PERIOD);
    }
    for rank in ranks.iter_mut().filter(|rank| !rank.exited) {
        let _ = rank.process.kill();
        let _ = rank.process.wait();
    }
}

#[cfg(unix)]
fn terminate(rank: &Rank) {
    use rustix::process::{Pid, Signal, kill_process};
    if let Ok(id) = i32::try_from(rank.process.id())
        && let Some(id) = Pid::from_raw(id)
    {
        let _ = kill_process(id, Signal::TERM);
    }
}

#[cfg(not(unix))]
fn terminate(_: &Rank) {}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            return format!("its process was killed by signal {signal}");
        }
    }
    match status.code() {
        Some(0) => "its process ended before the run was over".to_owned(),
        Some(code) => format!("its process ended with exit code {code}"),
        None => "its process ended".to_owned(),
    }
}
