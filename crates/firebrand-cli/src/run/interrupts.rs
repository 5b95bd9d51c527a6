use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// The signals that are for the ranks. They are in process groups of their own, so that what a terminal, Slurm or a person
/// sends reaches only this process.
pub struct Interrupts(Signals);

impl Interrupts {
    pub fn listen() -> std::io::Result<Self> {
        // Under nohup a hang-up is ignored, and stays ignored.
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hang_up)).map(Self)
    }

    /// Those that have come since the last look.
    pub fn pending(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
}

/// Whether a signal asks the run to stop. SIGUSR1 does not: what it means, such as to save and requeue the job, is for the program
/// to say.
pub fn asks_to_stop(signal: i32) -> bool {
    signal != SIGUSR1
}

/// Whether this process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A run that was asked to stop.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// The signal that came first.
    signal: i32,
    /// When the ranks are killed.
    deadline: Instant,
}

impl Stop {
    pub fn new(signal: i32, grace: Duration) -> Self {
        Self {
            signal,
            deadline: Instant::now() + grace,
        }
    }

    /// Asked once more: there is less time.
    pub fn hurry(&mut self, grace: Duration) {
        self.deadline = self.deadline.min(Instant::now() + grace);
    }

    pub fn is_due(&self) -> bool {
        self.deadline <= Instant::now()
    }

    /// 128 and the number of the signal.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(1)
    }

    pub fn name(&self) -> &'static str {
        match self.signal {
            SIGINT => "Ctrl+C",
            SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        }
    }
}
