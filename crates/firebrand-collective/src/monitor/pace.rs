use std::time::{Duration, Instant};

use super::MonitorContext;

/// When to say that this rank is alive, and whether its thread was kept from running.
pub(super) struct Pace {
    period: Duration,
    next: Instant,
    last_turn: Instant,
}

impl Pace {
    pub fn new(context: &MonitorContext) -> Self {
        // Several signs of life in the time that makes a silence, whatever was chosen.
        let period = context
            .heartbeat
            .min(context.silence / 4)
            .max(Duration::from_millis(1));
        Self {
            period,
            next: Instant::now(),
            last_turn: Instant::now(),
        }
    }

    /// When the next heartbeat is due.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether a heartbeat is due; if so, the next one is a period ahead.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.period;
        }
        due
    }

    /// Called at the beginning of each turn: the time by which all of the turn judges, and whether it comes much later than it
    /// should. Then the process was stopped, and what others sent meanwhile has yet to be read. If it is stopped within a turn,
    /// the turn judges by the time before, and the next one is late.
    pub fn begin_turn(&mut self) -> (Instant, bool) {
        let now = Instant::now();
        let late = now.duration_since(self.last_turn) > 2 * self.period;
        self.last_turn = now;
        (now, late)
    }
}
