use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What asks a run to stop: Ctrl+C and SIGTERM.
pub struct Interrupts(Signals);

impl Interrupts {
    pub fn listen() -> std::io::Result<Self> {
        Signals::new([SIGINT, SIGTERM]).map(Self)
    }

    /// Those that have come since the last look.
    pub fn pending(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
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
        if self.signal == SIGINT { 130 } else { 143 }
    }

    pub fn name(&self) -> &'static str {
        if self.signal == SIGINT {
            "Ctrl+C"
        } else {
            "SIGTERM"
        }
    }
}
