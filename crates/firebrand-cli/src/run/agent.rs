use std::time::{Duration, Instant};

use firebrand_launch::{ChildEnd, Children, MasterAddress};

use super::args::RunArgs;
use super::guard::Guard;
use super::interrupts::{Interrupts, Stop, asks_to_stop};
use super::job::Job;
use super::port;
use crate::say;

/// How often another port is tried when somebody took the one that was chosen.
const PORT_TRIES: u32 = 3;

/// A start that fails later than this did not fail because of its port.
const PORT_TROUBLE: Duration = Duration::from_secs(60);

/// How one start of the ranks ended.
enum Outcome {
    /// All ended by themselves, with this exit code.
    Over(u8),
    /// One failed, and the others have been ended.
    Failed(ChildEnd),
    /// It was asked to stop, and all have ended.
    Stopped(Stop),
}

/// Starts the ranks of a node as often as it takes.
pub struct Agent {
    job: Job,
    interrupts: Interrupts,
    guard: Guard,
    max_restarts: u32,
    interval: Duration,
    failure_grace: Duration,
    stop_grace: Duration,
}

impl Agent {
    pub fn new(job: Job, args: &RunArgs) -> anyhow::Result<Self> {
        Ok(Self {
            job,
            interrupts: Interrupts::listen()?,
            guard: Guard::start()?,
            max_restarts: args.max_restarts,
            interval: args.monitor_interval.max(Duration::from_millis(5)),
            failure_grace: args.failure_grace,
            stop_grace: args.stop_grace,
        })
    }

    pub fn run(&mut self) -> anyhow::Result<u8> {
        let mut restart_count = 0;
        let mut port_tries = 0;
        loop {
            let begun = Instant::now();
            let (outcome, chosen_port) = self.start(restart_count)?;
            let end = match outcome {
                Outcome::Over(code) => return Ok(code),
                Outcome::Stopped(stop) => return Ok(stop.exit_code()),
                Outcome::Failed(end) => end,
            };
            let pending = self.interrupts.pending();
            if let Some(signal) = pending.into_iter().find(|signal| asks_to_stop(*signal)) {
                return Ok(Stop::new(signal, Duration::ZERO).exit_code());
            }
            // All ranks are gone: whoever listens at their port now has taken it from them.
            let lost = chosen_port.filter(|port| begun.elapsed() < PORT_TROUBLE && port::is_taken(*port));
            if let Some(port) = lost
                && port_tries < PORT_TRIES
            {
                port_tries += 1;
                say(&format!(
                    "firebrand run: another process took port {port} before rank 0 did; starting again with another one"
                ));
                continue;
            }
            let failed = format!("firebrand run: rank {} failed: {end}", end.rank);
            if restart_count == self.max_restarts {
                say(&failed);
                return Ok(end.exit_code());
            }
            restart_count += 1;
            say(&format!(
                "{failed}; starting all again ({restart_count} of {})",
                self.max_restarts
            ));
        }
    }

    /// Starts the ranks once; returns how they ended, and the port if it was chosen here.
    fn start(&mut self, restart_count: u32) -> anyhow::Result<(Outcome, Option<u16>)> {
        let (master, reserved) = match self.job.endpoint.clone() {
            Some(endpoint) => (endpoint, None),
            None => {
                let (listener, port) = port::reserve()?;
                let master = MasterAddress {
                    host: "127.0.0.1".to_owned(),
                    port,
                };
                (master, Some(listener))
            }
        };
        let chosen_port = reserved.is_some().then_some(master.port);
        let ranks = self.job.ranks(&master, restart_count);
        let options = self.job.options(restart_count);
        // From here on it is rank 0's.
        drop(reserved);
        let children = Children::spawn(&ranks, &options, |_| {})?;
        let outcome = self.watch(&children)?;
        drop(children);
        self.guard.watch(Vec::new());
        Ok((outcome, chosen_port))
    }

    fn watch(&mut self, children: &Children) -> anyhow::Result<Outcome> {
        let mut stop: Option<Stop> = None;
        loop {
            self.guard.watch(running(children));
            for signal in self.interrupts.pending() {
                children.signal(signal)?;
                match &mut stop {
                    _ if !asks_to_stop(signal) => say("firebrand run: SIGUSR1, which the ranks are told"),
                    Some(stop) => stop.hurry(self.failure_grace),
                    None => {
                        let asked = Stop::new(signal, self.stop_grace);
                        say(&format!(
                            "firebrand run: {}, which the ranks are told",
                            asked.name()
                        ));
                        stop = Some(asked);
                    }
                }
            }
            let over = children.wait(self.interval);
            match (&over, children.first_failure(), stop) {
                (Ok(_), _, Some(stop)) => return Ok(Outcome::Stopped(stop)),
                (Ok(_), Some(end), None) => return Ok(Outcome::Failed(end)),
                (Ok(ends), None, None) => {
                    let code = ends.iter().map(ChildEnd::exit_code).find(|code| *code != 0);
                    return Ok(Outcome::Over(code.unwrap_or(0)));
                }
                (Err(_), Some(end), None) => {
                    children.shutdown(self.failure_grace);
                    return Ok(Outcome::Failed(end));
                }
                // Asked to stop, and one could not: there is nothing left to wait for but the others' end.
                (Err(_), Some(_), Some(mut asked)) => {
                    asked.hurry(self.failure_grace);
                    stop = Some(asked);
                }
                (Err(_), None, _) => {}
            }
            if let Some(stop) = stop.filter(Stop::is_due) {
                say(&format!(
                    "firebrand run: the ranks {:?} did not end in time, and are killed",
                    children.running()
                ));
                children.shutdown(Duration::ZERO);
                return Ok(Outcome::Stopped(stop));
            }
        }
    }
}

/// The processes that have not ended.
fn running(children: &Children) -> Vec<u32> {
    let running = children.running();
    let children = children.children().iter();
    children
        .filter(|child| running.contains(&child.rank))
        .map(|child| child.pid)
        .collect()
}
